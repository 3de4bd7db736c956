// New weight update: the plan and the command follow the form; the button opens when the engine's name is typed.
import { blind, say } from "./live.mjs";
import { keepPlan } from "./plan.mjs";
import { watch } from "./socket.mjs";
import { choose, forgetAll, uploaded, uploading } from "./uploading.mjs";

const $ = (id) => document.getElementById(id);
const form = $("wform"), go = $("w-go"), hint = $("w-state"), code = $("code");
const plan = () => $("plan").dataset;
const value = (name) => form.elements[name]?.value?.trim() ?? "";
const source = () => form.querySelector("[name=source]:checked")?.value ?? "disk";
let isSent = false, timer = 0;

function params() {
  const base = { timeout_s: Number(value("timeout_s")), mode: form.querySelector("[name=mode]:checked")?.value, flush_cache: $("w-flush").checked, torch_empty_cache: $("w-empty").checked, ...(value("weight_version") && { weight_version: value("weight_version") }) };
  const fixed = $("w-path-is")?.dataset;
  if (fixed) return { model_path: fixed.path, ...base, weight_version: value("version").split("@")[0], ...(fixed.checksum && { expected_checksum: fixed.checksum }) };
  if (source() === "disk") return { model_path: value("path").startsWith("/") ? value("path") : `${$("w-root").selectedOptions[0]?.dataset.path ?? ""}/${value("path")}`, ...base };
  if (source() === "tensors") return { uploads: named(), ...base };
  return { group: { master_address: value("master_address"), master_port: Number(value("master_port")), rank_offset: Number(value("rank_offset")), world_size: Number(value("world_size")), group_name: value("group_name"), backend: value("backend") }, receive_timeout_s: Number(value("receive_timeout_s")), ...base };
}
const named = () => [...form.querySelectorAll("[name=uploads]:checked")].map((x) => x.value).concat(uploaded());

function show() {
  $("w-want") && ($("w-want").textContent = value("engine"));
  document.querySelectorAll("[data-to]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.to === value("timeout_s"))));
  const kind = { disk: "update_weights_from_disk", tensors: "update_weights_from_tensor", distributed: "update_weights_from_distributed" }[source()];
  const body = { engine: value("engine"), kind, params: params(), reason: value("reason") };
  code.textContent = `curl -X POST '${location.origin}/api/v1/jobs?dry_run=true' \\\n  -H "Authorization: Bearer $QUIESCE_TOKEN" \\\n  -H "Content-Type: application/json" \\\n  -H "Idempotency-Key: $(uuidgen)" \\\n  -d '${JSON.stringify(body, null, 1).replaceAll("'", "'\\''")}'\n# without ?dry_run=true it is done`;
}

function gate() {
  const p = plan(), waiting = uploading();
  if (!form.querySelector("[name=version]")) { $("w-go-text").textContent = `Update ${p.ranks} rank${p.ranks === "1" ? "" : "s"}`; $("w-ranks").textContent = p.ranks; }
  const bad = blind() ? $("why-blind").textContent : isSent ? "Sent once." : p.why ? p.why
    : source() === "tensors" && waiting.length ? `The upload is not complete: ${waiting.length} file${waiting.length > 1 ? "s" : ""} on the way.`
    : source() === "tensors" && !named().length && !form.querySelector("[name=version]") ? "Choose a file."
    : !value("reason") ? "Write a reason." : value("confirm") !== value("engine") ? "Type the engine’s name to enable it." : "";
  if (bad) go.setAttribute("aria-disabled", "true"); else go.removeAttribute("aria-disabled");
  hint.textContent = bad || "Ready. The plan is checked again before anything is sent.";
}

// The plan asks the engine about the folder: once typing has paused, and only what concerns it.
const PLANNED = new Set(["engine", "source", "root", "path", "uploads", "weight_version", "mode", "timeout_s", "flush_cache", "master_address", "master_port", "rank_offset", "world_size", "group_name", "backend", "receive_timeout_s"]);
let newest = 0;
function replan(wait) {
  clearTimeout(timer);
  timer = setTimeout(async () => {
    const mine = ++newest, query = new URLSearchParams(new FormData(form));
    for (const name of ["csrfmiddlewaretoken", "reason", "confirm"]) query.delete(name);
    try {
      const answer = await fetch(`${form.dataset.plan}?${query}`);
      if (mine !== newest || !answer.ok || answer.redirected) return;
      const held = document.activeElement === $("plan");
      $("plan").outerHTML = await answer.text();
      if (held) $("plan").focus();
      say("Plan updated"); gate();
    } catch { /* the banner says that there is no connection */ }
  }, wait);
}

form.addEventListener("input", (e) => { show(); gate(); if (PLANNED.has(e.target.name)) replan(e.target.matches("[type=radio], [type=checkbox], select") ? 0 : 500); });
form.addEventListener("change", (e) => {
  if (e.target.id === "w-files") { choose(form, $("w-up"), e.target.files, () => { show(); gate(); replan(0); }); e.target.value = ""; }
  if (e.target.id === "w-eng" && e.target.matches("select")) { watch([`engine:${value("engine")}`]); htmx.ajax("GET", `/weights/source?engine=${value("engine")}&source=${source()}`, { target: "#src", swap: "outerHTML" }); }
  if (e.target.name === "source") forgetAll();
});
form.addEventListener("keydown", (e) => { if (e.key === "Enter" && e.target.tagName === "INPUT") e.preventDefault(); });
form.addEventListener("submit", (e) => { if (go.getAttribute("aria-disabled") === "true") e.preventDefault(); else { isSent = true; setTimeout(gate, 0); } });
document.querySelectorAll("[data-to]").forEach((b) => b.addEventListener("click", () => { form.elements.timeout_s.value = b.dataset.to; show(); gate(); replan(0); }));
document.body.addEventListener("htmx:afterSwap", () => { show(); gate(); replan(0); });
addEventListener("beforeunload", (e) => { if (uploading().length && !isSent) e.preventDefault(); });
addEventListener("q-blind", gate);

keepPlan(() => plan().engine === value("engine") && plan().engine, plan, () => replan(0));
show(); gate();
