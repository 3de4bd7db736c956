// One formatter for every <time>: UTC, or the viewer's zone by the toggle in the header.
const viewer = Intl.DateTimeFormat().resolvedOptions().timeZone;
let name = localStorage.getItem("q-zone") === "viewer" ? viewer : "UTC";

export function localize(root = document) {
  if (name === "UTC" && root !== document) return; // painted in UTC already
  const fmt = new Intl.DateTimeFormat("en-GB", { timeZone: name, hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const day = new Intl.DateTimeFormat("en-GB", { timeZone: name, day: "numeric", month: "short", year: "numeric" }); // data-day: what lives long
  root.querySelectorAll("time[datetime]").forEach((t) => { t.textContent = ("day" in t.dataset ? day : fmt).format(new Date(t.dateTime)); });
}

export function show() {
  localize();
  const label = name === "UTC" ? "UTC" : name.split("/").pop().replace("_", " ");
  document.querySelectorAll("[data-zone], [data-zone-name]").forEach((b) => { b.textContent = label; });
}

export function toggle() {
  name = name === "UTC" && viewer !== "UTC" ? viewer : "UTC";
  localStorage.setItem("q-zone", name === "UTC" ? "utc" : "viewer");
  show();
}
