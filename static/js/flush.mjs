// New flush: the command to copy follows the form; the button opens when the engine's name is typed. Enter never submits.
import { blind, say } from "./live.mjs";
import { keepPlan } from "./plan.mjs";
import { watch } from "./socket.mjs";

const $ = (id) => document.getElementById(id);
const form = $("flush"), name = $("f-name"), go = $("f-go"), hint = $("f-state"), code = $("code");
const plan = () => $("plan").dataset;
const values = () => ({ engine: $("f-eng").value, mode: form.querySelector("[name=mode]:checked")?.value ?? "wait", timeout: $("f-to").value, reason: $("f-why").value, empty: $("f-empty").checked });
let isSent = false;

function show() {
  const v = values();
  $("f-want").textContent = v.engine;
  document.querySelectorAll("[data-to]").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.to === v.timeout)));
  const body = { engine: v.engine, kind: "flush_cache", params: { timeout_s: Number(v.timeout), mode: v.mode, empty_cache: v.empty }, reason: v.reason };
  code.textContent = `curl -X POST ${location.origin}/api/v1/jobs \\\n  -H "Authorization: Bearer $QUIESCE_TOKEN" \\\n  -H "Content-Type: application/json" \\\n  -H "Idempotency-Key: $(uuidgen)" \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
}

function gate() {
  const v = values(), p = plan();
  $("f-go-text").textContent = `Flush ${p.ranks} rank${p.ranks === "1" ? "" : "s"}`;
  const bad = blind() ? $("why-blind").textContent : isSent ? "Sent once." : p.why ? p.why : !v.reason.trim() ? "Write a reason." : name.value !== v.engine ? "Type the engine’s name to enable the flush." : "";
  if (bad) go.setAttribute("aria-disabled", "true"); else go.removeAttribute("aria-disabled");
  hint.textContent = bad || "Ready. It is checked again before anything is sent.";
}

form.addEventListener("input", () => { show(); gate(); });
form.addEventListener("keydown", (e) => { if (e.key === "Enter" && e.target.tagName === "INPUT") e.preventDefault(); });
// A second click finds the button off; the form's key makes one job of two posts in any case.
form.addEventListener("submit", (e) => { if (go.getAttribute("aria-disabled") === "true") e.preventDefault(); else { isSent = true; setTimeout(gate, 0); } });
document.querySelectorAll("[data-to]").forEach((b) => b.addEventListener("click", () => { $("f-to").value = b.dataset.to; show(); gate(); }));
$("f-eng").addEventListener("change", () => watch([`engine:${$("f-eng").value}`]));
document.body.addEventListener("htmx:afterSwap", () => { say("Plan updated"); gate(); });
addEventListener("q-blind", gate);

keepPlan(() => plan().engine === values().engine && plan().engine, plan, () => htmx.trigger(form.querySelector("[name=mode]:checked"), "change"));
show(); gate();
