// The result page: filters, a sortable table, charts, and the record of one run. No framework, no network.
import { drawScaling, drawSteps } from "./charts.js";

const FILTERS = { workload: "Workload", size: "Size", dtype: "Data type", gpu_type: "GPU type", gpus: "GPUs", mode: "Mode", cluster: "Cluster", state: "State" };
const number = (digits) => (value) => (value == null ? "" : value.toLocaleString("en", { maximumFractionDigits: digits }));
const seconds = (value) => (value == null ? "" : value.toPrecision(4));
const words = (value) => (value ?? "").replaceAll("_", " ");
const COLUMNS = [
  { key: "label", title: "Run", cell: (row) => [row.label, small(row.workload)] },
  { key: "gpus", title: "GPUs", number: true },
  { key: "global_batch_size", title: "GBS", number: true },
  { key: "tensor_parallel", title: "TP·PP·CP·DP", cell: (row) => [[row.tensor_parallel, row.pipeline_parallel, row.context_parallel, row.data_parallel].join("·")] },
  { key: "step_time_mean_s", title: "Step time, s", number: true, cell: (row) => [seconds(row.step_time_mean_s), row.step_time_std_s == null ? "" : small(`± ${row.step_time_std_s.toPrecision(2)}`)] },
  { key: "window", title: "Window" },
  { key: "tokens_per_s", title: "tokens/s", number: true, format: number(0) },
  { key: "tokens_per_s_per_gpu", title: "tokens/s/GPU", number: true, format: number(0) },
  { key: "mfu_percent", title: "MFU, %", number: true, cell: (row) => [number(2)(row.mfu_percent), row.mfu_percent == null ? "" : small(row.flops_formula)] },
  { key: "checkpoint_save_s", title: "Save, s", number: true, format: seconds },
  { key: "checkpoint_load_s", title: "Load, s", number: true, format: seconds },
  { key: "cluster", title: "Cluster" },
  { key: "ended_at", title: "Ended", format: (value) => (value ? new Date(value * 1000).toLocaleString("sv").slice(0, 16) : "") },
  { key: "state", title: "State", cell: (row) => [badge(row)] },
  { key: "reason", title: "Why", cell: (row) => [row.reason ?? ""], className: "reason" },
  { key: "log", title: "Task log", cell: (row) => [logLink(row)] },
];

const byId = (id) => document.getElementById(id);
const scope = new URLSearchParams(location.search);
let rows = [];
let order = { key: "ended_at", descending: true };

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
const small = (text) => element("small", {}, ` ${text ?? ""}`);
const badge = (row) => element("span", { className: row.state }, row.state);

/** Address of the Airflow page with the log of the task that waited for this run. */
function logAddress(row) {
  if (!row.dag_id || !row.task_id) return null;
  const path = ["dags", row.dag_id, "runs", row.dag_run_id, "tasks", row.task_id].map(encodeURIComponent).join("/");
  const mapped = row.map_index == null || row.map_index < 0 ? "" : `/mapped/${row.map_index}`;
  return new URL(`../${path}${mapped}`, location.origin + location.pathname).pathname;
}

function logLink(row) {
  const address = logAddress(row);
  if (!address) return "";
  const link = element("a", { href: address, target: "_top" }, "open");
  link.addEventListener("click", (event) => {
    event.stopPropagation();
    if (window.parent === window) return;
    // The iframe's sandbox forbids top navigation: ask the Airflow UI's own router instead.
    event.preventDefault();
    window.parent.history.pushState(null, "", address);
    window.parent.dispatchEvent(new PopStateEvent("popstate"));
  });
  return link;
}

function chosen() {
  const wanted = Object.keys(FILTERS).map((key) => [key, byId(`filter-${key}`)?.value ?? ""]).filter(([, value]) => value);
  return rows.filter((row) => wanted.every(([key, value]) => String(row[key]) === value));
}

function makeFilters() {
  byId("filters").replaceChildren(...Object.entries(FILTERS).map(([key, title]) => {
    const values = [...new Set(rows.map((row) => row[key]))].sort((a, b) => (a > b ? 1 : a < b ? -1 : 0));
    const select = element("select", { id: `filter-${key}`, onchange: render }, element("option", { value: "" }, "all"),
      ...values.map((value) => element("option", { value }, words(String(value)))));
    return element("label", {}, title, select);
  }));
}

function makeHead(columns) {
  byId("results").tHead.replaceChildren(element("tr", {}, ...columns.map(({ key, title, number: numeric }) => {
    const head = element("th", { scope: "col", className: numeric ? "number" : "" }, title);
    if (order.key === key) head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    head.addEventListener("click", () => {
      order = { key, descending: order.key === key ? !order.descending : false };
      render();
    });
    return head;
  })));
}

function makeRow(row, columns) {
  const cells = columns.map(({ key, cell, format, number: numeric, className }) => {
    const content = cell ? cell(row) : [format ? format(row[key]) : row[key] ?? ""];
    return element("td", { className: className ?? (numeric ? "number" : "") }, ...content);
  });
  const made = element("tr", { tabIndex: 0, title: row.job_name }, ...cells);
  made.addEventListener("click", () => open(row.job_name));
  made.addEventListener("keydown", (event) => event.key === "Enter" && open(row.job_name));
  return made;
}

function compare(a, b) {
  const [x, y] = [a[order.key], b[order.key]];
  if (x == null || y == null) return (x == null) - (y == null);
  return (x > y ? 1 : x < y ? -1 : 0) * (order.descending ? -1 : 1);
}

function csvOf(shown) {
  const names = Object.keys(shown[0] ?? {});
  const quote = (value) => (value == null ? "" : /[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : value);
  return [names.join(","), ...shown.map((row) => names.map((name) => quote(row[name])).join(","))].join("\n") + "\n";
}

function render() {
  const shown = chosen().sort(compare);
  const columns = COLUMNS.filter(({ key }) => key !== "reason" || shown.some((row) => row.reason));
  makeHead(columns);
  byId("results").tBodies[0].replaceChildren(...shown.map((row) => makeRow(row, columns)));
  byId("charts").hidden = false; // a canvas must be visible while it is drawn
  byId("charts").hidden = !drawScaling(shown);
  byId("listing").hidden = !rows.length;
  byId("csv").href = URL.createObjectURL(new Blob([csvOf(shown)], { type: "text/csv" }));
  byId("message").textContent = shown.length ? `${shown.length} of ${rows.length} runs` : rows.length ? "No run matches these filters." : "No results yet: trigger a DAG such as llama31, or type: steptime run llama3.1 --wait";
}

async function fetchJson(address) {
  const answer = await fetch(address, { credentials: "same-origin" });
  if (answer.ok) return answer.json();
  throw new Error(answer.status === 401 ? "Log in to Airflow again: your session has ended." : `The metrics store did not answer (${answer.status}).`);
}

async function open(jobName) {
  try {
    const { run, steps, checks, provenance } = await fetchJson(`api/runs/${encodeURIComponent(jobName)}`);
    byId("detail-title").textContent = `${run.label} · ${run.job_name}`;
    byId("detail-links").replaceChildren(badge(run), ` ${run.reason ?? ""} `, logLink(run));
    byId("checks").replaceChildren(...checks.map((check) => element("li", { className: check.passed ? "" : "failed" }, `${check.name}: ${check.message}`)));
    byId("script").textContent = provenance.script ?? "";
    byId("provenance").textContent = JSON.stringify(provenance, null, 2);
    byId("detail").showModal();
    drawSteps(run, steps);
  } catch (error) {
    byId("message").textContent = error.message;
  }
}

async function start() {
  const query = new URLSearchParams([...scope].filter(([key]) => key === "dag_id" || key === "dag_run_id"));
  byId("scope").textContent = scope.get("dag_run_id") ? `of ${scope.get("dag_run_id")}` : "";
  try {
    rows = await fetchJson(`api/results?${query}`);
    makeFilters();
    render();
  } catch (error) {
    byId("message").textContent = error.message;
  }
}

start();
