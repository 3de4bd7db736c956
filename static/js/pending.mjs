// The pending list: each row counts down by itself; a deadline that passes says by how much.
import { blind, mmss, now } from "./live.mjs";
import "./steer.mjs";

function tick() {
  if (blind()) return;
  for (const row of document.querySelectorAll("#pending_rows > tr[data-end]")) {
    const left = (Date.parse(row.dataset.end) - now()) / 1000, cell = document.getElementById(`${row.id}-left`);
    const text = left < 0 ? `${mmss(-left)} over` : mmss(Math.ceil(left));
    if (cell && cell.textContent !== text) cell.textContent = text;
  }
}

// Deadlines move. A row that has ended goes, also under the focus, which moves to the heading.
addEventListener("q-data", ({ detail: { topic, data } }) => {
  if (topic !== "pending") return;
  const open = new Map(data.items.map((item) => [`p-${item.id}`, item]));
  for (const row of document.querySelectorAll("#pending_rows > tr")) {
    const item = open.get(row.id);
    if (item?.deadline_at) row.dataset.end = item.deadline_at;
    if (item) continue;
    if (row.contains(document.activeElement)) document.getElementById("h-page").focus();
    row.remove();
  }
  document.querySelector("[data-none=pending_rows]").hidden = open.size > 0;
});

tick();
setInterval(tick, 500);
