// A plan: what a set of options would run and cost, before anybody triggers it.
import { current, go } from "./address.js";
import { capitalised } from "./columns.js";
import { element } from "./dom.js";
import { duration, significant } from "./format.js";
import { announce, summarise } from "./messages.js";
import { readNew } from "./server.js";
import { plainTable } from "./table.js";

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

const number = (value) => (value == null ? "" : significant(value, 3));
const expected = ({ gpu_hours_expected: hours, seconds_expected: seconds }) => (hours == null ? "" : `${number(hours)} (${duration(seconds)})`);
const COLUMNS = [
  { head: "Run", cell: ({ label }) => label },
  ...Object.entries({
    "GPUs": ({ gpus }) => gpus,
    "TP": ({ tp }) => tp,
    "PP": ({ pp }) => pp,
    "CP": ({ cp }) => cp,
    "Global batch": ({ gbs }) => gbs,
    "Steps": ({ steps }) => steps,
    "Time limit": ({ time_limit: limit }) => limit,
    "GPU-hours at most": ({ gpu_hours_max: hours }) => number(hours),
    "GPU-hours expected": expected,
  }).map(([head, cell]) => ({ head, cell, className: "number" })),
  { head: "Expected from", cell: ({ expected_from: source }) => source },
];

/** Draw the latest answer. */
export function redraw() {
  if (!answer) return;
  announce();
  summarise(element("strong", {}, answer.sentence));
  parts.result.replaceChildren(
    ...(answer.refused ? [element("p", { className: "verdict rejected", role: "alert" }, answer.refused)] : []),
    element("p", {}, `${capitalised(answer.cost)}.`),
    plainTable({ id: "plan-runs", label: "Planned runs", columns: COLUMNS, rows: answer.runs }),
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
