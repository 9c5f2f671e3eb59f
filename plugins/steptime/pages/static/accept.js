// Accepting a new level of a series: a button, then a field for the reason.
import { element } from "./dom.js";
import { drawAsking } from "./messages.js";
import { send } from "./server.js";

/** Whether a run belongs to a level that somebody may want to accept. */
export const standsOut = ({ series_state: state, level_s: level }) => ["suspected", "confirmed"].includes(state) || level != null;

/** Put a button into `box` that accepts the level of a run, if the user may; `then` is called afterwards. */
export function drawAccept(box, { job_name: jobName }, mayAccept, then) {
  box.hidden = !mayAccept;
  const start = element("button", { type: "button", title: "The baseline starts again with this level" }, "Accept this level …");
  const note = element("input", { required: true, maxLength: 500, placeholder: "new driver, on purpose", autocomplete: "off" });
  drawAsking(box, start, element("label", {}, "Why", note), "Accept", async () => {
    await send("api/accept", { job_name: jobName, note: note.value });
    await then();
  });
}
