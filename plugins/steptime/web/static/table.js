// The table of runs: its columns, its order, and its rows, made a batch at a time as people scroll.
import { airflowLink, dagRunAddress, logAddress, timeZone } from "./airflow.js";
import { byId, element } from "./dom.js";
import { decimals, fixed, shortTimestamps, timestamps, words } from "./format.js";

const BATCH = 200;

/**
 * Columns in their order. `key` names a column of the store and sorts; `format(values)` gives the function
 * that writes one value, from all values shown; a `shareable` column in which all runs have the same moves
 * above the table; a column without any value is left out.
 */
const COLUMNS = [
  { key: "label", title: "Run", cell: runCell, className: "run" },
  { key: "task_id", title: "Task", cell: logCell },
  { key: "state", title: "State", shareable: true, value: verdict, cell: stateBadge },
  { key: "workload", title: "Workload", shareable: true },
  { key: "gpu_type", title: "GPU type", shareable: true },
  { key: "scaling", title: "Scaling", shareable: true },
  { key: "proxy", title: "Proxy", shareable: true, format: () => (value) => (value ? "proxy" : "") },
  { key: "cluster", title: "Cluster", shareable: true },
  { key: "gpus", title: ({ unit }) => (unit === "rank" ? "Ranks" : "GPUs"), numeric: true },
  { key: "tensor_parallel", title: "Parallelism", value: parallelism },
  { key: "global_batch_size", title: "GBS", numeric: true },
  { key: "micro_batch_size", title: "MBS", numeric: true, shareable: true },
  { key: "window", title: "Window", unit: "steps", shareable: true },
  { key: "step_time_mean_s", title: "Step time", unit: "s, mean", numeric: true, format: (values) => fixed(decimals(values, 4, 4)), className: "main" },
  { key: "step_time_std_s", title: "± std", unit: "s", numeric: true, format: (_, rows) => fixed(decimals(rows.map((row) => row.step_time_mean_s), 4, 4)), className: "quiet" },
  { key: "tokens_per_s", title: "Throughput", unit: "tokens/s", numeric: true, format: (values) => fixed(decimals(values, 3, 2)) },
  { key: "tokens_per_s_per_gpu", title: ({ unit }) => `Per ${unit}`, unit: "tokens/s", numeric: true, format: (values) => fixed(decimals(values, 3, 2)) },
  { key: "scaling_efficiency_percent", title: "Efficiency", unit: "% of linear", numeric: true, format: () => fixed(1), hint: efficiencyHint },
  { key: "mfu_percent", title: "MFU", unit: "%", numeric: true, format: (values) => fixed(decimals(values, 3, 2)) },
  { key: "flops_formula", title: "MFU formula", shareable: true },
  { key: "checkpoint_save_s", title: "Save", unit: "s", numeric: true, format: (values) => fixed(decimals(values, 3, 4)) },
  { key: "checkpoint_blocked_s", title: "Save blocked", unit: "s", numeric: true, format: (values) => fixed(decimals(values, 3, 4)) },
  { key: "checkpoint_load_s", title: "Load", unit: "s", numeric: true, format: (values) => fixed(decimals(values, 3, 4)) },
  { key: "ended_at", title: "Ended", unit: timeZone, format: shortTimestamps },
  { key: "note", title: "Note", value: (row) => row.reason ?? row.warnings, hint: (row) => row.reason ?? row.warnings, className: "note" },
];

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

/** The columns that tell these rows apart, and those in which all have the same value. */
function split(rows) {
  const [shown, shared] = [[], []];
  for (const column of COLUMNS) {
    const first = valueOf(column, rows[0]);
    const same = column.shareable && rows.every((row) => valueOf(column, row) === first);
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
  const column = COLUMNS.find((candidate) => candidate.key === key);
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [valueOf(column, a), valueOf(column, b)];
    if (x == null || y == null) return (x == null) - (y == null);
    return (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y) * sign;
  });
}

/** The order after another click on a heading: numbers first descending, then ascending, then as at first. */
function nextOrder(order, { key, numeric }) {
  const first = Boolean(numeric || key === "ended_at");
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
 * DAG runs where `grouped`; `reorder` is called with a new order.
 */
export function drawTable(rows, { order, grouped, reorder }) {
  const [shown, shared] = split(rows);
  const facts = { unit: unitOf(rows) };
  const columns = shown.map((column) => ({
    ...column, write: column.format?.(rows.map((row) => valueOf(column, row)), rows) ?? ((value) => words(value)),
  }));
  byId("shared").replaceChildren(...shared.flatMap((column) => {
    const value = column.format ? column.format()(valueOf(column, rows[0])) : column.cell?.(rows[0]) ?? words(valueOf(column, rows[0]));
    return value === "" ? [] : [element("div", {}, element("dt", {}, text(column.title, facts)), element("dd", {}, value))];
  }));
  const table = byId("results");
  table.tHead.replaceChildren(element("tr", {}, ...columns.map((column) => heading(column, facts, order, reorder))));
  pending = plan(rows, columns, order, grouped);
  table.tBodies[0].replaceChildren();
  grow();
}
