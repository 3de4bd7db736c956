// Which actions are off now, and why: refused buttons stay focusable and say their reason.
import { blind } from "./live.mjs";

function set(el, why) {
  const off = Boolean(why);
  if (off === (el.getAttribute("aria-disabled") === "true") && el.getAttribute("aria-describedby") === (why || null)) return;
  if (off) { el.setAttribute("aria-disabled", "true"); el.setAttribute("aria-describedby", why); }
  else { el.removeAttribute("aria-disabled"); el.removeAttribute("aria-describedby"); }
  el.title = off ? document.getElementById(why).textContent : "";
}

export function gates() {
  const dark = blind();
  for (const el of document.querySelectorAll("[data-gate]:not([data-denied])")) {
    const reason = document.getElementById(el.dataset.gate);
    set(el, dark ? "why-blind" : reason.textContent.trim() ? reason.id : "");
  }
  for (const el of document.querySelectorAll("[data-acts]:not([data-denied])")) set(el, dark ? "why-blind" : "");
}
