// One run beside another: numbers, step times, and how each was made.
import { keep } from "./address.js";
import { colour, draw, figureFor, steady } from "./charts.js";
import { capitalised, choices, comparedNumbers } from "./columns.js";
import { element } from "./dom.js";
import { decimals, fixed } from "./format.js";
import { read, rowsOf } from "./server.js";
import { attempt } from "./messages.js";
import { plainTable } from "./table.js";
import { signed } from "./verdicts.js";

const OFFERED = 50;
// What a run does not depend on itself: comparing it would say nothing.
const NOT_COMPARED = ["queue_wait_s", "published_step_time_s", "peak_tflops_per_gpu", "step_time_over_published"];

/** A table of lines, each a name and its values. */
function table(heads, lines, className = "") {
  const columns = heads.map((head, place) => ({ head, cell: (line) => line[place], className: place ? className : "" }));
  return plainTable({ label: heads[0], columns, rows: lines });
}

function changeOf(one, other) {
  if (typeof one !== "number" || typeof other !== "number" || !other) return "";
  return `${signed(100 * (one / other - 1))} %`;
}

const numbers = ({ run, other }) => comparedNumbers(run, other).filter(({ name }) => !NOT_COMPARED.includes(name)).map(({ heading, unit, name, significant, decimals: most }) => {
  const both = [run[name], other[name]];
  return [[capitalised(heading), unit].filter(Boolean).join(", "), ...both.map(fixed(decimals(both, significant, most))), changeOf(...both)];
});

/** How much longer each step of this run took than the same step of the other, in percent. */
function stepDifferences({ step_times: [own, others] }) {
  const before = new Map(others);
  return own.filter(([step, seconds]) => seconds && before.get(step)).map(([x, seconds]) => ({ x, y: 100 * (seconds / before.get(x) - 1) }));
}

/** Draw these differences, if they are shown; the first steps, which take longer, do not flatten the others. */
export function drawOverlay(canvas, answer) {
  const points = stepDifferences(answer);
  const shown = steady(points).map(({ y }) => y);
  const [low, high] = [Math.min(0, ...shown), Math.max(0, ...shown)];
  const room = 0.1 * (high - low || 1);
  const line = colour("--series-1");
  draw(canvas, {
    type: "line",
    data: { datasets: [{ label: "difference, %", data: points, borderColor: line, backgroundColor: line, borderWidth: 1, pointRadius: 2 }] },
    options: {
      interaction: { mode: "index", intersect: false },
      scales: { x: { type: "linear", title: { display: true, text: "global step" }, grid: { display: false } }, y: { min: low - room, max: high + room, title: { display: true, text: "%" }, ticks: { callback: (value) => signed(value), includeBounds: false } } },
      plugins: { legend: { display: false }, tooltip: { callbacks: { label: ({ parsed }) => `${signed(parsed.y)} %` } } },
    },
  }, `Step times of ${answer.run.job_name} relative to those of ${answer.other.job_name}, in percent over global steps`);
}

/** The section with what two runs have otherwise, and its canvas; `answer` is that of `api/differences`. */
export function differencesOf(answer) {
  const { run, other, made, apart } = answer;
  const [figure, canvas] = figureFor("overlay", "Step times", `of ${run.job_name} relative to ${other.job_name}; above 0 is slower`);
  const parts = apart.length
    ? [element("p", { className: "verdict warned" }, `Their times are not for comparison: ${apart.join("; ")}.`)]
    : [table(["Number", "This run", "The other", "Change"], numbers(answer), "number")];
  if (!apart.length && stepDifferences(answer).length) parts.push(figure);
  if (made.length) parts.push(table(["Made otherwise", "This run", "The other"], made));
  else parts.push(element("p", {}, "Nothing is recorded that was made otherwise: same image, versions, options, environment and nodes."));
  return [element("section", { id: "differences" }, element("h3", {}, `${run.job_name} beside ${other.job_name}`), ...parts), canvas];
}

/** The form that asks for the other run: any, by its name or the beginning of it; runs like this one are offered. */
export function otherRun(run, chosen, show) {
  const offered = element("datalist", { id: "others" });
  const input = element("input", { id: "other", placeholder: "job name", value: chosen ?? "" });
  input.setAttribute("list", "others");
  input.addEventListener("focus", () => attempt(() => offer(run, offered)), { once: true });
  const form = element("form", { className: "command" }, element("label", { htmlFor: "other" }, "Compare with"), input, element("button", { type: "submit" }, "Compare"), offered);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keep({ with: input.value.trim() });
    show();
  });
  return form;
}

async function offer(run, list) {
  const alike = choices().filter(({ series }) => series).map(({ name }) => name);
  const query = new URLSearchParams([...alike.map((name) => [name, run[name]]), ["limit", OFFERED]]);
  const rows = rowsOf(await read(`api/results?${query}`)).filter(({ job_name: name }) => name !== run.job_name);
  list.replaceChildren(...rows.map(({ job_name: value }) => element("option", { value })));
}
