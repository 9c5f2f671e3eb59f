// This week: what got slower or faster, in one sentence and by cell.
import { current, go, viewLink } from "./address.js";
import { capitalised, columnsOf } from "./columns.js";
import { byId, element } from "./dom.js";
import { read, rowsOf } from "./server.js";
import { makeTable } from "./table.js";
import { announce, summarise } from "./messages.js";
import { signed, verdictBadge } from "./verdicts.js";

export const title = "This week";

const DAY_S = 86400;
const PERIODS = { 1: "last day", 7: "last 7 days", 30: "last 30 days", 365: "last year" };

// What the page adds to the declared columns; those that are not named here have no place in this table.
const ADDED = {
  cell: { cell: trendLink, className: "run", place: 1 },
  verdict: { cell: verdictBadge, hint: ({ changes }) => changes, place: 2 },
  cause: { place: 3 },
  change_percent: { write: signed, className: "main", place: 4 },
  judged_s: { place: 5 },
  baseline_s: { className: "quiet", place: 6 },
  step_time_over_published: { hint: ({ against_publication: verdict }) => verdict ?? "", place: 7 },
  against_publication: { cell: publicationBadge, place: 8 },
  scaling_efficiency_percent: { place: 9 },
  gpu_hours: { place: 10 },
  queue_wait_s: { place: 11 },
  minimum_detectable_change_percent: { place: 12 },
  baseline_runs: { place: 13 },
};

let answer = null;
let parts = null;

function trendLink(row) {
  const link = viewLink({ view: "trend", series: row.job_name }, row.cell);
  link.className = "open";
  return link;
}

function publicationBadge({ against_publication: verdict }) {
  return verdict ? element("span", { className: verdict === "passes" ? "state valid" : "state warned" }, verdict) : "";
}

function periodChoice() {
  const select = element("select", { id: "period", onchange: ({ target }) => go({ days: target.value === "7" ? null : target.value }) },
    ...Object.entries(PERIODS).map(([days, name]) => element("option", { value: days }, name)));
  return element("label", {}, "Cells that ran in the", select);
}

const days = () => (Object.hasOwn(PERIODS, current().get("days")) ? current().get("days") : "7");

/** Make what the view is made of. */
export function open(box) {
  const [totals, remarks, listing] = [element("p", { className: "totals" }), element("ul", { className: "remarks" }), element("section", { id: "listing" })];
  listing.setAttribute("aria-label", "Cells");
  const draw = makeTable(listing, { mark: (row, made) => { made.dataset.cell = row.cell; made.dataset.verdict = row.verdict; } });
  box.append(element("form", { className: "filters", onsubmit: (event) => event.preventDefault() }, periodChoice(), totals), listing, remarks, footnote());
  parts = { totals, remarks, listing, draw };
}

const footnote = () => element("p", { className: "footnote" },
  "Change: the runs judged over the baseline, above 0 is slower. Least seen: the slowdown that one run of the cell shows in 4 of 5 cases. "
  + "Efficiency, GPU-hours and queue: of the newest run; efficiency relative to the smallest scale of its sweep or DAG run, else of the nearest earlier runs. A cell leads to its trend.");

/** Draw what was read last, in today's colours and time zone. */
export function redraw() {
  if (!answer) return;
  const rows = rowsOf(answer);
  byId("period").value = days();
  summarise(element("strong", {}, capitalised(answer.sentence)), ".");
  parts.totals.textContent = answer.took;
  parts.listing.hidden = !rows.length;
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
  answer = await read(`api/comparison?since=${since}`);
  redraw();
}
