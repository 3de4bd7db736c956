// Shell behaviour on every page: theme, zone, palette, keys, copy, refused buttons, connection, table roles.
import { say } from "./live.mjs";
import * as zone from "./zone.mjs";
import "./ages.mjs";
if ("socket" in document.body.dataset) await import("./socket.mjs");

const $ = (sel, root = document) => root.querySelector(sel);
const all = (sel, root = document) => [...root.querySelectorAll(sel)];

// theme
$("[data-theme-toggle]")?.addEventListener("click", () => {
  const next = document.documentElement.dataset.bsTheme === "dark" ? "light" : "dark";
  localStorage.setItem("q-theme", next);
  document.documentElement.dataset.bsTheme = next;
  dispatchEvent(new Event("q-theme"));
});

zone.show();
$("[data-zone]")?.addEventListener("click", zone.toggle);

// copy
document.addEventListener("click", async (e) => {
  const copy = e.target.closest("[data-copy], [data-copy-url]");
  if (copy) {
    const text = copy.dataset.copy ? $(copy.dataset.copy).textContent : location.href;
    await navigator.clipboard?.writeText(text).catch(() => {});
    say("Copied");
    return;
  }
  const refused = e.target.closest('.btn[aria-disabled="true"]');
  if (refused) {
    e.preventDefault(); e.stopImmediatePropagation();
    const why = document.getElementById(refused.getAttribute("aria-describedby"));
    if (why ?? refused.title) say(why?.textContent ?? refused.title);
    return;
  }
  const b = e.target.closest("[data-say]");
  if (b) say(b.dataset.say);
}, true);

// the More menu is a disclosure: Escape closes it and returns focus, so does a click or focus elsewhere
for (const menu of all("[data-menu]")) {
  menu.addEventListener("keydown", (e) => { if (e.key === "Escape" && menu.open) { menu.open = false; $("summary", menu).focus(); } });
  document.addEventListener("click", (e) => { if (menu.open && !menu.contains(e.target)) menu.open = false; });
  menu.addEventListener("focusout", (e) => { if (e.relatedTarget && !menu.contains(e.relatedTarget)) menu.open = false; });
}

// dialogs: opener named by data-dialog; focus starts on the least harmful control and returns to the opener
const opener = {};
document.addEventListener("click", (e) => {
  const b = e.target.closest("[data-dialog]");
  if (b) { e.preventDefault(); const d = document.getElementById(b.dataset.dialog); opener[d.id] = b; d.showModal(); $("[data-first]", d)?.focus(); }
  const c = e.target.closest("[data-cancel]");
  if (c) c.closest("dialog").close();
});
document.addEventListener("close", (e) => { if (e.target.matches("dialog[data-form]")) opener[e.target.id]?.focus(); }, true);

// segmented buttons keep one pressed
document.addEventListener("click", (e) => {
  const b = e.target.closest(".seg > button");
  if (b) all("button", b.parentElement).forEach((x) => x.setAttribute("aria-pressed", String(x === b)));
});

// palette: the server searches, an answer that is not the newest is dropped
const pal = $("#palette");
const input = $("#pal-q");
const list = $("#pal-list");
let asked = 0, waiting = 0;
const options = () => all('[role="option"]', list);
function select(option) {
  options().forEach((o) => o.setAttribute("aria-selected", String(o === option)));
  if (option) { input.setAttribute("aria-activedescendant", option.id); option.scrollIntoView({ block: "nearest" }); }
  else input.removeAttribute("aria-activedescendant");
}
async function search() {
  const mine = ++asked;
  try {
    const answer = await fetch(`${pal.dataset.url}?q=${encodeURIComponent(input.value)}`);
    const html = answer.ok && !answer.redirected ? await answer.text() : "";
    if (mine !== asked) return;
    list.innerHTML = html;
  } catch { if (mine !== asked) return; list.innerHTML = ""; }
  $("#pal-none").hidden = Boolean(options().length);
  select(options()[0]);
}
function open() { pal.showModal(); input.value = ""; search(); }
if (pal) {
  input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 80); });
  input.addEventListener("keydown", (e) => {
    const found = options(), at = found.findIndex((o) => o.getAttribute("aria-selected") === "true");
    if ((e.key === "ArrowDown" || e.key === "ArrowUp") && found.length) { e.preventDefault(); select(found[(at + (e.key === "ArrowDown" ? 1 : found.length - 1)) % found.length]); }
    if (e.key === "Enter" && found[at]) location.href = found[at].dataset.href;
  });
  pal.addEventListener("click", (e) => {
    const option = e.target.closest('[role="option"]');
    if (option) location.href = option.dataset.href;
    else if (e.target === pal) pal.close();
  });
  all("[data-palette]").forEach((b) => b.addEventListener("click", open));
}

// key list
const keys = $("#keys");
$("[data-keys]")?.addEventListener("click", () => keys.showModal());
if (keys) $("[data-close]", keys).addEventListener("click", () => keys.close());

// keys: none of them changes an engine
let chord = "";
document.addEventListener("keydown", (e) => {
  if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "k") { e.preventDefault(); if (pal && !pal.open) open(); return; }
  if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]") || e.target.matches("input, textarea, select")) return;
  if (e.key === "?") keys?.showModal();
  if (e.key === "/") { const s = $("[data-slash]"); if (s) { e.preventDefault(); s.focus(); } }
  if (chord === "g") { const to = $(`[data-go="${CSS.escape(e.key)}"]`); if (to) location.href = to.href; }
  if (e.key === "j" && chord !== "g" || e.key === "k") {
    const rows = all("tbody tr").map((tr) => $("a", tr)).filter(Boolean), at = rows.indexOf(document.activeElement);
    rows[Math.max(0, Math.min(rows.length - 1, at + (e.key === "j" ? 1 : -1)))]?.focus();
  }
  chord = e.key === "g" ? "g" : "";
});

// display:grid on rows drops table semantics in some browsers: say them again
function roles(root) {
  all(".stackable > table", root).forEach((t) => t.setAttribute("role", "table"));
  all(".stackable > table thead, .stackable > table tbody", root).forEach((x) => x.setAttribute("role", "rowgroup"));
  all(".stackable tr", root).forEach((x) => x.setAttribute("role", "row"));
  all(".stackable td", root).forEach((x) => x.setAttribute("role", "cell"));
  all(".stackable thead th", root).forEach((x) => x.setAttribute("role", "columnheader"));
  all(".stackable tbody th", root).forEach((x) => x.setAttribute("role", "rowheader"));
}
roles(document);

// a table wider than its card scrolls inside it, so the keyboard must reach it
const watch = new ResizeObserver((seen) => seen.forEach(({ target: t }) => {
  if (t.scrollWidth > t.clientWidth) { t.tabIndex = 0; t.setAttribute("role", "region"); t.setAttribute("aria-label", "Table, scrolls sideways"); }
  else { t.removeAttribute("tabindex"); t.removeAttribute("role"); t.removeAttribute("aria-label"); }
}));
all(".stackable").forEach((t) => watch.observe(t));
addEventListener("q-swap", ({ detail: el }) => {
  if (el.matches("tbody")) roles(el.closest(".stackable").parentElement);
  else { roles(el); all(".stackable", el).forEach((t) => watch.observe(t)); }
});
