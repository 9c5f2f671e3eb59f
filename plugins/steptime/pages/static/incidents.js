// Incidents as cards: what got slower together, since when, and why; with a note, or the acceptance of its level.
import { viewLink } from "./address.js";
import { element } from "./dom.js";
import { drawAsking } from "./messages.js";
import { send } from "./server.js";
import { frozen } from "./frozen.js";
import { nodeLink } from "./node.js";
import { sparkline } from "./sparkline.js";
import { cellName, signed } from "./verdicts.js";

const MOST_CARDS = 5;
const MOST_CELLS = 12;
const ACTIVE = ["open", "confirmed"];

/** Make the place for them. */
export const incidentsBox = () => element("section", { className: "incidents", ariaLabel: "Incidents", hidden: true });

const cellItem = ({ label, job_name: job, change_percent: change, state }) => element("li", {},
  viewLink({ view: "trend", series: job }, ...cellName(label)), ` ${signed(change)} %, ${state}`);

function asking({ id, may_edit: mayEdit, state, silence }, then) {
  if (!mayEdit) return [];
  const ask = (title, hint, action, day) => {
    const box = element("div");
    const note = element("input", { required: true, maxLength: 500, placeholder: hint, autocomplete: "off" });
    const until = day ? [element("label", {}, "Until", day)] : [];
    drawAsking(box, element("button", { type: "button" }, `${title} …`), element("span", {}, ...until, element("label", {}, "Note", note)), title, async () => {
      await send(`api/incidents/${id}`, { note: note.value, action, ...(day ? { until: day.value } : {}) });
      await then();
    });
    return box;
  };
  const ticket = "ticket 4711: the switch is being replaced";
  const noting = ask("Write a note", ticket, "note");
  if (!ACTIVE.includes(state)) return [noting];
  const silencing = silence ? ask("End the silence", "the switch is replaced", "end silence")
    : ask("Silence", ticket, "silence", element("input", { type: "date", required: true }));
  return [ask("Accept this level", "NeMo 2.8 checks gradients", "accept"), silencing, noting];
}

function card(incident, then) {
  const { cluster, nodes, state, silence, direction, title, evidence, note, noted_by: author, cells, recent } = incident;
  const worst = cells[0];
  const more = cells.length > MOST_CELLS ? [element("li", {}, `and ${cells.length - MOST_CELLS} more`)] : [];
  const made = element("article", { className: `incident ${ACTIVE.includes(state) && !silence ? direction : "closed"}` },
    element("header", {}, element("span", { className: `badge ${silence ? "silenced" : state}` }, silence ? `${state}, ${silence}` : state), sparkline(recent, worst.usual_s)),
    element("h2", {}, title),
    element("p", {}, evidence),
    nodes.length && !frozen ? element("p", {}, "Node: ", ...nodes.flatMap((node, place) => [place ? ", " : "", nodeLink(cluster, node)])) : null,
    note ? element("p", { className: "note" }, `${note} (${author})`) : null,
    element("details", {}, element("summary", {}, cells.length === 1 ? "1 cell" : `${cells.length} cells`), element("ul", {}, ...cells.slice(0, MOST_CELLS).map(cellItem), ...more)),
    element("div", { className: "asking" }, ...asking(incident, then)));
  made.dataset.incident = incident.id;
  return made;
}

/** Cards behind a line that counts them; none without incidents. */
function folded(incidents, what, then) {
  if (!incidents.length) return [];
  const line = `${incidents.length} ${what} incident${incidents.length === 1 ? "" : "s"}`;
  return [element("details", { className: "others" }, element("summary", {}, line),
    element("div", { className: "incidents" }, ...incidents.map((incident) => card(incident, then))))];
}

/** Fill the place: the most important ones as cards, the others behind a line. `then` is called after a change. */
export function drawIncidents(box, incidents, then) {
  box.hidden = !incidents.length;
  const counted = incidents.filter(({ silence }) => !silence);
  box.replaceChildren(...counted.slice(0, MOST_CARDS).map((incident) => card(incident, then)),
    ...folded(counted.slice(MOST_CARDS), "more", then), ...folded(incidents.filter(({ silence }) => silence), "silenced", then));
}
