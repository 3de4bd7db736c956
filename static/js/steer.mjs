// Extend, cancel and force: sent without leaving the page; what they led to comes over the socket.
import { alarm, say } from "./live.mjs";

const form = document.getElementById("steer");

function show(message) {
  const box = document.getElementById("steer-err");
  if (box) { box.textContent = message; box.hidden = !message; }
  if (message) alarm(message);
}

form?.addEventListener("submit", async (e) => {
  e.preventDefault();
  const button = e.submitter, data = new URLSearchParams(new FormData(form));
  if (button.name) data.append(button.name, button.value);
  button.closest("dialog")?.close();
  show("");
  try {
    const answer = await fetch(button.formAction, { method: "POST", body: data, headers: { Accept: "application/json" } });
    if (!answer.headers.get("Content-Type")?.startsWith("application/json")) { location.reload(); return; }
    const body = await answer.json();
    if (answer.ok) say(body.said); else show(body.error);
  } catch { show("Not sent: the console did not answer. Look at the job before you try again."); }
});
