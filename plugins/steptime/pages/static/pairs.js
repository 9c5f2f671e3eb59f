// A node sweep: each pair of nodes against the median, and which node or link is slow.
import { current, viewLink } from "./address.js";
import { element } from "./dom.js";
import { significant } from "./format.js";
import { announce, summarise } from "./messages.js";
import { nodeLink } from "./node.js";
import { readNew } from "./server.js";
import { signed } from "./verdicts.js";

export const title = "Nodes";

const MOST_HEAT = 45; // percent of red, on which text can be read

let [answer, box] = [null, null];

/** Make what the view is made of. */
export function open(place) {
  [answer, box] = [null, place];
}

function heatMap({ cluster, nodes, pairs, slow_nodes: slow, slow_links: links }) {
  const byNodes = new Map(pairs.flatMap((pair) => [pair.nodes, [...pair.nodes].reverse()].map((names) => [names.join(" - "), pair])));
  const head = (scope) => (name) => element("th", { scope, className: `${scope === "col" ? "number" : ""}${Object.hasOwn(slow, name) ? " slow" : ""}` }, nodeLink(cluster, name));
  const cell = (name) => {
    const pair = byNodes.get(name);
    if (!pair) return element("td");
    const bandwidth = pair.bus_bandwidth_gb_s === null ? "" : `, ${significant(pair.bus_bandwidth_gb_s, 3)} GB/s`;
    const named = Object.hasOwn(links, name) || Object.hasOwn(links, name.split(" - ").reverse().join(" - "));
    const made = element("td", { className: `number heat${named ? " slow" : ""}`, title: `${name}${bandwidth}` }, viewLink({ view: "pairs", sweep: answer.sweep, run: pair.job_name }, signed(pair.slower_percent)));
    made.style.setProperty("--heat", `${Math.round(Math.min(MOST_HEAT, Math.max(0, pair.slower_percent)))}%`);
    return made;
  };
  const rows = nodes.map((node) => element("tr", {}, head("row")(node), ...nodes.map((other) => cell(`${node} - ${other}`))));
  return element("div", { id: "node-pairs", className: "scroller", tabIndex: 0, role: "region", ariaLabel: "Pairs of nodes" },
    element("table", {}, element("thead", {}, element("tr", {}, element("td"), ...nodes.map(head("col")))), element("tbody", {}, ...rows)));
}

/** Draw what was read last. */
export function redraw() {
  if (!answer) return;
  announce();
  summarise(element("strong", {}, answer.findings[0]));
  box.replaceChildren(...answer.findings.slice(1).map((sentence) => element("p", {}, sentence)), heatMap(answer),
    element("p", { className: "footnote" }, `Newest run of the sweep ${answer.sweep}: how much longer a pair of nodes takes than the median of all pairs, in percent.`));
}

/** Read the sweep that the address names. */
export async function show() {
  const found = await readNew(answer, `api/pairs?${new URLSearchParams({ sweep: current().get("sweep") ?? "" })}`);
  if (found === answer) return;
  answer = found;
  redraw();
}
