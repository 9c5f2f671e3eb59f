// All nodes: by how much each slows the runs on it, the slowest first.
import { element } from "./dom.js";
import { announce, summarise } from "./messages.js";
import { nodeLink } from "./node.js";
import { readNew } from "./server.js";
import { signed } from "./verdicts.js";

export const title = "Nodes";

let [answer, box] = [null, null];

/** Prepare the view. */
export function open(place) {
  [answer, box] = [null, place];
}

/** Draw the latest answer. */
export function redraw() {
  if (!answer) return;
  const { nodes } = answer;
  announce();
  summarise(element("strong", {}, `${nodes.length} node${nodes.length === 1 ? "" : "s"} with runs to compare in the last four weeks.`));
  const heads = ["Node", "Cluster", "Slower by", "95 % interval", "Runs", "Cells"];
  const numbers = ["Slower by", "95 % interval", "Runs", "Cells"];
  const className = (head) => (numbers.includes(head) ? "number" : "");
  const line = ({ cluster, node, difference_percent: difference, low_percent: low, high_percent: high, runs, cells }) => element("tr", {},
    element("th", { scope: "row" }, nodeLink(cluster, node)),
    ...[cluster, `${signed(difference)} %`, `${signed(low)} to ${signed(high)} %`, runs, cells].map((value, place) => element("td", { className: className(heads[place + 1]) }, String(value))));
  box.replaceChildren(element("div", { id: "nodes", className: "scroller", tabIndex: 0, role: "region", ariaLabel: "Nodes" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col", className: className(head) }, head)))),
    element("tbody", {}, ...nodes.map(line)))),
  element("p", { className: "footnote" }, "How much longer training runs on the node take than runs of the same cells on other nodes, above 0 is slower. Highest lower end first. Few runs give a wide interval; a node that is slow beyond doubt is an incident on This week."));
}

/** Read the nodes. */
export async function show() {
  const found = await readNew(answer, "api/nodes");
  if (found === answer) return;
  answer = found;
  redraw();
}
