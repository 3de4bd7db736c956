// The deadline line. Only attributes and text change, four times a second; nothing here is announced.
import { blind, mmss, now } from "./live.mjs";

const text = (id, value) => { const el = document.getElementById(id); if (el && el.textContent !== value) el.textContent = value; };

// The engine's own figure wobbles by a report's age: only a deadline that moved is taken.
export function retime(end) {
  const svg = document.getElementById("dl");
  if (svg && end && Math.abs(Date.parse(end) - Date.parse(svg.dataset.end)) > 400) svg.dataset.end = end;
}

function tick() {
  document.getElementById("pending")?.classList.toggle("is-off", blind());
  const svg = document.getElementById("dl");
  if (!svg) return;
  const start = Date.parse(svg.dataset.start), total = (Date.parse(svg.dataset.end) - start) / 1000;
  const s = Math.min(total, Math.max(0, (now() - start) / 1000));
  document.getElementById("dl-el").setAttribute("width", `${(total ? 100 * s / total : 100).toFixed(2)}%`);
  text("dl-elapsed", mmss(s)); text("left-s", mmss(Math.ceil(total - s)));
}

export function deadline() {
  tick();
  setInterval(tick, 250);
  addEventListener("q-swap", tick);
  addEventListener("q-blind", tick);
}
