// An engine's backend page: charts of what has arrived. The numbers and the breakers come as fragments.
import { now } from "./live.mjs";
import { chart } from "./chart.mjs";

const SPAN_S = 900, cols = { t: [], hit: [], read: [], write: [] };
const table = document.getElementById("ranktable");
const charts = [
  [chart("c-l3", [[], []], { series: ["L3 hits"], max: 100, unit: " %", span: SPAN_S }), ["hit"]],
  [chart("c-mb", [[], [], []], { series: ["read", "write"], span: SPAN_S }), ["read", "write"]],
];
const sum = (all, read) => all.reduce((n, one) => n + read(one), 0);

addEventListener("q-data", ({ detail: { topic, data } }) => {
  if (!topic.startsWith("engine:")) return;
  // Another backend, or another number of ranks, is another page.
  if (data.ranks.length !== Number(table.dataset.rows) || (data.storage?.config_id ?? "") !== table.dataset.attached) { location.reload(); return; }
  const t = Math.floor(now() / 1000), told = data.ranks.map((r) => r.storage).filter(Boolean);
  if (!data.online || t === cols.t.at(-1) || !told.length) return;
  const rates = told.map((s) => s.hit_rate).filter((rate) => rate !== null);
  const sample = { t, hit: rates.length ? 100 * sum(rates, (x) => x) / rates.length : null, read: sum(told, (s) => s.read_bytes_per_s) / 1e6, write: sum(told, (s) => s.write_bytes_per_s) / 1e6 };
  for (const [name, col] of Object.entries(cols)) { col.push(sample[name]); if (col.length > SPAN_S) col.shift(); }
});
setInterval(() => { if (!document.hidden && cols.t.length) charts.forEach(([c, names]) => c?.set([cols.t, ...names.map((n) => cols[n])])); }, 2000);
