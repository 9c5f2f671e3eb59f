// The table of runs: its columns, its order, and its rows, made a batch at a time as people scroll.
import { airflowLink, dagRunAddress, logAddress, timeZone } from "./airflow.js";
import { byId, element } from "./dom.js";
import { decimals, fixed, shortTimestamps, significant, timestamps, words } from "./format.js";

const BATCH = 200;

// What the page adds to the declaration that `api/columns` gives: `cell` makes a row's cell, `value` takes what is
// sorted and written, `format(values, rows)` gives the function that writes one value from all values shown. Columns
// that are declared as part of no table are shown if they are here.
const SPECIAL = {
  job_name: { left_out: true },
  label: { cell: runCell, className: "run" },
  state: { value: verdict, cell: stateBadge },
  warnings: { heading: "note", value: (row) => row.reason ?? row.warnings, hint: (row) => row.reason ?? row.warnings, className: "note", last: true },
  gpus: { title: ({ unit }) => (unit === "rank" ? "Ranks" : "GPUs") },
  tensor_parallel: { heading: "parallelism", kind: "text", value: parallelism },
  step_time_mean_s: { className: "main" },
  step_time_std_s: { className: "quiet" },
  tokens_per_s_per_gpu: { title: ({ unit }) => `Tokens/s/${unit}` },
  scaling_efficiency_percent: { hint: efficiencyHint },
  scaling_base_gpus: { left_out: true },
  submitted_at: { left_out: true }, // stands above the runs of a DAG run
  ended_at: {},
  task_id: { heading: "task", cell: logCell },
};
const FORMATS = {
  number: (column) => (values, rows) => fixed(digitsOf(column, rows)),
  time: () => shortTimestamps,
  boolean: ({ heading }) => () => (value) => (value ? heading : ""),
};

let columnsShown = [];
let declaredColumns = [];

/** Take over the declaration of the columns, as `api/columns` gives it. */
export function declareColumns(declared) {
  declaredColumns = declared;
  columnsShown = declared
    .map((column) => ({ ...column, key: column.name, ...SPECIAL[column.name] }))
    .filter(({ name, priority, left_out }) => !left_out && (priority !== null || name in SPECIAL))
    .sort((a, b) => Boolean(a.last) - Boolean(b.last))
    .map((column) => ({
      title: capitalised(column.heading), numeric: ["number", "integer"].includes(column.kind), format: FORMATS[column.kind]?.(column),
      ...column, unit: column.kind === "time" ? timeZone : column.unit,
    }));
}

/** Every measured number that a run has, as [title, value with unit]. */
export const numbersOf = (run) => declaredColumns.filter(({ name, kind }) => kind === "number" && run[name] != null)
  .map(({ name, heading, unit, significant: digits }) => [capitalised(heading), `${significant(run[name], digits)} ${unit}`.trim()]);

export const capitalised = (words) => words.charAt(0).toUpperCase() + words.slice(1);

function digitsOf(column, rows) {
  const of = column.decimals_of ? declaredColumns.find(({ name }) => name === column.decimals_of) : column;
  return decimals(rows.map((row) => row[of.name]), of.significant, of.decimals);
}

const valueOf = (column, row) => (column.value ? column.value(row) : row[column.key]);

function verdict(row) {
  return row.state === "valid" && row.warnings ? "warned" : row.state;
}

export function stateBadge(row) {
  return element("span", { className: `state ${verdict(row)}`, title: row.reason ?? row.warnings ?? "" }, row.state);
}

function runCell(row) {
  return element("button", { type: "button", className: "open", title: row.job_name }, row.label);
}

function logCell(row) {
  const address = logAddress(row);
  return address ? airflowLink(address, "Log", "The log of the Airflow task that waited for this run") : "";
}

/** As TP4 PP8 DP16: ways of parallelism that are not used are left out, data parallelism never is. */
function parallelism(row) {
  const ways = [["TP", row.tensor_parallel], ["PP", row.pipeline_parallel], ["CP", row.context_parallel]];
  return [...ways.filter(([, size]) => size > 1), ["DP", row.data_parallel]].map((way) => way.join("")).join(" ");
}

function efficiencyHint(row) {
  const base = row.scaling_base_gpus;
  return base == null ? "" : `tokens/s per GPU relative to ${base} GPU${base === 1 ? "" : "s"} of the same series`;
}

/** What the runs are counted in: runs on the CPU have ranks. */
export const unitOf = (rows) => (rows.every((row) => row.gpu_type === "cpu") ? "rank" : "GPU");

/** The columns in which these rows differ, and those in which all have the same value. */
function split(rows) {
  const [shown, shared] = [[], []];
  for (const column of columnsShown) {
    const first = valueOf(column, rows[0]);
    const same = column.shared && rows.every((row) => valueOf(column, row) === first);
    if (same) shared.push(column);
    else if (rows.some((row) => ![null, undefined, "", false].includes(valueOf(column, row)))) shown.push(column);
  }
  return [shown, shared];
}

const text = (wanted, facts) => (typeof wanted === "function" ? wanted(facts) : wanted ?? "");

/** Rows as sections of one DAG run each, latest first; within one the order of the store's report. */
function byDagRun(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = row.dag_run_id == null ? row.job_name : `${row.dag_id}\n${row.dag_run_id}`;
    if (!groups.has(key)) groups.set(key, { rows: [], latest: 0 });
    const group = groups.get(key);
    group.rows.push(row);
    group.latest = Math.max(group.latest, row.submitted_at);
  }
  return [...groups.values()].sort((a, b) => b.latest - a.latest);
}

function sorted(rows, { key, descending }) {
  const column = columnsShown.find((candidate) => candidate.key === key);
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [valueOf(column, a), valueOf(column, b)];
    if (x == null || y == null) return (x == null) - (y == null);
    return (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y) * sign;
  });
}

/** The order after another click on a heading: numbers first descending, then ascending, then as at first. */
function nextOrder(order, { key, kind, numeric }) {
  const first = Boolean(numeric || kind === "time");
  if (order?.key !== key) return { key, descending: first };
  return order.descending === first ? { key, descending: !first } : null;
}

function heading(column, facts, order, reorder) {
  const button = element("button", { type: "button", title: "Sort" }, text(column.title, facts),
    element("small", {}, text(column.unit, facts) || "\u00a0"));
  button.addEventListener("click", () => reorder(nextOrder(order, column), column.key));
  const head = element("th", { scope: "col", className: [column.numeric && "number", column.className].filter(Boolean).join(" ") }, button);
  head.dataset.key = column.key;
  if (order?.key === column.key) head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
  return head;
}

function tableRow(row, columns) {
  const made = element("tr", {}, ...columns.map((column) => {
    const content = column.cell ? column.cell(row) : column.write(valueOf(column, row));
    const cell = element("td", { className: [column.numeric && "number", column.className].filter(Boolean).join(" "), title: column.hint?.(row) ?? "" });
    cell.append(...[content].flat());
    return cell;
  }));
  made.dataset.job = row.job_name;
  return made;
}

function groupRow({ rows, latest }, columns, when) {
  const [row] = rows;
  const address = dagRunAddress(row);
  const name = address ? airflowLink(address, row.dag_run_id, "The DAG run") : element("span", {}, "not run by Airflow");
  const count = `${rows.length} run${rows.length === 1 ? "" : "s"}, submitted ${when(latest)}`;
  return element("tr", { className: "group" }, element("th", { colSpan: columns.length, scope: "rowgroup" },
    element("div", {}, row.dag_id ? `${row.dag_id} · ` : "", name, element("small", {}, count))));
}

/** The rows of the table in their order, as functions that make them: those out of sight are never made. */
function plan(rows, columns, order, grouped) {
  if (order) return sorted(rows, order).map((row) => () => tableRow(row, columns));
  const when = timestamps();
  return byDagRun(rows).flatMap((group) => [
    ...(grouped ? [() => groupRow(group, columns, when)] : []),
    ...group.rows.map((row) => () => tableRow(row, columns)),
  ]);
}

let pending = [];
const more = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && grow(), { root: byId("scroller"), rootMargin: "600px" });

function grow() {
  const body = byId("results").tBodies[0];
  more.disconnect();
  body.append(...pending.splice(0, BATCH).map((make) => make()));
  if (pending.length) more.observe(body.lastElementChild);
}

/**
 * Show the rows. `order` is {key, descending}, or null for the order people read results in, in sections of
 * DAG runs if `grouped`; `reorder` is called with a new order.
 */
export function drawTable(rows, { order, grouped, reorder }) {
  const [shown, shared] = split(rows);
  const facts = { unit: unitOf(rows) };
  const columns = shown.map((column) => ({
    ...column, write: column.format?.(rows.map((row) => valueOf(column, row)), rows) ?? ((value) => words(value)),
  }));
  byId("shared").replaceChildren(...shared.flatMap((column) => {
    const value = column.format ? column.format([valueOf(column, rows[0])], rows)(valueOf(column, rows[0])) : column.cell?.(rows[0]) ?? words(valueOf(column, rows[0]));
    return value === "" ? [] : [element("div", {}, element("dt", {}, text(column.title, facts)), element("dd", {}, value))];
  }));
  const table = byId("results");
  table.tHead.replaceChildren(element("tr", {}, ...columns.map((column) => heading(column, facts, order, reorder))));
  pending = plan(rows, columns, order, grouped);
  table.tBodies[0].replaceChildren();
  grow();
}
