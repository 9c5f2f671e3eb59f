// All nodes: by how much each slows the runs on it, the slowest first.
import { element } from "./dom.js";
import { announce, summarise } from "./messages.js";
import { nodeLink } from "./node.js";
import { readNew } from "./server.js";
import { plainTable } from "./table.js";
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
  const columns = [
    { head: "Node", cell: ({ cluster, node }) => nodeLink(cluster, node) },
    { head: "Cluster", cell: ({ cluster }) => cluster },
    { head: "Slower by", cell: ({ difference_percent: difference }) => `${signed(difference)} %`, className: "number" },
    { head: "95 % interval", cell: ({ low_percent: low, high_percent: high }) => `${signed(low)} to ${signed(high)} %`, className: "number" },
    { head: "Runs", cell: ({ runs }) => runs, className: "number" },
    { head: "Cells", cell: ({ cells }) => cells, className: "number" },
  ];
  box.replaceChildren(
    plainTable({ id: "nodes", label: "Nodes", columns, rows: nodes }),
    element("p", { className: "footnote" }, "How much longer training runs on the node take than runs of the same cells on other nodes, above 0 is slower. Highest lower end first. Few runs give a wide interval; a node that is slow beyond doubt is an incident on This week."),
  );
}

/** Read the nodes. */
export async function show() {
  const found = await readNew(answer, "api/nodes");
  if (found === answer) return;
  answer = found;
  redraw();
}
