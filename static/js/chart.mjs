// uPlot in the page's colours, with operation markers, a y range that does not jump, and a table twin.
const { uPlot } = globalThis; // vendor/uPlot.iife.min.js, deferred, so it has run before any module

const probe = document.createElement("i");
document.documentElement.append(probe);
// light-dark() in a custom property resolves only where it is used: ask for a used colour.
export const color = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };

const DASH = [[], [5, 3], [1.5, 3]];

function marks(list) {
  return { hooks: { draw: [(u) => {
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = color("--q-ink-3"); ctx.fillStyle = color("--q-ink-2"); ctx.lineWidth = devicePixelRatio; ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.font = `${11 * devicePixelRatio}px Inter, sans-serif`; ctx.textBaseline = "top";
    let edge = -1, row = 0;
    for (const m of list) {
      const x = u.valToPos(m.t, "x", true);
      ctx.beginPath(); ctx.moveTo(x, u.bbox.top); ctx.lineTo(x, u.bbox.top + u.bbox.height); ctx.stroke();
      const w = ctx.measureText(m.label).width + 6 * devicePixelRatio, flip = x + w > u.bbox.left + u.bbox.width;
      ctx.textAlign = flip ? "right" : "left";
      const from = flip ? x - w : x;
      row = from < edge ? row + 1 : 0; edge = Math.max(edge, from + w);
      ctx.fillText(m.label, x + (flip ? -4 : 4) * devicePixelRatio, u.bbox.top + 1 + row * 13 * devicePixelRatio);
    }
    ctx.restore();
  }] } };
}

export function chart(id, data, { series, max, unit = "", markers = [], span = 0 }) {
  const host = document.getElementById(id);
  if (!host) return null;
  let plot;
  const build = () => {
    plot?.destroy();
    const axis = { stroke: color("--q-ink-3"), font: "11px Inter, sans-serif", grid: { stroke: color("--q-grid"), width: 1 }, ticks: { show: false } };
    plot = new uPlot({
      width: host.clientWidth, height: host.clientHeight, tzDate: (ts) => uPlot.tzDate(new Date(ts * 1000), "Etc/UTC"),
      legend: { show: false }, cursor: { y: false, points: { size: 6 } }, padding: [8, 12, 0, 0],
      scales: { ...(span && { x: { range: (u, lo, hi) => { const end = hi ?? Date.now() / 1000; return [Math.max(end - span, Math.min(lo ?? end, end - 120)), end]; } } }), y: { range: (u, lo, hi) => [0, max ?? Math.max(10, Math.ceil(hi * 1.15 / 10) * 10)] } },
      axes: [{ ...axis, size: 22, gap: 4, space: 60, values: (u, v) => v.map((t) => new Date(t * 1000).toISOString().slice(11, 16)) }, { ...axis, size: 40, gap: 6, space: 32, values: (u, v) => v.map((n) => `${n}${unit}`) }],
      series: [{}, ...series.map((name, i) => ({ label: name, stroke: color(`--q-c${i + 1}`), width: 1.75, dash: DASH[i], points: { show: false }, fill: i === 0 ? color("--q-accent-tint") : undefined }))],
      plugins: [marks(markers)],
    }, data, host);
  };
  build();
  document.fonts.load("11px Inter").then(build); // a canvas does not repaint when its font arrives
  addEventListener("q-theme", build);
  new ResizeObserver(() => { if (plot.width !== host.clientWidth) plot.setSize({ width: host.clientWidth, height: host.clientHeight }); }).observe(host);
  twin(id, () => data, series, unit);
  return { set: (next) => { data = next; plot.setData(next); } };
}

function twin(id, data, series, unit) {
  const box = document.querySelector(`[data-twin="${id}"]`);
  box?.addEventListener("toggle", () => {
    if (!box.open) return;
    const d = data(), rows = [];
    for (let i = d[0].length - 1; i >= 0; i -= 10) rows.push(`<tr><td>${new Date(d[0][i] * 1000).toISOString().slice(11, 19)}</td>${series.map((_, k) => `<td class="num">${d[k + 1][i] === null ? "–" : `${Math.round(d[k + 1][i])}${unit}`}</td>`).join("")}</tr>`);
    box.querySelector("table")?.remove();
    box.insertAdjacentHTML("beforeend", `<table class="table"><thead><tr><th scope="col">Time, UTC</th>${series.map((s) => `<th scope="col" class="num">${s}</th>`).join("")}</tr></thead><tbody>${rows.slice(0, 10).join("")}</tbody></table>`);
  });
}
