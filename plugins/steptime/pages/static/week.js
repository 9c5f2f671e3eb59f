// This week: what got slower or faster, in one sentence and by cell.
import { current, go, keep, viewLink } from "./address.js";
import { completenessBox, drawCompleteness } from "./completeness.js";
import { drawIncidents, incidentsBox } from "./incidents.js";
import { capitalised, columnsOf, headingOf, meaningOf } from "./columns.js";
import { byId, element } from "./dom.js";
import { frozen } from "./frozen.js";
import { PERIODS, startOfLast, timestamps } from "./format.js";
import { readNew, rowsOf } from "./server.js";
import { sendBox } from "./send.js";
import { sparkline } from "./sparkline.js";
import { makeTable } from "./table.js";
import { announce, attempt, summarise } from "./messages.js";
import { inWords, trialLink } from "./trials.js";
import { cellName, publicationBadge, signed, verdictBadge } from "./verdicts.js";

export const title = "This week";

// What the page adds to the declared columns; columns that are not named here are not in this table, and those
// with `more` only if people want all.
const ADDED = {
  cell: { cell: trendLink, className: "run", place: 1 },
  verdict: { cell: verdictBadge, place: 2 },
  change_percent: { write: signed, className: "main", place: 3 },
  drift_percent: { write: signed, place: 3.1 },
  since: { write: (at) => timestamps()(at).slice(0, 10), place: 3.5 },
  cause: { write: (value) => value ?? "", className: "cause", place: 4 },
  changes: { heading: "changed", write: (value) => value, className: "words", place: 5 },
  judged_s: { place: 7 },
  against_publication: { cell: publicationBadge, place: 8 },
  step_time_over_published: { title: "Published", place: 9, more: true },
  gpu_hours: { place: 12, more: true },
  queue_wait_s: { place: 13, more: true },
  scaling_efficiency_percent: { place: 13.05, more: true },
  baseline_s: { className: "quiet", place: 13.1, more: true },
  minimum_detectable_change_percent: { place: 14, more: true },
  baseline_runs: { place: 15, more: true },
};

const RECENT = {
  name: "recent", title: "Recent runs", kind: "text", description: "Recent runs, and what was usual as a dashed line",
  value: ({ recent }) => recent.length, cell: ({ recent, baseline_s: usual }) => sparkline(recent, usual), place: 3.2,
};
const FILTERS = ["cluster", "workload", "size", "dtype", "gpus", "verdict", "against_publication"];

let answer = null;
let found = null;
let tried = null;
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

const since = () => startOfLast(Number(days()));

/** A link that saves the page as a file, for the period chosen when it is clicked. */
function reportLink() {
  const link = element("a", { id: "report", className: "button", href: "api/report.html", download: "steptime-report.html", title: "This page as one file to send" }, "Save as a file");
  link.addEventListener("click", () => { link.href = `api/report.html?since=${since()}`; });
  return link;
}

const days = () => (Object.hasOwn(PERIODS, current().get("days")) ? current().get("days") : "7");

/** Prepare the view. */
export function open(box) {
  const [footnote, completeness, totals, remarks, trials, listing] = [meanings(), completenessBox(), element("p", { className: "totals" }), element("ul"), element("ul", { className: "remarks", ariaLabel: "Trials" }), element("section", { id: "listing", hidden: true })];
  const folded = element("details", { className: "remarks" }, element("summary", {}, "Each cell in a sentence"), remarks);
  const [incidents, filters] = [incidentsBox(), element("div", { className: "choices" })];
  const search = element("input", { id: "find", type: "search", placeholder: "70b fp8", value: current().get("find") ?? "", oninput: ({ target }) => { keep({ find: target.value }); drawRows(); } });
  listing.setAttribute("aria-label", "Cells");
  const draw = makeTable(listing, { mark: (row, made) => { made.dataset.cell = row.cell; made.dataset.verdict = row.verdict; } });
  const columns = element("button", { id: "columns", type: "button", onclick: () => { keep({ columns: current().has("columns") ? null : "all" }); redraw(); } }, "All columns");
  const form = element("form", { className: "filters", onsubmit: (event) => event.preventDefault() }, frozen ? null : periodChoice(), element("label", {}, "Search", search), filters, columns, frozen ? null : viewLink({ view: "nodes" }, "Nodes"), frozen ? null : reportLink());
  const choices = frozen ? form : element("div", { className: "filters" }, form, sendBox(days));
  box.append(incidents, completeness, totals, trials, choices, listing, folded, footnote);
  if (!frozen) byId("period").value = days();
  parts = { columns, incidents, completeness, totals, trials, remarks, folded, listing, footnote, filters, draw };
  answer = found = tried = null;
}

const meanings = () => element("p", { className: "footnote", hidden: true },
  "Now: the median of the steady steps, or the checkpoint time, of the judged runs. Change: the judged runs relative to the baseline, above 0 is slower. Drift: how much slower the cell is than its fastest level, although no single run was suspected. Detectable: the smallest slowdown that one run reveals in 4 of 5 cases. "
  + "Efficiency, GPU-hours and queue: of the newest run; efficiency relative to the smallest scale of its sweep or DAG run, else of the nearest earlier runs. Click a cell to see its trend. "
  + `Publication: ${meaningOf("against_publication")}`);

const rowsWithRecent = () => rowsOf(answer).map((row, place) => ({ ...row, recent: answer.recent[place] }));

/** Draw a filter for each column in which the cells differ; the address stores the choice. */
function drawFilters(rows) {
  const choices = FILTERS.map((name) => [name, [...new Set(rows.map((row) => row[name]).filter((value) => value != null).map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }))]);
  parts.filters.replaceChildren(...choices.filter(([name, values]) => values.length > 1 || current().has(name)).map(([name, values]) => {
    const select = element("select", { id: `only-${name}`, onchange: ({ target }) => { keep({ [name]: target.value }); drawRows(); } },
      ...["", ...values].map((value) => element("option", { value }, value || "all")));
    select.value = values.includes(current().get(name)) ? current().get(name) : "";
    return element("label", {}, capitalised(headingOf(name)), select);
  }));
}

function drawRows() {
  const asked = current();
  const words = (asked.get("find") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const rows = rowsWithRecent().filter((row) => FILTERS.every((name) => !asked.get(name) || String(row[name]) === asked.get(name))
    && words.every((word) => [row.cell, row.cluster, row.workload, row.changes, row.cause].join(" ").toLowerCase().includes(word)));
  parts.listing.hidden = !rows.length;
  if (!rows.length) {
    announce(element("p", {}, "No cell fits the search and the filters."));
    return;
  }
  announce();
  const all = current().get("columns") === "all";
  const columns = [...columnsOf("comparison", ADDED).filter(({ name, more }) => name in ADDED && (all || !more)), RECENT];
  parts.draw(rows, columns.sort((a, b) => a.place - b.place));
}

/** Draw the latest answer, in the current colours and time zone. */
export function redraw() {
  if (!answer) return;
  const rows = rowsOf(answer);
  parts.columns.textContent = current().has("columns") ? "Fewer columns" : "All columns";
  drawIncidents(parts.incidents, found?.incidents ?? [], () => attempt(show));
  if (!frozen) byId("period").value = days();
  summarise(element("strong", {}, `${capitalised(answer.sentence)}.`));
  drawCompleteness(parts.completeness, answer.completeness);
  parts.totals.textContent = [answer.took, answer.cost, answer.goodput].filter(Boolean).join(" · ");
  parts.trials.replaceChildren(...(tried?.trials ?? []).map((trial) => element("li", {}, "Trial ", trialLink(trial), ": ", ...inWords(trial.sentences))));
  parts.listing.hidden = parts.footnote.hidden = !rows.length;
  parts.folded.hidden = !answer.remarks.length;
  parts.remarks.replaceChildren(...answer.remarks.map((remark) => element("li", {}, remark)));
  if (rows.length) {
    drawFilters(rows);
    drawRows();
  } else {
    announce(element("p", {}, `No judged cell ran in the ${frozen ? "time of this report" : PERIODS[days()]}: choose a longer time, or start a run with`), element("code", {}, "steptime run llama3.1 --wait"));
  }
}

/** Read the comparison, and draw it. */
export async function show() {
  const [compared, incidents, trials] = await Promise.all([readNew(answer, `api/comparison?since=${since()}`), readNew(found, `api/incidents?since=${since()}`), readNew(tried, `api/trials?since=${since()}`)]);
  if (compared === answer && incidents === found && trials === tried) return;
  [answer, found, tried] = [compared, incidents, trials];
  redraw();
}
