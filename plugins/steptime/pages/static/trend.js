// A series over time: its runs, the usual range at each time, what changed, and the published time.
import { drawAccept, standsOut } from "./accept.js";
import { current, go, viewLink } from "./address.js";
import { timeZone } from "./airflow.js";
import { colour, draw, figureFor } from "./charts.js";
import { capitalised, columnsOf } from "./columns.js";
import { element } from "./dom.js";
import { DAY_S, grouped, significant, timestamps } from "./format.js";
import { frozen } from "./frozen.js";
import { read, readNew, rowsOf } from "./server.js";
import { makeTable } from "./table.js";
import { announce, attempt, summarise } from "./messages.js";
import { publicationBadge, signed, verdictBadge } from "./verdicts.js";

export const title = "Trend";

const TICK_DAYS = [1, 7, 14, 28, 56, 182, 364, 1820]; // between dates on the axis, which go back from the newest run
const MOST_TICKS = 9;
// Of a point by its own verdict, and how it is called in the legend.
const KINDS = {
  "slower, confirmed": "--bad", "slower, suspected": "--warn", faster: "--good", "unchanged, suspected": "--quiet", unchanged: "--series-1", "insufficient history": "--series-8",
};
const GAP = 1.8; // times the usual time between runs
const ADDED = {
  submitted_at: { cell: openCell, className: "run" },
  run_s: { className: "main" },
  change_percent: { write: signed },
  run_change_percent: { write: signed },
  verdict: { cell: verdictBadge },
  against_publication: { cell: publicationBadge },
  changes: { write: (value) => value, className: "words" },
};
const LEFT_OUT = ["series_state", "baseline_s", "published_step_time_s", "job_name", "since"];

let [answer, other, known, parts] = [null, null, [], null];

function openCell(row) {
  return element("button", { type: "button", className: "open", title: row.job_name, onclick: () => go({ run: row.job_name }) }, timestamps()(row.submitted_at));
}

function nameOf({ label, workload, scaling, gpu_type: type, cluster, tensor_parallel: tp, pipeline_parallel: pp, expert_parallel: ep }) {
  return `${label} · ${workload}, ${scaling}, ${type} of ${cluster}, TP${tp} PP${pp}${ep > 1 ? ` EP${ep}` : ""}`;
}

/** Prepare the view. */
export function open(box) {
  const choice = element("select", { id: "series", onchange: ({ target }) => go({ series: target.value }) });
  const search = element("input", { id: "find-series", type: "search", placeholder: "70b fp8 64", oninput: drawChoice });
  const [previous, next] = [["Previous", -1], ["Next", 1]].map(([name, by]) => element("button", { type: "button", title: "The worst is first", onclick: () => step(by) }, name));
  const beside = element("select", { id: "beside-series", onchange: ({ target }) => go({ beside: target.value }) });
  const form = element("form", { className: "filters", onsubmit: choose }, element("label", {}, "Search", search), element("label", {}, "Series", choice), previous, next, element("label", {}, "Overlay", beside));
  const charts = element("section", { className: "wide", ariaLabel: "Chart" });
  const listing = element("section", { id: "listing", ariaLabel: "Runs of the series", hidden: true });
  const drawRows = makeTable(listing, { mark: (row, made) => { made.dataset.run = row.job_name; } });
  const [remark, since, more] = [element("span"), element("span", { id: "since" }), element("p", { className: "footnote" })];
  const accepting = element("section", { id: "accepting", ariaLabel: "Accept the level" });
  box.append(form, charts, element("p", { className: "footnote" }, remark, since), more, accepting, listing);
  parts = { search, choice, previous, next, beside, charts, listing, remark, since, more, accepting, drawRows };
  answer = other = null;
}

/** Marks what changed, dotted at each run whose record differs from the one before, and accepted levels. */
const events = (rows) => ({
  id: "events",
  beforeDatasetsDraw({ ctx, chartArea: { top, bottom }, scales: { x } }) {
    const mark = (row, dashes, tone, drawHead) => {
      const at = x.getPixelForValue(row.submitted_at);
      ctx.save();
      Object.assign(ctx, { strokeStyle: colour(tone), fillStyle: colour(tone), lineWidth: 1 });
      ctx.setLineDash(dashes);
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, bottom);
      ctx.stroke();
      drawHead(at);
      ctx.restore();
    };
    for (const row of rows.filter(({ changes }) => changes)) mark(row, [2, 3], "--quiet", (at) => ctx.fillRect(at - 3, top, 6, 6));
    for (const row of rows.filter(({ accepted }) => accepted)) {
      mark(row, [], "--series-3", (at) => {
        ctx.beginPath();
        ctx.moveTo(at, top);
        ctx.lineTo(at + 10, top + 5);
        ctx.lineTo(at, top + 10);
        ctx.fill();
      });
    }
  },
});

const kindOf = ({ verdict, series_state: state }) => (verdict === "slower" || (verdict === "unchanged" && state === "suspected") ? `${verdict}, ${state}` : verdict);

/** The longest time between two runs that is no gap, in seconds; confirmation runs of one day count once. */
function longestPause(rows) {
  const pauses = rows.slice(1).map(({ submitted_at: at }, place) => at - rows[place].submitted_at).filter((pause) => pause > DAY_S / 2).sort((a, b) => a - b);
  return pauses.length ? GAP * pauses[Math.floor(pauses.length / 2)] : Infinity;
}

/** Nothing is drawn where nothing ran. */
function gaps(rows) {
  const longest = longestPause(rows);
  const hidden = ({ p0, p1 }) => (p1.parsed.x - p0.parsed.x > longest ? "transparent" : undefined);
  return { borderColor: hidden, backgroundColor: hidden };
}

function datasets(rows, { published, passesUntil, range: [min, max, near] }) {
  const line = (label, key, options) => ({ label, data: rows.map((row) => ({ x: row.submitted_at, y: row[key] })), pointRadius: 0, pointHitRadius: 0, borderWidth: 0, segment: gaps(rows), ...options });
  const level = (label, seconds, options) => line(label, null, { data: [rows[0], rows.at(-1)].map((row) => ({ x: row.submitted_at, y: seconds })), borderColor: colour("--series-2"), segment: {}, ...options });
  const colours = rows.map((row) => colour(KINDS[kindOf(row)]));
  const [changed, failed] = [rows.filter(({ changes, accepted }) => changes || accepted), answer.failed];
  const marks = (label, points, options) => (points.length ? [{ label, showLine: false, pointRadius: 6, pointHoverRadius: 8, pointBorderWidth: 2, ...options, data: points }] : []);
  const band = colour("--band");
  return [
    { label: "runs", data: rows.map((row) => ({ x: row.submitted_at, y: row.run_s, row })), borderColor: colour("--faint"), borderWidth: 1, segment: gaps(rows),
      pointBackgroundColor: colours, pointBorderColor: colours, pointRadius: 5, pointHoverRadius: 7, pointStyle: rows.map(({ series_state: state }) => (state === "confirmed" ? "rectRot" : "circle")) },
    ...marks("events", changed.map((row) => ({ x: row.submitted_at, y: max, row, text: eventText(row) })), { pointStyle: "rect", backgroundColor: colour("--quiet"), borderColor: colour("--quiet") }),
    ...marks("failed", failed.map((row) => ({ x: row.submitted_at, y: min, row, text: [`failed: ${row.reason}`] })), { pointStyle: "crossRot", borderColor: colour("--bad") }),
    line("usual, at most", "high_s", { stepped: "middle", fill: "+1", backgroundColor: band }),
    line("usual, at least", "low_s", { stepped: "middle" }),
    line("baseline", "baseline_s", { borderWidth: 1.5, borderColor: colour("--series-8"), stepped: "middle" }),
    ...(rows.some(drifts) ? [line("level", "level_s", { borderWidth: 2, borderColor: colour("--series-4"), stepped: "middle" })] : []),
    ...(near ? [level("published", published, { borderWidth: 1.5, borderDash: [7, 5] })] : []),
    ...(passesUntil > min && passesUntil < max ? [level("passes the publication until", passesUntil, { borderWidth: 1, borderDash: [2, 4] })] : []),
  ];
}

const drifts = ({ level_s: level }) => level != null;

function dateAxis(rows) {
  const format = new Intl.DateTimeFormat("en", { timeZone: timeZone(), day: "numeric", month: "short" });
  const every = rows.map(({ submitted_at: at }) => at);
  const [first, last] = [Math.min(...every), Math.max(...every)];
  const margin = Math.max((last - first) * 0.02, DAY_S / 4);
  const step = DAY_S * (TICK_DAYS.find((days) => (last - first) / DAY_S / days < MOST_TICKS) ?? TICK_DAYS.at(-1));
  const dates = Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, index) => ({ value: last - index * step }));
  return {
    type: "linear", min: first - margin, max: last + margin, grid: { display: false },
    afterBuildTicks: (axis) => { axis.ticks = dates.toReversed(); },
    ticks: { callback: (seconds) => format.format(seconds * 1000), maxRotation: 0 },
  };
}

const eventText = ({ changes, accepted }) => [...(changes ? changes.split("; ").map((one) => `changed: ${one}`) : []), ...(accepted ? [`accepted: ${accepted}`] : [])];

function pointText({ raw: { row, text } }) {
  if (text) return text;
  const change = row.run_change_percent == null ? "" : `, ${signed(row.run_change_percent)} %`;
  const state = row.series_state === row.verdict ? "" : `, ${row.series_state}`;
  return [`${significant(row.run_s)} s${change}: ${row.verdict}${state}`, ...(row.against_publication === "below" ? ["below the publication"] : []), ...eventText(row)];
}

/** What is drawn, and nothing that is not. */
function legend(rows, published, { range: [min, max, near], passes_until_s: passesUntil }) {
  const marks = {
    "line: usual": rows.some(({ baseline_s: usual }) => usual != null),
    "band: usual for one run": rows.some(({ high_s: high }) => high != null),
    "◆ confirmed": rows.some(({ series_state: state }) => state === "confirmed"),
    "dotted: something changed": rows.some(({ changes }) => changes),
    "✕ at the bottom: failed": answer.failed.length,
    "flag: level accepted": rows.some(({ accepted }) => accepted),
    "violet: level": rows.some(drifts),
    "dashed: published": published != null && near,
    "fine dots: passes it until there": passesUntil > min && passesUntil < max,
  };
  return ["seconds", ...Object.keys(marks).filter((words) => marks[words])].join("; ");
}

/** The colours of the points that are drawn. */
function colourLegend(rows) {
  const kinds = new Set(rows.map(kindOf));
  return element("p", { className: "legend" }, ...Object.entries(KINDS).filter(([kind]) => kinds.has(kind)).map(([kind, tone]) => {
    const dot = element("i", { ariaHidden: "true" });
    dot.style.background = `var(${tone})`;
    return element("span", {}, dot, kind);
  }));
}

const place = ({ submitted_at: x, run_s: seconds, run_change_percent: y }, usual) => ({ x, y: y ?? (usual ? 100 * (seconds / usual - 1) : null) });

/** Draw two series in one chart, each relative to its own usual time. */
function drawOverlay(rows, label) {
  const [figure, canvas] = figureFor("trend", `${label} and ${nameOf({ ...other.series, label: other.label })}`, "change from what was usual for each, %");
  parts.charts.replaceChildren(figure);
  const others = rowsOf(other);
  const sets = [[answer.label, rows, "--series-1"], [other.label, others, "--series-2"]].map(([name, some, tone]) => ({
    label: name, data: some.map((row) => ({ ...place(row, some.at(-1).baseline_s), row })), borderColor: colour(tone), backgroundColor: colour(tone), borderWidth: 1.5, pointRadius: 4, segment: gaps(some),
  }));
  draw(canvas, {
    type: "line",
    data: { datasets: sets },
    options: {
      interaction: { mode: "nearest", intersect: false },
      onClick: (_, [point]) => point && go({ run: sets[point.datasetIndex].data[point.index].row.job_name }),
      scales: { x: dateAxis([...rows, ...others]), y: { title: { display: true, text: "%" }, ticks: { callback: (value) => signed(value) } } },
      plugins: { legend: { position: "bottom", labels: { boxWidth: 12, boxHeight: 12 } }, tooltip: { callbacks: { title: ([item]) => (item ? timestamps()(item.parsed.x) : ""), label: ({ dataset, raw }) => `${dataset.label}: ${significant(raw.row.run_s)} s, ${signed(raw.y)} %` } } },
    },
  }, `Changes of ${answer.label} and ${other.label} over dates`);
}

function drawChart(rows, label) {
  const { published_step_time_s: published, against_publication: mark } = rows.at(-1);
  const { range: [min, max, near], passes_until_s: passesUntil } = answer;
  const [figure, canvas] = figureFor("trend", label, legend(rows, published, answer));
  figure.append(colourLegend(rows));
  parts.charts.replaceChildren(figure);
  const sets = datasets(rows, { published, passesUntil, range: answer.range });
  draw(canvas, {
    type: "line",
    data: { datasets: sets },
    plugins: [events(rows)],
    options: {
      interaction: { mode: "nearest", intersect: false },
      onClick: (_, [point]) => {
        const run = point && sets[point.datasetIndex].data[point.index].row.job_name;
        if (run) go({ run }); // a job that failed without a log has no page
      },
      scales: { x: dateAxis([...rows, ...answer.failed]), y: { min, max, title: { display: true, text: "s" }, ticks: { callback: (value) => significant(value, 4), maxTicksLimit: 8, includeBounds: false } } },
      plugins: { legend: { display: false }, tooltip: { filter: ({ raw: { row } }) => row, callbacks: { title: ([item]) => (item ? timestamps()(item.parsed.x) : ""), label: pointText } } },
    },
  }, `Times of ${label} over dates; the table below has the same`);
  const which = answer.missing ? "the newest valid run" : "the newest run";
  const found = `${which} ${mark === "passes" ? "passes" : "is below"}, by its documented number`;
  const laid = published == null ? "" : ` Published: ${significant(published)} s${near ? "" : ", outside of this chart"}; ${found}.`;
  parts.remark.textContent = `Click a point to open its run.${laid}`;
}

const describeState = ({ series_state: state, direction, change_percent: change }) => (["suspected", "confirmed"].includes(state) ? ` · ${signed(change)} % ${direction}, ${state}` : "");
const optionOf = (one) => element("option", { value: one.job_name }, `${nameOf(one)}${describeState(one)}`);
const ownPlace = () => known.findIndex((one) => Object.keys(answer.series).every((name) => one[name] === answer.series[name]));

/** The series that fit the search, the worst first; the one that is shown stays among them. */
function drawChoice() {
  const words = parts.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const at = ownPlace();
  const fitting = known.filter((one, index) => index === at || words.every((word) => nameOf(one).toLowerCase().includes(word)));
  parts.choice.replaceChildren(...fitting.map(optionOf));
  parts.beside.replaceChildren(element("option", { value: "" }, "none"), ...known.filter((_, index) => index !== at).map(optionOf));
  parts.beside.value = current().get("beside") ?? "";
  if (at >= 0) parts.choice.value = known[at].job_name;
  [parts.previous.disabled, parts.next.disabled] = [at <= 0, at < 0 || at === known.length - 1];
}

const step = (by) => go({ series: known[ownPlace() + by].job_name, run: null });

/** Enter shows the worst of the series that fit the search. */
function choose(event) {
  event.preventDefault();
  const found = [...parts.choice.options].find(({ value }) => value !== known[ownPlace()]?.job_name);
  if (parts.search.value && found) go({ series: found.value });
}

/** Draw the latest answer, in the current colours and time zone. */
export function redraw() {
  if (!answer) return;
  const rows = rowsOf(answer).map((row) => ({ ...answer.series, ...row }));
  drawChoice();
  for (const old of parts.charts.querySelectorAll("canvas")) Chart.getChart(old)?.destroy();
  parts.listing.hidden = parts.accepting.hidden = !rows.length;
  if (!rows.length) {
    parts.charts.replaceChildren();
    [parts.remark.textContent, parts.since.textContent, parts.more.textContent] = ["", "", ""];
    summarise(element("strong", {}, answer.label));
    announce(element("p", {}, capitalised(answer.stands)));
    return;
  }
  announce();
  const newest = rows.at(-1);
  summarise(element("strong", {}, `${answer.label}: ${answer.stands}`));
  parts.since.textContent = ` ${answer.since}`;
  parts.more.replaceChildren(...(answer.runs > rows.length ? [`Shown are the newest ${grouped(rows.length)} of ${grouped(answer.runs)} runs. `, frozen ? "" : viewLink({ view: "trend", series: newest.job_name, every: "true" }, "Show all")] : []));
  drawAccept(parts.accepting, newest, answer.may_accept && standsOut(newest), () => attempt(show));
  const name = nameOf({ ...answer.series, label: answer.label });
  if (other) drawOverlay(rows, name);
  else drawChart(rows, name);
  parts.drawRows([...rows].reverse(), columnsOf("trend", ADDED).filter(({ name }) => !LEFT_OUT.includes(name) && !(name in answer.series)));
}

/** Read the series that the address names, by any of its runs; else the worst. */
export async function show() {
  ({ series: known } = await read("api/series"));
  const wanted = current().get("series") ?? known[0]?.job_name;
  if (wanted) {
    const beside = current().get("beside");
    const every = current().get("every") === "true" ? "?every=true" : "";
    const trendOf = (before, job) => readNew(before, `api/trend/${encodeURIComponent(job)}${every}`);
    const [found, laid] = await Promise.all([trendOf(answer, wanted), beside && beside !== wanted ? trendOf(other, beside) : null]);
    if (found === answer && laid === other) return;
    [answer, other] = [found, laid];
    redraw();
  } else {
    summarise("No series.");
    announce(element("p", {}, "No run has a time to judge yet. Start one with:"), element("code", {}, "steptime run llama3.1 --wait"));
  }
}
