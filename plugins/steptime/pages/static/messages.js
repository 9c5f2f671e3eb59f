// Messages of the page: in a line above the view, or in place of the view.
import { byId, element } from "./dom.js";
import { givenUp } from "./server.js";

export const summarise = (...content) => byId("summary").replaceChildren(...content);

/** Show a message in place of the view; without content the message is removed. */
export function announce(...content) {
  byId("message").replaceChildren(...content);
  byId("message").hidden = !content.length;
}

/**
 * Put a button into `box` that asks before it acts: it shows `asked` with a button to go ahead and one to cancel.
 * Errors are shown beside them, as a dialog may cover the page.
 */
export function drawAsking(box, start, asked, goAhead, act) {
  start.addEventListener("click", () => {
    failure.hidden = true;
    box.replaceChildren(form);
    form.querySelector("input, button").focus();
  });
  const cancel = element("button", { type: "button", onclick: () => { box.replaceChildren(start); start.focus(); } }, "Cancel");
  const failure = element("p", { className: "verdict rejected", role: "alert", hidden: true });
  const form = element("form", { className: "filters", onsubmit }, asked, element("button", {}, goAhead), cancel, failure);
  box.replaceChildren(start);

  async function onsubmit(event) {
    event.preventDefault();
    try {
      await act();
    } catch (error) {
      failure.replaceChildren(error.message);
      failure.hidden = false;
    }
  }
}

/** Run an action of a click or a timer, and show its error on the page. */
export async function attempt(action) {
  try {
    await action();
  } catch (error) {
    if (givenUp(error)) return;
    summarise();
    announce(element("p", { className: "failure", role: "alert" }, error.message));
  }
}
