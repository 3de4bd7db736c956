// Fleet: what is typed hides rows at once, Enter asks the server; the empty page goes when an engine is registered.
document.querySelector("[data-slash]")?.addEventListener("input", (e) => {
  for (const tr of document.querySelectorAll("#engines tbody tr")) tr.hidden = !tr.textContent.toLowerCase().includes(e.target.value.toLowerCase());
});
addEventListener("q-data", ({ detail: { data } }) => { if (document.getElementById("fleet-empty") && data.items?.length) location.reload(); });
