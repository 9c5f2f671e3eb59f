// The dialog with all about one run: numbers, steps, checks, and what is needed to repeat it.
import { drawAccept } from "./accept.js";
import { drawAgain } from "./again.js";
import { current, go, viewLink } from "./address.js";
import { airflowLink, dagRunAddress, logAddress } from "./airflow.js";
import { drawSteps } from "./charts.js";
import { capitalised, numbersOf } from "./columns.js";
import { byId, element } from "./dom.js";
import { frozen } from "./frozen.js";
import { differencesOf, drawOverlay, otherRun } from "./differences.js";
import { duration, significant, timestamps, words } from "./format.js";
import { stateBadge } from "./runs.js";
import { nodeLink } from "./node.js";
import { givenUp, read } from "./server.js";
import { overPublished, publicationBadge } from "./verdicts.js";

let [shown, compared] = [null, null];

const unit = (value, name) => (value == null || value === "" ? null : `${value} ${name}`);
const section = (title, ...content) => element("section", {}, element("h3", {}, title), ...content);

function facts(pairs) {
  return element("dl", { className: "facts" }, ...Object.entries(pairs)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => element("div", { className: (value.textContent ?? value).length > 80 ? "wide" : "" }, element("dt", {}, name), element("dd", {}, value))));
}

const COST = ["bus_bandwidth_gb_s", "peak_memory_gib", "gpu_power_mean_w", "energy_per_step_j", "joules_per_token", "price_per_million_tokens", "days_per_1t_tokens", "gpu_hours", "goodput_percent", "in_steps_s", "first_steps_s", "in_checkpoints_s", "queue_wait_s"];

const groupOf = (name) => (COST.includes(name) ? "cost" : name.endsWith("_s") && !name.startsWith("tokens") ? "times" : "rates");
const OF_ITS_SCALE = ["scaling_efficiency_low_percent", "scaling_efficiency_high_percent"];

/** The efficiency is the run's own; the interval is that of the mean of all jobs of its scale, as its text states. */
function numbers(run, peakSource) {
  const own = Object.fromEntries(OF_ITS_SCALE.map((name) => [name, null]));
  const [low, high] = OF_ITS_SCALE.map((name) => significant(run[name], 3));
  const known = numbersOf({ ...run, ...own, step_time_over_published: null });
  const group = (wanted) => Object.fromEntries(known.filter(([, , name]) => groupOf(name) === wanted));
  const times = facts({
    "Window": `steps ${run.window}`,
    ...group("times"),
    "Against the publication": overPublished(run.step_time_over_published),
  });
  const rates = facts({
    ...group("rates"),
    "Mean efficiency of its scale's jobs": low ? `${low} to ${high} %, 95 % interval` : null,
    "Efficiency relative to": run.scaling_base_gpus ? `${run.scaling_base_gpus} GPU${run.scaling_base_gpus === 1 ? "" : "s"}: ${run.scaling_base_jobs}` : null,
    "MFU formula": run.flops_formula,
    "Peak of the MFU": peakSource,
  });
  return element("div", { className: "numbers" }, section("Times", times), section("Throughput", rates), section("Cost and memory", facts(group("cost"))));
}

const attempt = ({ job, status }) => `${job.job_id} ${status.state}${status.reason ? ` (${status.reason})` : ""}`;

/** What is wrong with each node, else its rate, by its slowest rank; and the rate of all together. */
function nodeRates(found) {
  if (!found) return null;
  const nodes = found.nodes.map(({ node, faults, matmul_tflops: rate }) =>
    `${node} ${faults.join("; ") || unit(significant(rate), "TFLOPS") || "no fault"}`);
  const together = found.all_reduce && `all-reduce ${unit(significant(found.all_reduce.bus_gb_per_s), "GB/s")}`;
  return [...nodes, together].filter(Boolean).join(", ");
}

function settings(run, record, { forward_pass: forwardPass, gpu_samples: gpuSamples }) {
  const when = timestamps();
  const { staged, environment, ...madeBy } = record.provenance;
  const commit = madeBy.git_commit?.slice(0, 12);
  return facts({
    "Workload": run.workload,
    "Hardware": `${run.gpus} ${run.gpu_type === "cpu" ? `CPU rank${run.gpus === 1 ? "" : "s"}` : `× ${run.gpu_type}`} on ${run.cluster}`,
    "Nodes": frozen ? record.nodes.join(", ") : element("span", {}, ...record.nodes.flatMap((node, place) => [place ? ", " : "", nodeLink(run.cluster, node)])),
    "Network": run.network,
    "Stragglers": run.stragglers,
    "Forward pass": forwardPass,
    "GPUs": gpuSamples,
    "Parallelism": `tensor ${run.tensor_parallel}, pipeline ${run.pipeline_parallel}, context ${run.context_parallel}, data ${run.data_parallel}${run.expert_parallel > 1 ? `, expert ${run.expert_parallel}` : ""}`,
    "Batch": `global ${run.global_batch_size}, micro ${run.micro_batch_size}, ${run.scaling} scaling${run.proxy ? ", proxy" : ""}`,
    "Submitted": when(run.submitted_at),
    "Waited in queue": duration(run.queue_wait_s),
    "Ran": run.ended_at && run.started_at ? duration(run.ended_at - run.started_at) : null,
    "Earlier attempts": record.earlier_attempts.map(attempt).join("; "),
    "Ranks bound to a NUMA node": record.launch?.numa_bound_ranks ? `${record.launch.numa_bound_ranks} of ${run.gpus}` : null,
    "vboost": record.launch?.vboost ? "set" : null,
    "Node check": nodeRates(record.node_check),
    "Versions": Object.entries(record.versions).map(([name, version]) => `${name} ${version}`).join(", "),
    "steptime": commit ? `${madeBy.steptime_version}, commit ${commit}${madeBy.git_clean === false ? " with changes" : ""}` : madeBy.steptime_version,
    "Image": [staged.image, staged.image_digest].filter(Boolean).join(" "),
    "Environment": Object.entries(environment).map(([name, value]) => `${name}=${value}`).join(" "),
    "Log": run.log_path,
  });
}

/** What checks found: one line to be opened if all passed. */
function checkList(checks) {
  if (!checks.every(({ passed }) => passed)) return everyCheck(checks);
  return element("details", { className: "passed" }, element("summary", {}, checks.length === 1 ? "The check passed" : `All ${checks.length} checks passed`), everyCheck(checks));
}

function everyCheck(checks) {
  const kind = ({ passed, severity }) => (passed ? "passed" : severity === "warning" ? "warned" : "failed");
  const order = ["failed", "warned", "passed"];
  return element("ul", { className: "checks" }, ...[...checks].sort((a, b) => order.indexOf(kind(a)) - order.indexOf(kind(b)))
    .map((check) => element("li", { className: kind(check) }, element("b", {}, words(check.name)), ` ${check.message}`)));
}

function links(run) {
  const [log, dagRun] = [logAddress(run), dagRunAddress(run)];
  const file = !frozen && element("a", { download: `${run.job_name}.json`, href: `api/runs/${encodeURIComponent(run.job_name)}`, title: "All that is shown here, to send to somebody without Airflow" }, "Save as a file");
  return [log && airflowLink(log, "Task log"), dagRun && airflowLink(dagRun, `DAG run ${run.dag_run_id}`), file].filter(Boolean);
}

const folded = (title, content, remark) => element("details", {}, element("summary", {}, title),
  ...(remark ? [element("p", { className: "remark" }, remark)] : []), element("pre", { tabIndex: 0 }, content));

function copyable(command) {
  const button = element("button", { type: "button" }, "Copy");
  const line = element("code", {}, command);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(line); // without https there is no clipboard: ready for Ctrl+C
    }
  });
  return element("div", { className: "command" }, line, button);
}

/** The command, with what the run was made with and what would differ today. */
function repeating({ command, made_with: madeWith, differs }) {
  const others = differs.length ? `Today this would differ: ${differs.join("; ")}.` : "The code here is the same.";
  const image = madeWith.image && !madeWith.image.includes("@sha256:") ? " The image is fetched by name: compare its digest." : "";
  return [
    command ? copyable(command) : element("p", {}, "Today's recipes no longer plan this run; its plan is in its record, under run."),
    element("p", { className: "remark", id: "repeat-differs" }, others + image),
    facts(Object.fromEntries(Object.entries(madeWith).map(([name, value]) => [capitalised(name), value]))),
  ];
}

/** Show the run that the address names, or none. */
export async function showRun(address) {
  const name = address.get("run");
  if (!name) byId("detail").close();
  else if (frozen && !Object.hasOwn(frozen.answers, `api/runs/${name}`)) {
    shown = null;
    byId("detail-title").replaceChildren(name);
    byId("detail-body").replaceChildren(element("p", {}, "This file has no details of this run: see the page in Airflow."));
    if (!byId("detail").open) byId("detail").showModal();
  } else {
    if (!byId("detail").open || name !== shown?.run.job_name) fill(await read(`api/runs/${encodeURIComponent(name)}`));
    await tryToCompare();
  }
}

/** Compare the run with the other one that the address names. */
async function compare() {
  const other = current().get("with");
  const place = byId("beside");
  if (!other) place.replaceChildren();
  else if (place.dataset.other !== other) {
    compared = await read(`api/differences?${new URLSearchParams({ run: shown.run.job_name, other })}`);
    const [section, canvas] = differencesOf(compared);
    place.replaceChildren(section);
    if (canvas.isConnected) drawOverlay(canvas, compared);
  }
  place.dataset.other = other ?? "";
}

/** Errors of the comparison are shown in the dialog, which covers the page. */
async function tryToCompare() {
  try {
    await compare();
  } catch (error) {
    if (givenUp(error)) throw error;
    byId("beside").replaceChildren(element("p", { className: "verdict rejected", role: "alert" }, error.message));
    byId("beside").dataset.other = "";
  }
}

/** How the run compares with the usual time, and what changed when its level began. */
const verdictLine = ({ sentence, changed }) => element("p", { className: "judgement" }, element("strong", {}, capitalised(sentence)), changed ? `; changed with it: ${changed}` : "");

/** The lines of the log that show why the run failed. */
function logExcerpt({ log: { excerpt }, cause }) {
  return element("details", { className: "excerpt", open: cause !== null }, element("summary", {}, "Log excerpt"), element("pre", { tabIndex: 0 }, excerpt));
}

/** Fill the dialog with a run, as `api/runs/…` gives it. */
function fill(whole) {
  const { run, steps, checks } = whole;
  const record = JSON.parse(whole.record);
  shown = whole;
  const mark = publicationBadge(run);
  byId("detail-title").replaceChildren(run.label, " ", stateBadge(run), ...(mark ? [element("span", { className: "publication" }, "publication: ", mark)] : []), element("small", {}, run.job_name));
  const note = run.reason ?? run.warnings;
  const accepting = element("section", { className: "accepting", ariaLabel: "Accept the level from this run on" });
  drawAccept(accepting, run, whole.may_accept, () => go({ view: "trend", series: run.job_name, run: null, with: null }));
  const again = element("section", { className: "again", ariaLabel: "Run this cell again" });
  drawAgain(again, run, whole.may_run_again);
  const chart = element("div", { className: "chart" }, element("canvas", { id: "steps" }));
  chart.firstChild.setAttribute("role", "img");
  byId("detail-body").replaceChildren(
    element("p", { className: "links" }, ...(whole.has_trend ? [viewLink({ view: "trend", series: run.job_name }, "Trend of its series")] : []), ...links(run)),
    ...(whole.sentence ? [verdictLine(whole)] : []),
    ...(whole.cause ? [element("p", { className: "verdict rejected" }, element("strong", {}, capitalised(whole.cause)))] : []),
    ...(whole.log.excerpt ? [logExcerpt(whole)] : []),
    ...(note && note.replace(/\.$/, "") !== whole.cause?.replace(/\.$/, "") ? [element("p", { className: run.reason ? "remark" : "verdict warned" }, note)] : []),
    numbers(run, whole.peak_source),
    ...(frozen ? [] : [otherRun(run, current().get("with"), tryToCompare)]),
    accepting,
    again,
    element("div", { id: "beside" }),
    ...(steps.length ? [section("Steps", chart)] : []),
    section("Data-quality checks", checkList(checks)),
    section("What ran", settings(run, record, whole)),
    section("To repeat it", ...repeating(whole.repeat)),
    folded("Job script", record.provenance.script),
    folded("Record (JSON)", whole.record, `never changed; sha256 ${whole.record_sha256}`),
    folded("Everything else (JSON)", JSON.stringify({ ...whole, steps: `${steps.length} steps`, record: undefined }, null, 2)),
  );
  if (!byId("detail").open) byId("detail").showModal();
  byId("detail-body").scrollTop = 0;
  if (steps.length) drawSteps(run, steps);
}

/** Redraw the dialog, in the colours of another theme. */
export function redrawRun() {
  if (!byId("detail").open || !shown) return;
  if (shown.steps.length) drawSteps(shown.run, shown.steps);
  if (byId("overlay")) drawOverlay(byId("overlay"), compared);
}

byId("close").addEventListener("click", () => byId("detail").close());
byId("detail").addEventListener("click", (event) => {
  if (event.target === byId("detail")) byId("detail").close(); // on the backdrop
});
