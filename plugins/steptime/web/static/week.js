// This week: what got slower or faster, in one sentence and by cell.
import { current, go, viewLink } from "./address.js";
import { completenessBox, drawCompleteness } from "./completeness.js";
import { capitalised, columnsOf, meaningOf } from "./columns.js";
import { byId, element } from "./dom.js";
import { timestamps } from "./format.js";
import { readNew, rowsOf } from "./server.js";
import { makeTable } from "./table.js";
import { announce, summarise } from "./messages.js";
import { cellName, publicationBadge, signed, verdictBadge } from "./verdicts.js";

export const title = "This week";

const DAY_S = 86400;
const PERIODS = { 1: "last day", 7: "last 7 days", 30: "last 30 days", 365: "last year" };

// What the page adds to the declared columns; those that are not named here have no place in this table.
const ADDED = {
  cell: { cell: trendLink, className: "run", place: 1 },
  verdict: { cell: verdictBadge, place: 2 },
  change_percent: { write: signed, className: "main", place: 3 },
  since: { write: (at) => timestamps()(at).slice(0, 10), place: 3.5 },
  cause: { write: (value) => value ?? "", place: 4 },
  changes: { heading: "changed", write: (value) => value, className: "words", place: 5 },
  drift_percent: { write: signed, place: 13.2 },
  judged_s: { place: 7 },
  baseline_s: { className: "quiet", place: 13.1 },
  step_time_over_published: { place: 9 },
  against_publication: { cell: publicationBadge, place: 10 },
  scaling_efficiency_percent: { place: 13.05 },
  gpu_hours: { place: 12 },
  queue_wait_s: { place: 13 },
  minimum_detectable_change_percent: { place: 14 },
  baseline_runs: { place: 15 },
};

let answer = null;
let parts = null;

function trendLink(row) {
  const link = viewLink({ view: "trend", series: row.job_name }, ...cellName(row.cell));
  link.className = "open";
  return link;
}

function periodChoice() {
  const select = element("select", { id: "period", onchange: ({ target }) => go({ days: target.value === "7" ? null : target.value }) },
    ...Object.entries(PERIODS).map(([days, name]) => element("option", { value: days }, name)));
  return element("label", {}, "Cells that ran in the", select);
}

const days = () => (Object.hasOwn(PERIODS, current().get("days")) ? current().get("days") : "7");

/** Make what the view is made of. */
export function open(box) {
  const [footnote, completeness, totals, remarks, listing] = [meanings(), completenessBox(), element("p", { className: "totals" }), element("ul", { className: "remarks" }), element("section", { id: "listing", hidden: true })];
  listing.setAttribute("aria-label", "Cells");
  const draw = makeTable(listing, { mark: (row, made) => { made.dataset.cell = row.cell; made.dataset.verdict = row.verdict; } });
  box.append(completeness, element("form", { className: "filters", onsubmit: (event) => event.preventDefault() }, periodChoice(), totals), listing, remarks, footnote);
  byId("period").value = days();
  parts = { completeness, totals, remarks, listing, footnote, draw };
  answer = null;
}

const meanings = () => element("p", { className: "footnote", hidden: true },
  "Change: the runs judged over the baseline, above 0 is slower. Drift: how much slower its level is than its fastest was: advice. Least seen: the slowdown that one run of the cell shows in 4 of 5 cases. "
  + "Efficiency, GPU-hours and queue: of the newest run; efficiency relative to the smallest scale of its sweep or DAG run, else of the nearest earlier runs. A cell leads to its trend. "
  + `Publication: ${meaningOf("against_publication")}`);

/** Draw what was read last, in today's colours and time zone. */
export function redraw() {
  if (!answer) return;
  const rows = rowsOf(answer);
  byId("period").value = days();
  summarise(element("strong", {}, `${capitalised(answer.sentence)}.`));
  drawCompleteness(parts.completeness, answer.completeness);
  parts.totals.textContent = answer.took;
  parts.listing.hidden = parts.footnote.hidden = !rows.length;
  parts.remarks.replaceChildren(...answer.remarks.map((remark) => element("li", {}, remark)));
  if (rows.length) {
    announce();
    parts.draw(rows, columnsOf("comparison", ADDED).filter(({ name }) => name in ADDED));
  } else {
    announce(element("p", {}, `Nothing that is judged ran in the ${PERIODS[days()]}: choose a longer time, or start a run with`), element("code", {}, "steptime run llama3.1 --wait"));
  }
}

/** Read the comparison, and draw it. */
export async function show() {
  const since = Math.floor(Date.now() / 1000 - Number(days()) * DAY_S);
  const found = await readNew(answer, `api/comparison?since=${since}`);
  if (found === answer) return;
  answer = found;
  redraw();
}
