// Fleet: what is typed hides rows at once, those that come later too; Enter asks the server; the empty page goes when an engine is registered.
const typed = document.querySelector("[data-slash]"), none = document.getElementById("none-typed");

function sift() {
  const word = typed.value.trim().toLowerCase(), isAnswered = typed.value === typed.defaultValue;
  let shown = 0;
  for (const tr of document.querySelectorAll("#fleet_rows > tr")) {
    tr.hidden = !isAnswered && !tr.textContent.toLowerCase().includes(word);
    shown += !tr.hidden;
  }
  none.hidden = isAnswered || shown > 0;
}

if (typed) {
  typed.addEventListener("input", sift);
  addEventListener("q-swap", ({ detail: el }) => { if (el.id === "fleet_rows") sift(); });
}
addEventListener("q-data", ({ detail: { data } }) => { if (document.getElementById("fleet-empty") && data.items?.length) location.reload(); });
