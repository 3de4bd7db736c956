// Attach or switch: fields of the chosen backend, overrides, and the plan of what is typed. No secret leaves the form but when it is sent.
import { blind, say } from "./live.mjs";
import { keepPlan } from "./plan.mjs";

const $ = (id) => document.getElementById(id);
const form = $("attach"), go = $("a-go"), hint = $("a-state"), { engine, act } = form.dataset;
const plan = () => $("plan").dataset;
const chosen = () => form.querySelector("[name=backend]:checked")?.value ?? form.elements.backend.value;
let isSent = false, timer = 0, newest = 0;

function show() {
  const p = plan(), ranks = `${p.ranks} rank${p.ranks === "1" ? "" : "s"}`;
  $("a-go-text").textContent = act === "switch" ? `Switch ${ranks} to ${chosen()}` : `Attach ${chosen()} to ${ranks}`;
  document.querySelectorAll("[data-to]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.to === form.elements.timeout_s.value)));
}
function gate() {
  const bad = blind() ? $("why-blind").textContent : isSent ? "Sent once." : plan().why || (!$("a-why").value.trim() ? "Write a reason." : "");
  if (bad) go.setAttribute("aria-disabled", "true"); else go.removeAttribute("aria-disabled");
  hint.textContent = bad || "Ready. Every rank probes before anything changes.";
}

// For the plan it is enough to know that a secret is set.
function described() {
  const body = new FormData(form);
  const secrets = form.querySelectorAll("input[data-secret]");
  for (const name of new Set([...secrets].map((el) => el.name))) {
    body.delete(name);
    form.querySelectorAll(`[name="${CSS.escape(name)}"]`).forEach((el) => body.append(name, "secret" in el.dataset && el.value ? "set" : el.value));
  }
  return new URLSearchParams(body);
}
function replan(wait) {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    const mine = ++newest;
    try {
      const answer = await fetch(form.dataset.plan + location.search, { method: "POST", body: described() });
      if (mine !== newest || !answer.ok || answer.redirected) return;
      const side = $("side"), pressed = side.querySelector("[data-cfg][aria-pressed=true]")?.dataset.cfg;
      if (side.contains(document.activeElement)) return; // someone reads it
      side.outerHTML = await answer.text();
      $("side").querySelector(`[data-cfg="${pressed}"]`)?.click();
      say("Plan updated"); // What was typed before this script ran, or is put back by the browser, has no plan yet.
const isOther = (el) => /checkbox|radio/.test(el.type) ? el.checked !== el.defaultChecked : el.type !== "select-one" && el.value !== el.defaultValue;
addEventListener("pageshow", () => { if ([...form.elements].some(isOther)) { show(); replan(0); } });
show(); gate();
    } catch { /* the banner says that there is no connection */ }
  }, wait);
}

// An override of a secret is typed unseen.
function veil(li) {
  const isSecret = "secret" in li.querySelector("[name=o-setting]").selectedOptions[0].dataset, input = li.querySelector("[name=o-value]");
  input.type = isSecret ? "password" : "text";
  input.autocomplete = isSecret ? "new-password" : "off";
  if (isSecret) input.dataset.secret = ""; else delete input.dataset.secret;
}

form.addEventListener("input", (e) => {
  show(); gate();
  if (e.target.name === "o-setting") { e.target.closest("li").querySelector("[name=o-value]").value = ""; veil(e.target.closest("li")); }
  if (e.target.name === "backend") htmx.ajax("GET", `${form.dataset.fields}?backend=${chosen()}`, { target: "#settings", swap: "outerHTML" });
  else replan(e.target.matches("[type=radio], [type=checkbox], select") ? 0 : 500);
});
document.addEventListener("click", (e) => {
  const tab = e.target.closest("[data-cfg]");
  if (tab) document.querySelectorAll("[data-cfg]").forEach((b) => { $(b.dataset.cfg).hidden = b !== tab; b.setAttribute("aria-pressed", String(b === tab)); });
  if (e.target.closest("#ovr-add")) {
    $("ovr").append($("ovr-new").content.cloneNode(true));
    $("ovr").lastElementChild.querySelector("select").focus();
    veil($("ovr").lastElementChild);
    say("Override added");
  }
  const remove = e.target.closest("[data-remove]");
  if (remove) { remove.closest("li").remove(); $("ovr-add").focus(); say("Override removed"); replan(0); }
  const preset = e.target.closest("[data-to]");
  if (preset) { form.elements.timeout_s.value = preset.dataset.to; show(); gate(); replan(0); }
});
document.body.addEventListener("htmx:afterSwap", () => { show(); gate(); replan(0); });
form.addEventListener("keydown", (e) => { if (e.key === "Enter" && e.target.tagName === "INPUT") e.preventDefault(); });
form.addEventListener("submit", (e) => { if (go.getAttribute("aria-disabled") === "true") e.preventDefault(); else { isSent = true; setTimeout(gate, 0); } });
addEventListener("q-blind", gate);

keepPlan(() => engine, plan, () => replan(0));
show(); gate();
