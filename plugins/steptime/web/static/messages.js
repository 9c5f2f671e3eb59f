// Messages of the page: in one line above the view, or in place of it.
import { byId, element } from "./dom.js";
import { givenUp } from "./server.js";

export const summarise = (...content) => byId("summary").replaceChildren(...content);

/** Show something in place of the view; nothing takes it away. */
export function announce(...content) {
  byId("message").replaceChildren(...content);
  byId("message").hidden = !content.length;
}

/** Whatever a click or a timer starts: what goes wrong is shown on the page. */
export async function attempt(action) {
  try {
    await action();
  } catch (error) {
    if (givenUp(error)) return;
    summarise();
    announce(element("p", { className: "failure", role: "alert" }, error.message));
  }
}
