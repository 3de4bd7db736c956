// The small forms: the command follows the form; class C opens when the engine's name is typed. Enter never submits.
import { blind, say } from "./live.mjs";
import { keepPlan } from "./plan.mjs";

const $ = (id) => document.getElementById(id);
const form = $("oform"), go = $("o-go"), hint = $("o-state"), { engine, kind } = form.dataset;
let isSent = false;

function params() {
  const found = {};
  for (const el of form.querySelectorAll("#o-what input")) {
    if ("flag" in el.dataset) found[el.name] = el.checked;
    else if (el.closest("[hidden]")) continue;
    else if (el.type === "checkbox") { found[el.name] ??= []; if (el.checked) found[el.name].push(el.value); }
    else if (el.type === "radio") { if (el.checked) found[el.name] = el.value; }
    else found[el.name] = el.name === "timeout_s" ? Number(el.value) : el.value.trim();
  }
  if (kind === "abort_requests" && !found.rid) { delete found.rid; found.abort_all = true; }
  return found;
}
function show() {
  const body = { engine, kind, params: params(), reason: $("o-why").value };
  $("code").textContent = `curl -X POST '${location.origin}/api/v1/jobs?dry_run=true' \\\n  -H "Authorization: Bearer $QUIESCE_TOKEN" \\\n  -H "Content-Type: application/json" \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'\n# without ?dry_run=true it is done`;
}
// A detach that is forced waits for nothing, so it has no mode; and it is confirmed by name.
const force = form.querySelector("[data-flag][name=force]");
function forced() {
  if (!force) return;
  $("o-when").hidden = force.checked; $("o-typed").hidden = !force.checked;
  go.classList.toggle("btn-bad", force.checked); go.classList.toggle("btn-act", !force.checked);
}
function gate() {
  const why = $("plan").dataset.why, name = $("o-typed")?.hidden ? null : $("o-name");
  const bad = blind() ? $("why-blind").textContent : isSent ? "Sent once." : why ? why : !$("o-why").value.trim() ? "Write a reason." : name && name.value !== engine ? "Type the engine’s name to enable it." : "";
  if (bad) go.setAttribute("aria-disabled", "true"); else go.removeAttribute("aria-disabled");
  hint.textContent = bad || "Ready. It is checked again before anything is sent.";
}
form.addEventListener("input", () => { forced(); show(); gate(); });
form.addEventListener("keydown", (e) => { if (e.key === "Enter" && e.target.tagName === "INPUT") e.preventDefault(); });
form.addEventListener("submit", (e) => { if (go.getAttribute("aria-disabled") === "true") e.preventDefault(); else { isSent = true; setTimeout(gate, 0); } });
document.body.addEventListener("htmx:afterSwap", () => { say("Plan updated"); gate(); });
addEventListener("q-blind", gate);

keepPlan(() => engine, () => $("plan").dataset, reread);
// Through the fields where there are some: of two readings of theirs the older is given up, whichever is answered first.
function reread() {
  if ($("o-what")) { htmx.trigger($("o-what"), "change"); return; }
  const query = new URLSearchParams(new FormData(form));
  for (const name of ["csrfmiddlewaretoken", "reason", "confirm"]) query.delete(name);
  htmx.ajax("GET", `${form.action}/plan?${query}`, { target: "#plan", swap: "outerHTML" });
}
forced(); show(); gate();
