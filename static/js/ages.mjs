// Ages go on counting while nothing arrives. Past two intervals a number is hatched, past five a dash.
import { duration, forget, now } from "./live.mjs";

const INTERVAL_S = 1, HATCHED = 2 * INTERVAL_S, DASHED = 5 * INTERVAL_S;
const age = (el) => Math.max(0, (now() - Date.parse(el.dataset.at)) / 1000);

function tick() {
  if (document.hidden) return;
  for (const el of document.querySelectorAll("[data-at]")) {
    const text = duration(age(el));
    if (el.textContent !== text) el.textContent = text;
  }
  for (const row of document.querySelectorAll("[data-sample]")) {
    const at = row.querySelector("[data-at]"), old = at ? age(at) : Infinity;
    for (const cell of row.querySelectorAll("[data-n]")) {
      cell.classList.toggle("is-stale", old > HATCHED);
      if (old > DASHED && cell.dataset.n !== "keep" && cell.textContent !== "–" && cell.textContent !== "not known") { cell.textContent = "–"; forget(cell.id); }
    }
  }
}
setInterval(tick, 500);
addEventListener("q-swap", () => tick.soon ??= setTimeout(() => { tick.soon = null; tick(); }, 0));
tick();
