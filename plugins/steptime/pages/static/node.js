// A node: the runs on it, how they compare with runs on other nodes, and how to exclude it.
import { current, viewLink } from "./address.js";
import { element } from "./dom.js";
import { timestamps } from "./format.js";
import { announce, summarise } from "./messages.js";
import { readNew } from "./server.js";
import { plainTable } from "./table.js";
import { cellName, overUsual, signed, verdictBadge } from "./verdicts.js";

export const title = "Node";

let [answer, box] = [null, null];

/** A link to the page of a node. */
export const nodeLink = (cluster, node) => viewLink({ view: "node", cluster, node }, node);

/** Prepare the view. */
export function open(place) {
  [answer, box] = [null, place];
}

function inWords({ node, cluster, difference_percent: difference, low_percent: low, high_percent: high, cells, incident }) {
  const compared = difference === null ? "no cell ran both there and elsewhere" : `${overUsual(difference)} than on other nodes (95 % interval ${signed(low)} to ${signed(high)} %, ${cells} cell${cells === 1 ? "" : "s"})`;
  const named = incident === null ? "" : ` Incident: ${incident}.`;
  return [element("strong", {}, `Node ${node} of ${cluster}: ${compared}.${named}`)];
}

function exclusion({ node, cluster, excluded, newest_job: job, drain }) {
  const state = excluded ? "excludes it" : "does not exclude it";
  return element("section", {}, element("p", {}, `The newest job of the cluster, ${job}, ${state}.`),
    element("p", {}, "One run without it: ", element("code", {}, `steptime run WORKLOAD --cluster ${cluster} --exclude ${node}`)),
    element("p", {}, "All runs without it, on a Slurm cluster: ", element("code", {}, `extra_options: ["--exclude=${node}"]`), ` in config/clusters/${cluster}.yaml`),
    drain ? element("p", {}, "No jobs of anyone on it, as an administrator: ", element("code", {}, drain)) : null);
}

function ofSweep({ sweep, pairs }) {
  if (sweep === null) return [];
  const found = pairs.length ? pairs.join(" ") : "Neither the node nor a link of it was slow.";
  return [element("p", {}, "Node sweep ", viewLink({ view: "pairs", sweep }, sweep), `: ${found}`)];
}

function table({ cluster, node, runs }) {
  const when = timestamps();
  const percent = (value) => (value === null ? "" : `${signed(value)} %`);
  const columns = [
    { head: "Run", cell: (run) => viewLink({ view: "node", cluster, node, run: run.job_name }, ...cellName(run.label)) },
    { head: "Submitted", cell: (run) => when(run.submitted_at) },
    { head: "Change", cell: (run) => percent(run.run_change_percent), className: "number" },
    { head: "Elsewhere", cell: (run) => percent(run.elsewhere_percent), className: "number" },
    { head: "Its ranks", cell: (run) => percent(run.ranks_percent), className: "number" },
    { head: "Its GPUs", cell: (run) => run.gpus ?? "" },
    { head: "Verdict", cell: (run) => (run.verdict ? verdictBadge(run) : run.state) },
  ].filter(({ cell }) => runs.some((run) => cell(run) !== ""));
  return plainTable({ id: "node-runs", label: "Runs that had the node", columns, rows: runs });
}

/** Draw the latest answer, in the current time zone. */
export function redraw() {
  if (!answer) return;
  if (!answer.runs.length) {
    summarise();
    announce(element("p", {}, `No run of the last four weeks used node ${answer.node} of ${answer.cluster}.`));
    return;
  }
  announce();
  summarise(...inWords(answer));
  box.replaceChildren(...ofSweep(answer), exclusion(answer), table(answer), element("p", { className: "footnote" },
    "Change: from what is usual for the cell, above 0 is slower. Elsewhere: the median change of the cell's runs without the node. Its ranks: the forward pass of its ranks against the other ranks of the run. Its GPUs: mean power and clock, highest temperature. Runs of the last four weeks."));
}

/** Read the node that the address names. */
export async function show() {
  const [cluster, node] = ["cluster", "node"].map((name) => current().get(name) ?? "");
  const found = await readNew(answer, `api/node?${new URLSearchParams({ cluster, node })}`);
  if (found === answer) return;
  answer = found;
  redraw();
}
