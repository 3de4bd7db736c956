// Engine page: charts of what has arrived, the pending operation, and the "Try it" stream.
import { blind, now, say } from "./live.mjs";
import { chart } from "./chart.mjs";
import { deadline, retime } from "./deadline.mjs";
import "./steer.mjs";

deadline();

// charts: one sample a second, drawn every two, the last 15 minutes
const SPAN_S = 900, cols = { t: [], running: [], waiting: [], filled: [], used: [], tps: [] };
const sum = (ranks, read) => ranks.reduce((n, r) => n + (read(r) ?? 0), 0);
const charts = [
  [chart("c-req", [[], [], []], { series: ["running", "waiting"], span: SPAN_S }), ["running", "waiting"]],
  [chart("c-kv", [[], [], []], { series: ["used and evictable", "used"], max: 100, unit: " %", span: SPAN_S }), ["filled", "used"]],
  [chart("c-tps", [[], []], { series: ["tokens/s"], span: SPAN_S }), ["tps"]],
];
addEventListener("q-data", ({ detail: { topic, data } }) => {
  if (!topic.startsWith("engine:")) return;
  retime(data.pending_operation?.deadline_at);
  const rows = Number(document.getElementById("ranktable").dataset.rows);
  if (data.ranks.length !== rows && !document.querySelector("#try-stop:not([hidden])")) { location.reload(); return; }
  const t = Math.floor(now() / 1000);
  if (!data.online || t === cols.t.at(-1)) return;
  const pages = sum(data.ranks, (r) => r.kv?.total_pages) || 1;
  const sample = { t, running: sum(data.ranks, (r) => r.running), waiting: sum(data.ranks, (r) => r.waiting), filled: 100 * sum(data.ranks, (r) => r.kv && r.kv.used_pages + r.kv.evictable_pages) / pages, used: 100 * sum(data.ranks, (r) => r.kv?.used_pages) / pages, tps: sum(data.ranks, (r) => r.decode_tokens_per_s) };
  for (const [name, col] of Object.entries(cols)) { col.push(sample[name]); if (col.length > SPAN_S) col.shift(); }
});
setInterval(() => { if (!document.hidden && cols.t.length) charts.forEach(([c, names]) => c?.set([cols.t, ...names.map((n) => cols[n])])); }, 2000);

// Try it
const form = document.getElementById("try"), out = document.getElementById("try-out"), use = document.getElementById("try-use"), stop = document.getElementById("try-stop"), send = form.querySelector("[type=submit]");
let running = null;
const problem = (id, input, text) => { const p = document.getElementById(id); p.textContent = text; p.hidden = !text; if (input) { if (text) { input.setAttribute("aria-invalid", "true"); input.setAttribute("aria-describedby", id); } else { input.removeAttribute("aria-invalid"); input.removeAttribute("aria-describedby"); } } };
const prompt = document.getElementById("try-p"), limit = document.getElementById("try-n");
function refuse(field, text) {
  problem("try-p-err", prompt, field === "prompt" ? text : "");
  problem("try-n-err", limit, field === "max_tokens" ? text : "");
  problem("try-err", null, field ? "" : text);
  if (field === "prompt") prompt.focus(); else if (field === "max_tokens") limit.focus();
}
const noUse = [...use.children].map((e) => e.cloneNode(true));
let used = {};
function usage(part) {
  const u = used = { ...used, ...part };
  const share = u.prompt_tokens && u.cached_tokens ? ` (${Math.round(100 * u.cached_tokens / u.prompt_tokens)} %)` : "";
  const rows = [["prompt_tokens", u.prompt_tokens], ["cached_tokens", u.cached_tokens === undefined ? "–" : `${u.cached_tokens}${share}`], ["completion_tokens", u.completion_tokens], ["TTFT", u.ttft_ms === undefined ? "–" : `${u.ttft_ms} ms`], ["dp_rank", u.dp_rank], ["weights", u.weight_version], ["finish", u.finish_reason ?? "–"]];
  use.replaceChildren(...rows.map(([k, v]) => { const s = document.createElement("span"), b = document.createElement("b"); b.textContent = String(v ?? "–"); b.dataset.use = k; s.append(`${k} `, b); return s; }));
}

async function read(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", isDone = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const piece = JSON.parse(line);
      if (piece.text) { out.append(piece.text); out.scrollTop = out.scrollHeight; }
      if (piece.usage && Object.keys(piece.usage).length) usage(piece.usage);
      if (piece.error) { refuse("", `The engine says: ${piece.error}`); return "Completion failed"; }
      isDone ||= Boolean(piece.done);
    }
  }
  if (!isDone) { refuse("", "The stream broke off before its end."); return "Completion broke off"; }
  return "Completion finished";
}

form.addEventListener("submit", async (e) => {
  e.preventDefault();
  if (running) { refuse("", "A completion is still running. One at a time."); return; }
  if (blind()) return;
  running = new AbortController();
  refuse("", "");
  out.textContent = ""; out.classList.add("is-live"); stop.hidden = false; used = {};
  use.replaceChildren(...noUse.map((e) => e.cloneNode(true))); // else the last answer's numbers stand beside this one
  let text = "Completion stopped";
  try {
    const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), signal: running.signal, headers: { Accept: "application/json" } });
    if (answer.ok) { text = await read(answer); if (text === "Completion finished") refuse("", ""); } // "one at a time" is over
    else {
      const body = answer.headers.get("Content-Type")?.startsWith("application/json") ? await answer.json() : { error: `Refused with status ${answer.status}.` };
      refuse(body.field, body.error); text = "Completion refused";
    }
  } catch (error) { if (error.name !== "AbortError") { refuse("", "The console’s answer broke off."); text = "Completion broke off"; } }
  running = null; out.classList.remove("is-live");
  if (document.activeElement === stop) send.focus();
  stop.hidden = true;
  form.dataset.ended = String(Number(form.dataset.ended ?? 0) + 1);
  say(text);
});
stop.addEventListener("click", () => running?.abort());
addEventListener("pagehide", () => running?.abort());
