// The one socket: what it brings, and how it is seen within three seconds that it brings nothing.
import { alarm, blind, clock, fill, now, say, setClock } from "./live.mjs";
import { gates } from "./gates.mjs";

const QUIET_MS = 1900, BLIND_MS = 2500, PING_MS = 900, OPENING_MS = 2500;
const RETRY_MS = [200, 700, 1500, 2500, 4000];
const body = document.body, chip = document.getElementById("live");
let topics = (body.dataset.topics || "").split(" ").filter(Boolean);
let socket = null, heardAt = performance.now(), heardClock = now(), pingedAt = 0, openedAt = 0, tries = 0, retryAt = 0, isOver = false, wasLive = false;

function open() {
  clearTimeout(open.timer); retryAt = 0; openedAt = performance.now();
  const mine = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live/`);
  socket = mine;
  mine.onmessage = (e) => { if (mine === socket) take(JSON.parse(e.data)); };
  mine.onclose = (e) => { if (mine === socket) closed(e.code); };
}

function closed(code) {
  socket = null;
  if (code === 4401) { over("<b>Your log-in has ended.</b> What you see is not kept up to date any more.", "Sign in again"); return; }
  if (code === 4403) { over("<b>Your roles have changed.</b> This page shows what you could see before, and is not kept up to date.", "Load it again"); return; }
  const wait = RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)] * (0.8 + 0.4 * Math.random());
  retryAt = performance.now() + wait;
  open.timer = setTimeout(open, wait);
  look();
}

function take(message) {
  heardAt = performance.now();
  if (message.now) { setClock(message.now); heardClock = Date.parse(message.now); }
  if (message.type === "hello") {
    tries = 0;
    if (topics.length) socket.send(JSON.stringify({ type: "subscribe", topics }));
    if (wasLive) say("The connection is back and the page is up to date");
    wasLive = true;
  }
  if (message.type === "update") {
    for (const [id, html] of message.fragments) fill(id, html);
    dispatchEvent(new CustomEvent("q-data", { detail: { topic: message.topic, data: message.data } }));
    gates();
  }
  // What the server has just made a page of is gone: removed, or the roles changed while no socket was open.
  if (message.type === "gone" && topics.includes(message.topic)) over("<b>This is not there any more, or not for you to see.</b> This page shows what you could see before, and is not kept up to date.", "Load it again");
  look();
}

// Other topics, for a page whose subject can change.
export function watch(next) {
  if (socket?.readyState === WebSocket.OPEN) {
    socket.send(JSON.stringify({ type: "unsubscribe", topics }));
    socket.send(JSON.stringify({ type: "subscribe", topics: next }));
  }
  topics = next;
}

function look() {
  const quiet = performance.now() - heardAt;
  const isOpen = socket?.readyState === WebSocket.OPEN && tries === 0;
  const state = isOver || quiet > BLIND_MS ? "offline" : isOpen && quiet < QUIET_MS ? "live" : "reconnecting";
  const since = clock(heardClock);
  const text = state === "live" ? "Live" : state === "reconnecting" ? (wasLive ? "Reconnecting" : "Connecting") : `Offline<span class="live-more"> since ${since}</span>`;
  if (chip.dataset.state !== state || (state === "offline" && !chip.textContent.includes(since))) {
    chip.dataset.state = state;
    chip.innerHTML = text;
    const isBlind = state === "offline";
    if (isBlind !== blind()) {
      body.classList.toggle("is-blind", isBlind);
      document.getElementById("blind").hidden = !isBlind;
      document.getElementById("blind-since").textContent = `${since} UTC`;
      if (isBlind) alarm(`Offline since ${since}`);
      dispatchEvent(new Event("q-blind"));
      gates();
    }
  }
  if (state === "offline" && !isOver) {
    const left = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
    document.getElementById("blind-try").textContent = retryAt ? `Next try in ${left} s.` : "Trying now.";
  }
}

function over(html, act) {
  isOver = true;
  look();
  document.querySelector("#blind > div").innerHTML = html;
  document.getElementById("blind-now").textContent = act;
}

document.getElementById("blind-now").addEventListener("click", () => {
  if (isOver) location.href = `${body.dataset.login}?next=${encodeURIComponent(location.pathname + location.search)}`;
  else if (!socket) open();
});

setInterval(() => {
  if (isOver || document.hidden) return;
  const t = performance.now();
  if (socket?.readyState === WebSocket.OPEN) {
    if (t - pingedAt > PING_MS) { pingedAt = t; socket.send('{"type":"ping"}'); }
    if (t - heardAt > BLIND_MS) drop();
  } else if (socket && t - openedAt > OPENING_MS) drop();
  look();
}, 250);

// A server that hangs keeps its connection: do not wait for its goodbye.
function drop() { const old = socket; socket = null; old.onclose = null; old.close(); closed(0); }

document.addEventListener("visibilitychange", () => {
  if (document.hidden || isOver) return;
  heardAt = performance.now(); // a hidden page does not ping: give it the time to
  if (!socket) open();
});
addEventListener("pageshow", (e) => { if (e.persisted) location.reload(); });
open();
