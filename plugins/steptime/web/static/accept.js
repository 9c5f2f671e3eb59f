// Accepting a new level of a series: a button, then a field for the reason.
import { element } from "./dom.js";
import { send } from "./server.js";

/** Whether a run of a trend is of a level that somebody may want to accept. */
export const standsOut = ({ verdict, suspicion, level_s: level }) => (["slower", "faster"].includes(verdict) && suspicion !== "dismissed") || level != null;

/** Put into `box` what accepts the level that a run shows, if the user may; `then` is called afterwards. */
export function drawAccept(box, { job_name: jobName }, mayAccept, then) {
  box.hidden = !mayAccept;
  const start = element("button", { type: "button", title: "The baseline begins anew with this level", onclick: ask }, "Accept this level …");
  const note = element("input", { required: true, maxLength: 500, placeholder: "new driver, by intention", autocomplete: "off" });
  const failure = element("p", { className: "verdict rejected", role: "alert", hidden: true });
  const form = element("form", { className: "filters", onsubmit }, element("label", {}, "Why", note), element("button", {}, "Accept"), element("button", { type: "button", onclick: leave }, "Cancel"), failure);
  box.replaceChildren(start);

  function ask() {
    box.replaceChildren(form);
    note.focus();
  }

  function leave() {
    box.replaceChildren(start);
    start.focus();
  }

  /** What goes wrong is shown beside the form: the page may lie below a run. */
  async function onsubmit(event) {
    event.preventDefault();
    try {
      await send("api/accept", { job_name: jobName, note: note.value });
    } catch (error) {
      failure.replaceChildren(error.message);
      failure.hidden = false;
      return;
    }
    await then();
  }
}
