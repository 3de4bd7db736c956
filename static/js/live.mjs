// How what arrives is shown: the smallest element that changed is filled, the focused one never is.
import { localize } from "./zone.mjs";

const known = new Map(); // id → HTML as it was sent last; what the browser made of it reads differently
const ALARMS = new Set(["failed", "partial", "unknown", "interrupted", "unreachable"]);
let last = -5000, queue = "", timer = 0;

function swapped(el) {
  localize(el);
  dispatchEvent(new CustomEvent("q-swap", { detail: el }));
}

// data-own: the browser counts it. data-keyed: replaced only when its key changes. data-list: merged by child id.
export function fill(id, html) {
  const el = document.getElementById(id);
  if (!el || "own" in el.dataset || known.get(id) === html) return;
  if ("keyed" in el.dataset) replace(el, id, html);
  else if ("list" in el.dataset) merge(el, id, html);
  else if (!el.contains(document.activeElement)) {
    const before = el.textContent;
    el.innerHTML = html;
    known.set(id, html);
    swapped(el);
    if (el.dataset.announce && el.textContent !== before) announce(el);
  }
}

function parse(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return holder.content;
}

function replace(el, id, html) {
  const next = parse(html), key = next.firstElementChild?.dataset.key ?? "";
  if (key === (el.firstElementChild?.dataset.key ?? "")) return;
  const held = el.contains(document.activeElement);
  el.querySelectorAll("[id]").forEach((inner) => known.delete(inner.id));
  el.replaceChildren(next);
  known.set(id, html);
  swapped(el);
  // What was focused is gone with its operation: the page's heading is the next best place.
  if (held) (document.getElementById("h-page") ?? document.getElementById("main")).focus();
}

function merge(el, id, html) {
  const next = parse(html), wanted = new Set([...next.children].map((c) => c.id));
  let after = null;
  for (const child of [...next.children]) {
    const old = document.getElementById(child.id);
    if (old) { after = old; continue; }
    if (after) after.after(child); else el.prepend(child);
    after = child;
  }
  for (const old of [...el.children]) if (!wanted.has(old.id) && !old.contains(document.activeElement)) old.remove();
  document.querySelector(`[data-none="${id}"]`)?.toggleAttribute("hidden", el.children.length > 0);
  known.set(id, html);
  swapped(el);
}

// Forget what was sent, so that it is shown again even if it did not change.
export const forget = (id) => known.delete(id);

function announce(el) {
  const word = el.textContent.trim(), text = `${el.dataset.announce}: ${word}`;
  if (ALARMS.has(word)) alarm(text); else say(text);
}

// Polite, at most one message in five seconds; the newest wins.
export function say(text) {
  queue = text;
  if (timer) return;
  timer = setTimeout(() => { timer = 0; last = performance.now(); document.getElementById("announce").textContent = queue; }, Math.max(50, last + 5000 - performance.now()));
}
export function alarm(text) { document.getElementById("alarm").textContent = text; }

// The server's clock: an offset. A message is late, never early, so the largest offset is the nearest.
let offset = -Infinity;
export function setClock(iso) { offset = Math.max(offset, Date.parse(iso) - performance.now()); }
if (document.body.dataset.now) setClock(document.body.dataset.now);
export const now = () => (offset === -Infinity ? Date.now() : performance.now() + offset);
export const clock = (ms) => new Date(ms).toISOString().slice(11, 19);
const two = (n) => String(n).padStart(2, "0");
export const mmss = (s) => {
  const all = Math.max(0, Math.floor(s)), h = Math.floor(all / 3600), m = Math.floor(all / 60);
  return h ? `${h}:${two(m % 60)}:${two(all % 60)}` : `${m}:${two(all % 60)}`;
};
export const duration = (s) => (s < 9.95 ? `${s.toFixed(1)} s` : s < 59.5 ? `${Math.round(s)} s` : s < 86400 ? mmss(Math.round(s)) : `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`);
export const blind = () => document.body.classList.contains("is-blind");
