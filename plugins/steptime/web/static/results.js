// The result page: reads the runs, filters them, and has table and charts drawn. No framework, no network.
import { followTheme, followTimeZone, rememberQuery } from "./airflow.js";
import { drawScaling } from "./charts.js";
import { redrawDetail, showDetail } from "./detail.js";
import { byId, element } from "./dom.js";
import { words } from "./format.js";
import { capitalised, declareColumns, drawTable, unitOf } from "./table.js";

const PERIODS = { 1: "last day", 7: "last 7 days", 30: "last 30 days" };
const SEARCHED = ["label", "job_name", "workload", "gpu_type", "cluster", "dag_id", "dag_run_id", "state", "reason", "warnings"];
const SCOPE = ["dag_id", "dag_run_id"];
const DAY_S = 86400;
const REREAD_MS = 15_000;

const query = new URLSearchParams(location.search);
const scope = new URLSearchParams([...query].filter(([key]) => SCOPE.includes(key)));
const wanted = new Map();
let choices = []; // the columns that people select runs by
let answer = null;
let rows = [];
let truncated = false;
let ended = null; // why a DAG run has no results
let order = null;

const count = (number) => number.toLocaleString("en-US");
const runs = (number) => `${count(number)} run${number === 1 ? "" : "s"}`;

function chosen() {
  const equal = [...wanted].filter(([key]) => choices.some(({ name }) => name === key));
  const since = wanted.has("period") ? Date.now() / 1000 - wanted.get("period") * DAY_S : -Infinity;
  const terms = (wanted.get("search") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => row.submitted_at >= since && equal.every(([key, value]) => String(row[key]) === value)
    && terms.every((term) => SEARCHED.some((key) => row[key]?.toLowerCase().includes(term))));
}

function choose(key, value) {
  if (value) wanted.set(key, value);
  else wanted.delete(key);
  rememberQuery(new URLSearchParams([...scope, ...wanted]));
  render();
}

function select(key, title, options) {
  const made = element("select", { id: `filter-${key}`, onchange: (event) => choose(key, event.target.value) }, element("option", { value: "" }, "all"),
    ...options.map(([value, name]) => element("option", { value }, name)));
  made.value = wanted.get(key) ?? "";
  made.classList.toggle("active", wanted.has(key));
  return element("label", {}, title, made);
}

/** A filter for every column in which the runs differ, and one for the time if they are of several days. */
function drawFilters() {
  const focused = document.activeElement?.id;
  const selects = choices.flatMap(({ name: key, heading }) => {
    const values = [...new Set(rows.map((row) => row[key]))].sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
    const options = values.map((value) => [String(value), words(value)]);
    return values.length > 1 || wanted.has(key) ? [select(key, key === "gpus" && unitOf(rows) === "rank" ? "Ranks" : capitalised(heading), options)] : [];
  });
  const times = rows.map((row) => row.submitted_at);
  const days = (times.reduce((a, b) => Math.max(a, b), 0) - times.reduce((a, b) => Math.min(a, b), Infinity)) / DAY_S;
  if (days > 1 || wanted.has("period")) selects.push(select("period", "Submitted", Object.entries(PERIODS)));
  if (wanted.size) selects.push(element("button", { id: "reset", type: "button", onclick: reset }, "Reset filters"));
  byId("filters").hidden = !selects.length;
  byId("filters").replaceChildren(...selects);
  if (focused) byId(focused)?.focus();
}

function reset() {
  wanted.clear();
  byId("search").value = "";
  choose("search", "");
}

function announce(...content) {
  byId("message").replaceChildren(...content);
  byId("message").hidden = !content.length;
}

function explainEmpty() {
  if (rows.length) announce(element("p", {}, "No run matches these filters."), element("button", { type: "button", onclick: reset }, "Reset filters"));
  else if (ended) announce(element("p", {}, `${capitalised(ended)}.`.replace(/\.\.$/, ".")));
  else if (scope.size) announce(element("p", {}, "This DAG run has no results yet: each run appears when it has been validated."));
  else announce(element("p", {}, "No results yet. Trigger a DAG such as llama31, or type:"), element("code", {}, "steptime run llama3.1 --wait"));
}

function summarise(shown) {
  const rejected = shown.filter((row) => row.state === "rejected").length;
  const of = shown.length === rows.length ? runs(rows.length) : `${count(shown.length)} of ${runs(rows.length)}`;
  const older = truncated ? "; older ones: steptime results" : "";
  byId("summary").textContent = `${of}${rejected ? `, ${count(rejected)} rejected` : ""}${older}`;
}

function render() {
  const shown = chosen();
  drawFilters();
  summarise(shown);
  byId("listing").hidden = !shown.length;
  byId("csv").disabled = !shown.length;
  byId("search").hidden = !rows.length;
  if (shown.length) {
    announce();
    drawTable(shown, { order, grouped: !scope.has("dag_run_id"), reorder });
  } else explainEmpty();
  drawScaling(shown, unitOf(shown));
}

function reorder(next, key) {
  order = next;
  drawTable(chosen(), { order, grouped: !scope.has("dag_run_id"), reorder });
  byId("scroller").scrollTop = 0;
  byId("results").querySelector(`th[data-key="${key}"] button`)?.focus();
}

async function read(address) {
  let reply;
  try {
    reply = await fetch(address, { credentials: "same-origin" });
  } catch {
    throw new Error("Airflow's API server does not answer.");
  }
  if (reply.ok) return reply.text();
  if (reply.status === 401) throw new Error("Your session has ended: log in to Airflow again.");
  const { detail } = await reply.json().catch(() => ({}));
  throw new Error(typeof detail === "string" ? detail : `Airflow's API server answered with status ${reply.status}.`);
}

/** Read the runs, and draw if they differ from those shown. */
async function reread() {
  const text = await read(`api/results?${scope}`);
  if (text === answer) return;
  answer = text;
  const { columns, rows: values, truncated: more, ended: why } = JSON.parse(text);
  truncated = more;
  ended = why;
  rows = values.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
  render();
}

/** Read what the columns are, and take the filters that the address names. */
async function readColumns() {
  const { columns } = JSON.parse(await read("api/columns"));
  declareColumns(columns);
  choices = columns.filter(({ choice }) => choice);
  const known = ["period", "search", ...choices.map(({ name }) => name)];
  for (const [key, value] of query) if (value && known.includes(key)) wanted.set(key, value);
  byId("search").value = wanted.get("search") ?? "";
}

async function refresh() {
  if (!choices.length) await readColumns();
  await reread();
}

/** Whatever a click or a timer starts: what goes wrong is shown on the page. */
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    byId("summary").textContent = "";
    announce(element("p", { className: "failure" }, error.message));
  }
}

function csvOf(shown) {
  const names = Object.keys(shown[0]);
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const cell = (value) => (value == null ? "" : quoted(String(value)));
  return [names, ...shown.map((row) => names.map((name) => row[name]))].map((line) => line.map(cell).join(",")).join("\n").concat("\n");
}

function download() {
  const href = URL.createObjectURL(new Blob([csvOf(chosen())], { type: "text/csv" }));
  element("a", { href, download: "steptime-results.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

function openRow({ target }) {
  const row = target.closest("tr[data-job]");
  if (!row || target.closest("a") || !getSelection().isCollapsed) return;
  row.querySelector(".open").focus(); // where the focus returns to
  attempt(async () => showDetail(JSON.parse(await read(`api/runs/${encodeURIComponent(row.dataset.job)}`))));
}

/** Up and down move between the runs, as people expect of a list. */
function moveInTable(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.matches(".open")) return;
  const buttons = [...byId("results").querySelectorAll(".open")];
  buttons[buttons.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}

byId("search").addEventListener("input", (event) => choose("search", event.target.value.trim()));
byId("refresh").addEventListener("click", () => attempt(refresh));
byId("csv").addEventListener("click", download);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("results").tBodies[0].addEventListener("click", openRow);
byId("results").addEventListener("keydown", moveInTable);
followTheme(() => answer && (drawScaling(chosen(), unitOf(chosen())), redrawDetail()));
followTimeZone(() => answer && render());
// Runs of a DAG run arrive one by one while it goes on.
if (scope.has("dag_run_id")) setInterval(() => document.visibilityState === "visible" && attempt(refresh), REREAD_MS);
attempt(refresh);
