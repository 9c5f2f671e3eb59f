// The runs: selected on the server by the filters of the address, as a table; those of one DAG run with charts.
import { current, go, scope, stay } from "./address.js";
import { airflowLink, dagRunAddress, logAddress, whyWithoutResults } from "./airflow.js";
import { capitalised, choices, columnsOf, listing, meaningOf } from "./columns.js";
import { completenessBox, drawCompleteness } from "./completeness.js";
import { byId, element } from "./dom.js";
import { frozen } from "./frozen.js";
import { PERIODS, duration, grouped, significant, startOfLast, timestamps, words } from "./format.js";
import { readNew, rowsOf } from "./server.js";
import { announce, attempt, summarise } from "./messages.js";
import { drawStepTimes } from "./step_times.js";
import { makeTable, unitOf, unitTitle } from "./table.js";
import { cellName, publicationBadge, signed, verdictBadge } from "./verdicts.js";

export const title = scope.size ? "This DAG run" : "Runs";

const TYPING_MS = 250;
const SHOWN = 1000;

// What the page adds to the declared columns.
const ADDED = {
  job_name: { left_out: true },
  label: { cell: runCell, className: "run" },
  state: { value: verdict, cell: stateBadge },
  warnings: { heading: "note", value: (row) => row.reason ?? row.warnings, hint: (row) => row.reason ?? row.warnings, className: "note", place: 1 },
  gpus: { title: unitTitle },
  tensor_parallel: { heading: "parallelism", kind: "text", value: parallelism },
  step_time_mean_s: { className: "main" },
  step_time_std_s: { className: "quiet" },
  tokens_per_s_per_gpu: { title: ({ unit }) => `Tokens/s/${unit}` },
  against_publication: { cell: publicationBadge },
  // Of its scale, which the view Scaling has, and the run itself when it is opened.
  scaling_efficiency_low_percent: { left_out: true },
  scaling_efficiency_high_percent: { left_out: true },
  scaling_base_gpus: { left_out: true },
  submitted_at: { left_out: true }, // stands above the runs of a DAG run
  ended_at: {},
  task_id: { heading: "task", cell: logCell },
};

// In the tab of a DAG run: how the cell of each run stood after it.
const ADDED_TO_VERDICT = {
  verdict: { cell: (row) => (row.verdict ? verdictBadge(row) : "") },
  run_change_percent: { write: signed },
  minimum_detectable_change_percent: {},
};

let [answer, rows, parts, typing, ended] = [null, [], null, null, null];

const runsOf = (number) => `${grouped(number)} run${number === 1 ? "" : "s"}`;

function verdict(row) {
  return row.state === "valid" && row.warnings ? "warned" : row.state;
}

export function stateBadge(row) {
  return element("span", { className: `state ${verdict(row)}`, title: row.reason ?? row.warnings ?? "" }, row.state);
}

function runCell(row) {
  return element("button", { type: "button", className: "open", title: row.job_name }, ...cellName(row.label));
}

function logCell(row) {
  const address = logAddress(row);
  return address ? airflowLink(address, "Log", "The log of the Airflow task that waited for this run") : "";
}

/** As TP4 PP8 DP16: ways of parallelism that are not used are left out, data parallelism never is. */
function parallelism(row) {
  const ways = [["TP", row.tensor_parallel], ["PP", row.pipeline_parallel], ["CP", row.context_parallel], ["EP", row.expert_parallel]];
  return [...ways.filter(([, size]) => size > 1), ["DP", row.data_parallel]].map((way) => way.join("")).join(" ");
}

/** Return the selection in the address, for the server. */
function selection() {
  const address = current();
  const query = new URLSearchParams([...scope, ...[...address].filter(([key]) => key === "search" || chosenBy().includes(key))]);
  if (Object.hasOwn(PERIODS, address.get("period"))) query.set("since", startOfLast(Number(address.get("period"))));
  return query;
}

/** The names of all filters but the time and the search. */
const chosenBy = () => [...choices().map(({ name }) => name), ...listing().map(({ element: name }) => name)];

const filters = () => [...chosenBy(), "period", "search"].filter((name) => current().has(name));

const choose = (key, value) => stay({ [key]: value });

function reset() {
  byId("search").value = "";
  stay(Object.fromEntries(filters().map((name) => [name, null])));
}

function select(key, heading, options) {
  const wanted = current().get(key) ?? "";
  const made = element("select", { id: `filter-${key}`, onchange: ({ target }) => choose(key, target.value) }, element("option", { value: "" }, "all"),
    ...options.map(([value, name]) => element("option", { value }, name)));
  made.value = wanted;
  made.classList.toggle("active", wanted !== "");
  return element("label", {}, heading, made);
}

/** A filter on one of the values that a column lists; those of the shown runs are suggested. */
function input({ name: column, element: key, description }) {
  const values = new Set(rows.flatMap((row) => row[column]?.split(", ") ?? []));
  if (!values.size && !current().has(key)) return [];
  const suggested = element("datalist", { id: `known-${key}` }, ...[...values].sort().slice(0, SHOWN).map((value) => element("option", { value })));
  const made = element("input", { id: `filter-${key}`, title: description, value: current().get(key) ?? "", onchange: ({ target }) => choose(key, target.value.trim()) });
  made.setAttribute("list", suggested.id);
  made.classList.toggle("active", current().has(key));
  return [element("label", {}, capitalised(key), made, suggested)];
}

/** Draw a filter for every column in which runs differ, and one for the time. */
function drawFilters() {
  const focused = document.activeElement?.id;
  const selects = choices().flatMap(({ name, heading }) => {
    const options = (answer.choices[name] ?? []).map((value) => [String(value), words(value)]);
    const ranks = name === "gpus" && unitOf(rows) === "rank" && rows.length;
    return options.length > 1 || current().has(name) ? [select(name, ranks ? "Ranks" : capitalised(heading), options)] : [];
  });
  if (!frozen) selects.push(...listing().flatMap(input));
  if (!scope.size && answer.all && !frozen) selects.push(select("period", "Submitted", Object.entries(PERIODS)));
  if (filters().length) selects.push(element("button", { id: "reset", type: "button", onclick: reset }, "Reset filters"));
  parts.filters.hidden = !selects.length;
  parts.filters.replaceChildren(...selects);
  if (focused) byId(focused)?.focus();
}

function explainEmpty() {
  if (answer.all) announce(); // below the filters, which stay as they are while somebody types
  else if (ended) announce(element("p", {}, `${ended}.`.replace(/\.\.$/, ".")));
  else if (scope.size) announce(element("p", {}, "This DAG run has no results yet: each run appears when it has been validated."));
  else announce(element("p", {}, "No results yet. Trigger a DAG such as steptime_llama3.1-25.04, or type:"), element("code", {}, "steptime run llama3.1 --wait"));
}

function summariseShown() {
  const rejected = rows.filter((row) => row.state === "rejected").length;
  const of = answer.matching === answer.all ? runsOf(answer.all) : `${grouped(answer.matching)} of ${runsOf(answer.all)}`;
  const newest = answer.matching > rows.length ? `; the newest ${grouped(rows.length)} are shown` : "";
  const shown = `${of}${rejected ? `, ${grouped(rejected)} rejected` : ""}${newest}`;
  const { sentence, completeness, took, goodput, remarks } = answer.comparison ?? { sentence: "", completeness: null, took: "", goodput: "", remarks: [] };
  const judged = rows.some(({ verdict: found }) => found);
  const asCounted = shown === runsOf(answer.all); // what the line below has, too
  if (judged) summarise(element("strong", {}, `${capitalised(sentence)}.`), ...(asCounted ? [] : [` ${shown}`]));
  else summarise(answer.all ? shown : "");
  drawCompleteness(parts.completeness, completeness);
  parts.took.textContent = [took, goodput].filter(Boolean).join(" · ");
  parts.took.hidden = !took || !answer.all;
  parts.unmatched.hidden = !answer.all || rows.length > 0;
  parts.remarks.replaceChildren(...remarks.map((remark) => element("li", {}, remark)));
}

/** Rows as sections of one sweep or DAG run each, latest first; a run alone needs no heading. */
function byDagRun(all) {
  const groups = new Map();
  for (const row of all) {
    const key = row.dag_run_id == null ? row.job_name : `${row.dag_id}/${row.dag_run_id}`;
    if (!groups.has(key)) groups.set(key, { rows: [], latest: 0 });
    const group = groups.get(key);
    group.rows.push(row);
    group.latest = Math.max(group.latest, row.submitted_at);
  }
  const when = timestamps();
  return [...groups.values()].sort((a, b) => b.latest - a.latest)
    .map((group) => [scope.size || group.rows.length === 1 ? null : (columns) => groupRow(group, columns, when), group.rows]);
}

function groupRow({ rows: all, latest }, columns, when) {
  const { sweep, dag_id: dag, dag_run_id: run } = all[0];
  const address = dagRunAddress({ dag_id: dag, dag_run_id: run });
  const name = address ? airflowLink(address, run, sweep ? "The DAG run of the sweep" : "The DAG run") : element("span", {}, run);
  const summary = `${runsOf(all.length)}, submitted ${when(latest)}${costOf(all)}`;
  return element("tr", { className: "group" }, element("th", { colSpan: columns.length, scope: "rowgroup" },
    element("div", {}, sweep ? `sweep ${sweep} · ` : dag && `${dag} · `, name, element("small", {}, summary))));
}

/** The total GPU-hours of these runs, and their longest wait in the queue. */
function costOf(all) {
  const known = (key) => all.map((row) => row[key]).filter((value) => value != null);
  const [hours, waits] = [known("gpu_hours"), known("queue_wait_s")];
  return [hours.length ? ` · ${significant(hours.reduce((a, b) => a + b, 0), 3)} GPU-hours` : "", waits.length ? ` · queued ${duration(Math.max(...waits))} at most` : ""].join("");
}

function openRow({ target }) {
  const row = target.closest("tr[data-job]");
  if (!row || target.closest("a") || !getSelection().isCollapsed) return;
  row.querySelector(".open").focus(); // the focus returns here
  go({ run: row.dataset.job });
}

function typed({ target }) {
  clearTimeout(typing);
  typing = setTimeout(() => choose("search", target.value.trim()), TYPING_MS);
}

function toolbar() {
  const search = element("input", { id: "search", type: "search", placeholder: "Search", ariaLabel: "Search in all runs", title: "Words in names, reasons, images, versions, variables and nodes", value: current().get("search") ?? "", oninput: typed });
  const csv = element("a", { id: "csv", className: "button", hidden: true, download: "steptime-results.csv", title: "All runs that match, with every column" }, "Download CSV");
  return element("div", { className: "toolbar" }, search, csv);
}

/** Prepare the view: the table comes first. */
export function open(box) {
  const filtersForm = element("form", { className: "filters", ariaLabel: "Filters", onsubmit: (event) => event.preventDefault() });
  const listing = element("section", { id: "listing", ariaLabel: "Runs", hidden: true });
  const unmatched = element("p", { hidden: true }, "No run matches these filters.");
  const charts = element("section", { id: "charts", ariaLabel: "Charts" });
  const completeness = completenessBox();
  const [took, remarks] = [element("p", { className: "totals", hidden: true }), element("ul", { className: "remarks" })];
  const draw = makeTable(listing, { mark: (row, made) => { made.dataset.job = row.job_name; }, sections: byDagRun });
  listing.querySelector("tbody").addEventListener("click", openRow);
  listing.append(element("p", { className: "footnote" },
    "Efficiency: tokens/s per GPU (on CPUs: per rank) relative to the smallest scale of the same sweep or DAG run, else of the nearest earlier runs. "
    + `Publication: ${meaningOf("against_publication")} MFU by different formulas must not be compared.`));
  box.append(completeness, took, toolbar(), filtersForm, unmatched, listing, remarks, charts);
  parts = { filters: filtersForm, unmatched, listing, charts, draw, completeness, took, remarks };
  answer = null;
}

/** The columns of runs, with how their cells stand behind the name of the run. */
function withVerdicts() {
  const [name, ...others] = columnsOf("results", ADDED);
  return [name, ...columnsOf("verdict", ADDED_TO_VERDICT).filter(({ name: one }) => one in ADDED_TO_VERDICT), ...others];
}

/** Draw the latest answer, in the current colours and time zone. */
export function redraw() {
  if (!answer) return;
  drawFilters();
  summariseShown();
  parts.listing.hidden = !rows.length;
  byId("csv").hidden = !rows.length || Boolean(frozen);
  byId("search").hidden = !answer.all || Boolean(frozen);
  if (rows.length) {
    announce();
    parts.draw(rows, answer.comparison ? withVerdicts() : columnsOf("results", ADDED));
  } else explainEmpty();
  drawStepTimes(parts.charts, scope.size ? rows : []);
}

/** Read the runs that the address selects, and draw them if they differ from those shown. */
export async function show() {
  const query = selection();
  const found = await readNew(answer, `api/results?${query}&limit=${SHOWN}`);
  byId("csv").href = `api/results.csv?${query}`;
  const why = scope.size && !found.all ? await whyWithoutResults(scope.get("dag_id"), scope.get("dag_run_id")) : null;
  if (found === answer && why === ended) return;
  [answer, ended] = [found, why];
  rows = rowsOf(answer);
  redraw();
}
