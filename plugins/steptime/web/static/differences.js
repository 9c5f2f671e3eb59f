// One run beside another: numbers, step times, and how each was made.
import { keep } from "./address.js";
import { colour, draw, figureFor } from "./charts.js";
import { capitalised, choices, comparedNumbers } from "./columns.js";
import { element } from "./dom.js";
import { decimals, fixed } from "./format.js";
import { read, rowsOf } from "./server.js";
import { attempt } from "./messages.js";

const OFFERED = 50;
const change = fixed(1);

function table(heads, lines, className = "") {
  const cells = ([name, ...values]) => [element("th", { scope: "row" }, name), ...values.map((value) => element("td", { className }, value))];
  return element("div", { className: "scroller", tabIndex: 0, role: "region", ariaLabel: heads[0] }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head, index) => element("th", { scope: "col", className: index ? className : "" }, head)))),
    element("tbody", {}, ...lines.map((line) => element("tr", {}, ...cells(line))))));
}

function changeOf(one, other) {
  if (typeof one !== "number" || typeof other !== "number" || !other) return "";
  const percent = 100 * (one / other - 1);
  return `${percent > 0 ? "+" : ""}${change(percent)} %`;
}

const numbers = ({ run, other }) => comparedNumbers(run, other).map(({ heading, unit, name, significant, decimals: most }) => {
  const both = [run[name], other[name]];
  return [[capitalised(heading), unit].filter(Boolean).join(", "), ...both.map(fixed(decimals(both, significant, most))), changeOf(...both)];
});

/** Draw the step times of both over each other, if they are shown. */
export function drawOverlay(canvas, { run, other, step_times: times }) {
  const sets = [run, other].map(({ job_name: label }, index) => {
    const line = colour(index ? "--series-2" : "--series-1");
    return { label, data: times[index].map(([x, y]) => ({ x, y })), borderColor: line, backgroundColor: line, borderWidth: 1.5, borderDash: index ? [5, 4] : [], pointRadius: 2 };
  });
  draw(canvas, {
    type: "line",
    data: { datasets: sets },
    options: {
      interaction: { mode: "index", intersect: false },
      scales: { x: { type: "linear", title: { display: true, text: "global step" }, grid: { display: false } }, y: { title: { display: true, text: "step time, s" } } },
      plugins: { legend: { position: "bottom", labels: { boxWidth: 12, boxHeight: 12 } } },
    },
  }, `Step times of ${run.job_name} and ${other.job_name} over global steps`);
}

/** The section with what two runs have otherwise, and its canvas; `answer` is that of `api/differences`. */
export function differencesOf(answer) {
  const { run, other, made, step_times: times } = answer;
  const [figure, canvas] = figureFor("overlay", "Step times", "of both");
  const parts = [table(["Number", "This run", "The other", "Change"], numbers(answer), "number")];
  if (made.length) parts.push(table(["Made otherwise", "This run", "The other"], made));
  else parts.push(element("p", {}, "Nothing is recorded that was made otherwise: same image, versions, options, environment and nodes."));
  if (times.some(({ length }) => length)) parts.push(figure);
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
