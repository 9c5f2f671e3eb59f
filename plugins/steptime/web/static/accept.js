// Accepting a new level of a series: a button, then a field for the reason.
import { element } from "./dom.js";
import { attempt } from "./messages.js";
import { send } from "./server.js";

const standsOut = ({ verdict, suspicion, level_s: level }) => (["slower", "faster"].includes(verdict) && suspicion !== "dismissed") || level != null;

/** Put into `box` what accepts the level of the newest run, where it stands out; `then` is called afterwards. */
export function drawAccept(box, newest, mayAccept, then) {
  box.hidden = !(mayAccept && standsOut(newest));
  const start = element("button", { type: "button", title: "The baseline begins anew with this level", onclick: ask }, "Accept this level …");
  const note = element("input", { id: "accept-note", required: true, maxLength: 500, placeholder: "new driver, by intention", autocomplete: "off" });
  const form = element("form", { className: "filters", onsubmit }, element("label", {}, "Why", note), element("button", {}, "Accept"), element("button", { type: "button", onclick: leave }, "Cancel"));
  box.replaceChildren(start);

  function ask() {
    box.replaceChildren(form);
    note.focus();
  }

  function leave() {
    box.replaceChildren(start);
    start.focus();
  }

  function onsubmit(event) {
    event.preventDefault();
    attempt(async () => {
      await send("api/accept", { job_name: newest.job_name, note: note.value });
      await then();
    });
  }
}
