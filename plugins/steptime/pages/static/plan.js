// A plan: what a set of options would run and cost, before anybody triggers it.
import { current, go } from "./address.js";
import { capitalised } from "./columns.js";
import { element } from "./dom.js";
import { duration, significant } from "./format.js";
import { announce, summarise } from "./messages.js";
import { readNew } from "./server.js";

export const title = "Plan";

const FIELDS = { workload: "Workload", cluster: "Cluster", size: "Size", dtype: "Number format", gpus: "GPUs", repeats: "Repeats" };

let [answer, parts] = [null, null];

const options = () => new URLSearchParams([...current()].filter(([name]) => name !== "view"));

/** Prepare the view with the usual options; the address may have others, too. */
export function open(box) {
  const inputs = Object.keys(FIELDS).map((name) => element("input", { name, placeholder: name === "workload" ? "llama3.1" : "default", required: name === "workload" }));
  const submit = (event) => {
    event.preventDefault();
    go(Object.fromEntries(inputs.map(({ name, value }) => [name, value.trim()])));
  };
  const form = element("form", { className: "filters", onsubmit: submit }, ...inputs.map((input) => element("label", {}, FIELDS[input.name], input)), element("button", {}, "Plan"));
  const result = element("div");
  box.append(form, result);
  [answer, parts] = [null, { inputs, result }];
}

const HEADS = ["Run", "GPUs", "TP", "PP", "CP", "Global batch", "Steps", "Time limit", "GPU-hours at most", "GPU-hours expected", "Expected from"];

function cells(run) {
  const number = (value) => (value == null ? "" : significant(value, 3));
  const expected = run.gpu_hours_expected == null ? "" : `${number(run.gpu_hours_expected)} (${duration(run.seconds_expected)})`;
  return [run.label, run.gpus, run.tp, run.pp, run.cp, run.gbs, run.steps, run.time_limit, number(run.gpu_hours_max), expected, run.expected_from];
}

const isNumber = (place) => place > 0 && place < HEADS.length - 1;

function table(runs) {
  const row = (kind, values) => element("tr", {}, ...values.map((value, place) => element(kind, { className: isNumber(place) ? "number" : "", ...(kind === "th" ? { scope: "col" } : {}) }, String(value ?? ""))));
  return element("div", { id: "plan-runs", className: "scroller", tabIndex: 0, role: "region", ariaLabel: "Planned runs" }, element("table", {},
    element("thead", {}, row("th", HEADS)), element("tbody", {}, ...runs.map((run) => row("td", cells(run))))));
}

/** Draw the latest answer. */
export function redraw() {
  if (!answer) return;
  announce();
  summarise(element("strong", {}, answer.sentence));
  parts.result.replaceChildren(
    ...(answer.refused ? [element("p", { className: "verdict rejected", role: "alert" }, answer.refused)] : []),
    element("p", {}, `${capitalised(answer.cost)}.`),
    table(answer.runs),
  );
}

/** Read the plan of the options that the address has. */
export async function show() {
  const asked = options();
  for (const input of parts.inputs) input.value = asked.get(input.name) ?? "";
  answer = null;
  parts.result.replaceChildren();
  if (!asked.get("workload")) {
    announce();
    summarise("Name a workload to see what it would run and cost. Nothing is submitted.");
    return;
  }
  answer = await readNew(null, `api/plan?${asked}`);
  redraw();
}
