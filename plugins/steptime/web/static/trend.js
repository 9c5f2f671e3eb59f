// A series over time: its runs, what was usual then, what changed, and what is published.
import { drawAccept, standsOut } from "./accept.js";
import { current, go } from "./address.js";
import { timeZone } from "./airflow.js";
import { colour, draw, figureFor } from "./charts.js";
import { capitalised, columnsOf } from "./columns.js";
import { element } from "./dom.js";
import { significant, timestamps } from "./format.js";
import { read, readNew, rowsOf } from "./server.js";
import { makeTable } from "./table.js";
import { announce, attempt, summarise } from "./messages.js";
import { publicationBadge, signed, verdictBadge } from "./verdicts.js";

export const title = "Trend";

const DAY_S = 86400;
const TICK_DAYS = [1, 7, 14, 28, 56, 182, 364, 1820]; // between dates on the axis, which go back from the newest run
const MOST_TICKS = 9;
const COLOURS = { slower: "--bad", faster: "--good", unchanged: "--series-1", "insufficient history": "--series-8" };
const ADDED = {
  submitted_at: { cell: openCell, className: "run" },
  judged_s: { className: "main" },
  change_percent: { write: signed },
  verdict: { cell: verdictBadge },
  against_publication: { cell: publicationBadge },
  changes: { write: (value) => value, className: "words" },
};
const LEFT_OUT = ["suspicion", "baseline_s", "published_step_time_s", "job_name", "since"];

let [answer, known, parts] = [null, [], null];

function openCell(row) {
  return element("button", { type: "button", className: "open", title: row.job_name, onclick: () => go({ run: row.job_name }) }, timestamps()(row.submitted_at));
}

function nameOf({ label, workload, scaling, gpu_type: type, cluster, tensor_parallel: tp, pipeline_parallel: pp, expert_parallel: ep }) {
  return `${label} · ${workload}, ${scaling}, ${type} of ${cluster}, TP${tp} PP${pp}${ep > 1 ? ` EP${ep}` : ""}`;
}

/** Make what the view is made of. */
export function open(box) {
  const choice = element("select", { id: "series", onchange: ({ target }) => go({ series: target.value }) });
  const form = element("form", { className: "filters", onsubmit: (event) => event.preventDefault() }, element("label", {}, "Series", choice));
  const charts = element("section", { className: "wide", ariaLabel: "Chart" });
  const listing = element("section", { id: "listing", ariaLabel: "Runs of the series", hidden: true });
  const drawRows = makeTable(listing, { mark: (row, made) => { made.dataset.run = row.job_name; } });
  const [remark, since] = [element("span"), element("span", { id: "since" })];
  const accepting = element("section", { id: "accepting", ariaLabel: "Accept the level" });
  box.append(form, charts, element("p", { className: "footnote" }, remark, since), accepting, listing);
  parts = { choice, charts, listing, remark, since, accepting, drawRows };
  answer = null;
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

function datasets(rows, { published, passesUntil, range: [min, max, near] }) {
  const line = (label, key, options) => ({ label, data: rows.map((row) => ({ x: row.submitted_at, y: row[key] })), pointRadius: 0, pointHitRadius: 0, borderWidth: 0, ...options });
  const level = (label, seconds, options) => line(label, null, { data: [rows[0], rows.at(-1)].map((row) => ({ x: row.submitted_at, y: seconds })), borderColor: colour("--series-2"), ...options });
  const colours = rows.map(({ verdict }) => colour(COLOURS[verdict]));
  const band = colour("--band");
  return [
    { label: "runs", data: rows.map((row) => ({ x: row.submitted_at, y: row.judged_s, row })), borderColor: colour("--faint"), borderWidth: 1,
      pointBackgroundColor: colours, pointBorderColor: colours, pointRadius: 5, pointHoverRadius: 7, pointStyle: rows.map(({ suspicion }) => (suspicion === "confirmed" ? "rectRot" : "circle")) },
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
  const [first, last] = [rows[0].submitted_at, rows.at(-1).submitted_at];
  const margin = Math.max((last - first) * 0.02, DAY_S / 4);
  const step = DAY_S * (TICK_DAYS.find((days) => (last - first) / DAY_S / days < MOST_TICKS) ?? TICK_DAYS.at(-1));
  const dates = Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, index) => ({ value: last - index * step }));
  return {
    type: "linear", min: first - margin, max: last + margin, grid: { display: false },
    afterBuildTicks: (axis) => { axis.ticks = dates.toReversed(); },
    ticks: { callback: (seconds) => format.format(seconds * 1000), maxRotation: 0 },
  };
}

function pointText({ raw: { row } }) {
  const known = row.change_percent == null ? "" : `, ${signed(row.change_percent)} %`;
  const suspicion = row.suspicion ? `, ${row.suspicion}` : "";
  return [`${significant(row.judged_s)} s${known}: ${row.verdict}${suspicion}`, ...(row.against_publication === "below" ? ["below the publication"] : []), ...(row.changes ? row.changes.split("; ").map((one) => `changed: ${one}`) : []), ...(row.accepted ? [`accepted: ${row.accepted}`] : [])];
}

/** What is drawn, and nothing that is not. */
function legend(rows, published, { range: [min, max, near], passes_until_s: passesUntil }) {
  const marks = {
    "band: usual for one run": rows.some(({ high_s: high }) => high != null),
    "◆ confirmed": rows.some(({ suspicion }) => suspicion === "confirmed"),
    "dotted: something changed": rows.some(({ changes }) => changes),
    "flag: level accepted": rows.some(({ accepted }) => accepted),
    "violet: level": rows.some(drifts),
    "dashed: published": published != null && near,
    "fine dots: passes it until there": passesUntil > min && passesUntil < max,
  };
  return ["seconds", ...Object.keys(marks).filter((words) => marks[words])].join("; ");
}

function drawChart(rows, label) {
  const { published_step_time_s: published, against_publication: mark } = rows.at(-1);
  const { range: [min, max, near], passes_until_s: passesUntil } = answer;
  const [figure, canvas] = figureFor("trend", label, legend(rows, published, answer));
  for (const old of parts.charts.querySelectorAll("canvas")) Chart.getChart(old)?.destroy();
  parts.charts.replaceChildren(figure);
  draw(canvas, {
    type: "line",
    data: { datasets: datasets(rows, { published, passesUntil, range: answer.range }) },
    plugins: [events(rows)],
    options: {
      interaction: { mode: "nearest", intersect: false },
      onClick: (_, [point]) => point && go({ run: rows[point.index].job_name }),
      scales: { x: dateAxis(rows), y: { min, max, title: { display: true, text: "s" }, ticks: { callback: (value) => significant(value, 4), maxTicksLimit: 8, includeBounds: false } } },
      plugins: { legend: { display: false }, tooltip: { filter: ({ datasetIndex }) => datasetIndex === 0, callbacks: { title: ([item]) => (item ? timestamps()(item.parsed.x) : ""), label: pointText } } },
    },
  }, `Times of ${label} over dates; the table below has the same`);
  const which = answer.missing ? "the newest valid run" : "the newest run";
  const found = `${which} ${mark === "passes" ? "passes" : "is below"} by its documented number`;
  const laid = published == null ? "" : ` Published: ${significant(published)} s${near ? "" : ", too far away for this picture"}; ${found}.`;
  parts.remark.textContent = `A point leads to its run.${laid}`;
}

function drawChoice(own) {
  parts.choice.replaceChildren(...known.map((one) => element("option", { value: one.job_name }, nameOf(one))));
  const same = known.find((one) => Object.keys(own).every((name) => one[name] === own[name]));
  if (same) parts.choice.value = same.job_name;
}

/** Draw what was read last, in today's colours and time zone. */
export function redraw() {
  if (!answer) return;
  const rows = rowsOf(answer).map((row) => ({ ...answer.series, ...row }));
  drawChoice(answer.series);
  parts.listing.hidden = !rows.length;
  if (!rows.length) {
    announce(element("p", {}, capitalised(answer.stands)));
    return;
  }
  announce();
  const newest = rows.at(-1);
  summarise(element("strong", {}, `${answer.label}: ${answer.stands}`));
  parts.since.textContent = ` ${answer.since}`;
  drawAccept(parts.accepting, newest, answer.may_accept && standsOut(newest), () => attempt(show));
  drawChart(rows, nameOf({ ...answer.series, label: answer.label }));
  parts.drawRows([...rows].reverse(), columnsOf("trend", ADDED).filter(({ name }) => !LEFT_OUT.includes(name) && !(name in answer.series)));
}

/** Read the series that the address names, by any of its runs; else that which ran last. */
export async function show() {
  ({ series: known } = await read("api/series"));
  const wanted = current().get("series") ?? known[0]?.job_name;
  if (wanted) {
    const found = await readNew(answer, `api/trend/${encodeURIComponent(wanted)}`);
    if (found === answer) return;
    answer = found;
    redraw();
  } else {
    summarise("No series.");
    announce(element("p", {}, "Nothing has run that could be judged. Type:"), element("code", {}, "steptime run llama3.1 --wait"));
  }
}
