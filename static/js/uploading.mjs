// Files of weights, sent in pieces that go on where they stopped; a whole one is named to the form by its SHA-256.
import { say } from "./live.mjs";

const size = (n) => { let v = n, u = "B"; for (const next of ["kB", "MB", "GB", "TB"]) { if (v < 999.5) break; v /= 1000; u = next; } return `${u === "B" || v >= 99.95 ? v.toFixed(0) : Number(v.toPrecision(3))} ${u}`; };
const chip = (word, tone, pattern, glyph) => `<span class="tile t-${tone} p-${pattern}"><svg class="i" aria-hidden="true"><use href="${document.body.dataset.icons}#${glyph}"></use></svg></span><span>${word}</span>`;
const files = new Map(); // row → { file, done, sha, stop }
let count = 0;

export const uploading = () => [...files.values()].filter((f) => !f.sha && !f.failed);
export const uploaded = () => [...files.values()].filter((f) => f.sha).map((f) => f.sha);

function token(form) { return form.querySelector("[name=csrfmiddlewaretoken]").value; }

async function json(form, method, url, body) {
  const answer = await fetch(url, { method, headers: { "X-CSRFToken": token(form), ...(body && { "Content-Type": "application/json" }) }, body: body && JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.detail ?? `status ${answer.status}`);
  return said;
}

// One piece by XMLHttpRequest, which tells how far it is while it goes.
function piece(form, url, blob, progress, one) {
  return new Promise((resolve, reject) => {
    const xhr = new XMLHttpRequest();
    xhr.open("PATCH", url);
    xhr.setRequestHeader("Content-Type", "application/octet-stream");
    xhr.setRequestHeader("X-CSRFToken", token(form));
    xhr.upload.onprogress = (e) => progress(e.loaded);
    xhr.onload = () => {
      let said = {};
      try { said = JSON.parse(xhr.responseText); } catch { /* a proxy's page */ }
      if (xhr.status === 200) resolve(said);
      else if (xhr.status === 409 && Number.isInteger(said.offset)) resolve({ offset: said.offset, sha256: null });
      else reject(Object.assign(new Error(said.detail ?? `status ${xhr.status}`), { status: xhr.status }));
    };
    xhr.onerror = () => reject(Object.assign(new Error("the console did not answer"), { status: 0 }));
    xhr.onabort = () => reject(Object.assign(new Error("stopped"), { status: -1 }));
    one.stop = () => xhr.abort();
    xhr.send(blob);
  });
}

async function send(form, row, one, changed) {
  const { file } = one, started = performance.now();
  const show = (done) => {
    one.done = done;
    row.querySelector("rect").setAttribute("width", `${(100 * done / file.size).toFixed(1)}%`);
    const rate = (done - one.from) / ((performance.now() - started) / 1000);
    row.querySelector(".num").textContent = `${size(done)} of ${size(file.size)}${rate > 0 ? `, ${size(rate)}/s, ${Math.ceil((file.size - done) / rate)} s left` : ""}`;
  };
  try {
    let at = await json(form, "POST", form.dataset.api, { name: file.name, size_bytes: file.size });
    one.from = at.offset;
    const url = at.links.self, step = at.piece_bytes;
    let tries = 0;
    while (!at.sha256) {
      if (one.isStopped) throw Object.assign(new Error("stopped"), { status: -1 });
      const begin = at.offset;
      show(begin);
      try {
        at = { ...at, ...(await piece(form, `${url}?offset=${begin}`, file.slice(begin, begin + step), (n) => show(Math.min(file.size, begin + n)), one)) };
        tries = 0;
      } catch (error) {
        if (![0, 502, 503, 504].includes(error.status) || ++tries > 5) throw error;
        await new Promise((go) => setTimeout(go, 400 * tries));
        at = { ...at, ...(await json(form, "GET", url)) };
      }
    }
    one.sha = at.sha256;
    row.querySelector("rect").setAttribute("class", "f-done");
    row.querySelector("rect").setAttribute("width", "100%");
    row.querySelector(".st").innerHTML = chip("ok", "ok", "solid", "check");
    row.querySelector(".num").textContent = `${size(file.size)}, sha256 ${at.sha256.slice(0, 8)}`;
    const hidden = document.createElement("input");
    Object.assign(hidden, { type: "hidden", name: "uploads", value: at.sha256 });
    row.append(hidden);
    say(`${file.name} is uploaded`);
  } catch (error) {
    one.failed = true;
    row.querySelector(".st").innerHTML = error.status === -1 ? chip("cancelled", "off", "line", "ban") : chip("failed", "bad", "solid", "x");
    row.querySelector(".num").textContent = error.message;
    say(`${file.name}: ${error.message}`);
  }
  changed();
}

export async function choose(form, list, chosen, changed) {
  const rows = [...chosen].map((file) => {
    const row = document.createElement("li");
    row.id = `up-${count++}`;
    row.innerHTML = `<span class="mono up-n"></span><span class="st">${chip("queued", "off", "line", "clock")}</span><svg class="bar" aria-hidden="true"><rect class="f" width="0%" height="100%"></rect></svg><span class="small muted num"></span><button class="btn btn-q btn-sm" type="button"><svg class="i" aria-hidden="true"><use href="${document.body.dataset.icons}#x"></use></svg></button>`;
    row.querySelector(".up-n").textContent = file.name;
    row.querySelector(".num").textContent = `${size(file.size)}, not started`;
    row.querySelector("button").setAttribute("aria-label", `Stop or remove ${file.name}`);
    const one = { file, done: 0, from: 0, sha: "", failed: false };
    files.set(row, one);
    row.querySelector("button").addEventListener("click", () => {
      one.isStopped = true; one.stop?.();
      if (one.sha || one.failed || !one.started) { files.delete(row); row.remove(); changed(); }
    });
    list.append(row);
    return row;
  });
  changed();
  for (const row of rows) {
    const one = files.get(row);
    if (!one) continue;
    one.started = true;
    row.querySelector(".st").innerHTML = chip("preparing", "act", "line", "progress");
    await send(form, row, one, changed);
  }
}

// The list went with its source: nothing of it is sent along.
export function forgetAll() { for (const one of files.values()) { one.isStopped = true; one.stop?.(); } files.clear(); }
