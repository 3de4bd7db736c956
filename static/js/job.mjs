// Job page: the countdown, and the buttons of a pending job. All else arrives as fragments.
import { deadline, retime } from "./deadline.mjs";
import "./steer.mjs";

deadline();
addEventListener("q-data", ({ detail: { topic, data } }) => { if (topic.startsWith("job:")) retime(data.deadline_at); });
