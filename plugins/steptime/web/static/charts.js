// Charts of the page, drawn with Chart.js (vendored). Data comes in as rows of the metrics store.
import { ofSeries } from "./columns.js";
import { byId, element } from "./dom.js";
import { significant } from "./format.js";

const MAX_SERIES = 12;
const COLOURS = 8;
const DASHES = [[], [2, 2]]; // from the ninth series on the colours come again, dotted
const LOGARITHMIC_FROM = 8; // ratio of the largest to the smallest value

const hidden = new Set();

/** A colour of the style sheet as the theme has it now. */
export function colour(name) {
  const probe = document.body.appendChild(element("span"));
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** Draw a chart on a canvas, in today's colours; `described` is what people hear who do not see it. */
export function draw(canvas, config, described) {
  Chart.getChart(canvas)?.destroy();
  Chart.defaults.color = colour("--quiet");
  Chart.defaults.borderColor = colour("--line");
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 12;
  canvas.setAttribute("aria-label", described);
  const options = { animation: false, maintainAspectRatio: false, ...config.options };
  return new Chart(canvas, { ...config, options });
}

/** Let go of all charts, whose canvases are about to leave the document. */
export function forgetCharts() {
  for (const chart of Object.values(Chart.instances)) chart.destroy();
}

/** A figure with room for a chart: [the figure, its canvas]. */
export function figureFor(id, title, remark) {
  const canvas = element("canvas", { id, role: "img" });
  return [element("figure", {}, element("figcaption", {}, title, " ", element("span", {}, remark)), element("div", { className: "chart" }, canvas)), canvas];
}

export function median(values) {
  const ordered = [...values].sort((a, b) => a - b);
  const middle = Math.floor(ordered.length / 2);
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}

/** Valid performance runs in series that may be compared, each with its runs by number of GPUs. */
function seriesOf(rows) {
  const measured = rows.filter((row) => row.state === "valid" && row.mode === "performance" && row.step_time_mean_s);
  const series = ofSeries("model", "variant");
  const apart = series.filter((key) => measured.some((row) => row[key] !== measured[0][key]));
  const named = apart.length ? apart : [...ofSeries("model"), "dtype"];
  const groups = new Map();
  for (const row of measured) {
    const key = JSON.stringify(series.map((name) => row[name]));
    if (!groups.has(key)) groups.set(key, { key, row, runs: 0, scales: new Map() });
    const { scales } = groups.get(key);
    groups.get(key).runs += 1;
    if (!scales.has(row.gpus)) scales.set(row.gpus, []);
    scales.get(row.gpus).push(row);
  }
  const name = (row) => named.map((key) => (key === "proxy" ? (row.proxy ? "proxy" : "") : row[key])).filter(Boolean).join(" · ");
  return [...groups.values()].map((group) => ({ ...group, name: name(group.row), scales: new Map([...group.scales].sort(([a], [b]) => a - b)) }));
}

/** Both curves of a series under linear scaling: the throughput per GPU of its smallest scale, everywhere. */
function linear(scales) {
  const [[base, runs]] = scales;
  const perGpu = median(runs.map((row) => row.tokens_per_s)) / base;
  const tokensPerStep = (rows) => rows[0].tokens_per_s * rows[0].step_time_mean_s;
  return {
    tokens_per_s: (gpus) => perGpu * gpus,
    step_time_mean_s: (gpus) => tokensPerStep(scales.get(gpus)) / (perGpu * gpus),
  };
}

function datasets({ name, key, scales, style }, column) {
  const points = [...scales].map(([x, rows]) => ({ x, y: median(rows.map((row) => row[column])), rows }));
  const base = { label: name, borderColor: style.colour, backgroundColor: style.colour, hidden: hidden.has(key) };
  const made = [{ ...base, data: points, borderWidth: 2, borderDash: style.dash, pointRadius: 4, pointHoverRadius: 6 }];
  if (scales.size > 1) {
    const ideal = linear(scales)[column];
    const line = [...scales.keys()].map((x) => ({ x, y: ideal(x) }));
    made.push({ ...base, data: line, isIdeal: true, borderWidth: 1.25, borderDash: [6, 5], pointRadius: 0, pointHitRadius: 0 });
  }
  const repeats = points.flatMap(({ x, rows }) => (rows.length > 1 ? rows.map((row) => ({ x, y: row[column] })) : []));
  if (repeats.length) made.push({ ...base, data: repeats, isRepeat: true, showLine: false, pointRadius: 2, pointHitRadius: 0 });
  return made;
}

const spread = (values) => Math.max(...values) / Math.min(...values);

/** 1, 2 and 5 times powers of ten, or the powers alone if those would be many. */
function roundTicks(min, max) {
  const [first, last] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
  const leading = last - first > 3 ? [1] : [1, 2, 5];
  const values = Array.from({ length: last - first + 1 }, (_, index) => leading.map((digit) => digit * 10 ** (first + index))).flat();
  return values.filter((value) => value >= min && value <= max).map((value) => ({ value }));
}

function valueAxis(sets, unit) {
  const values = sets.filter((set) => !set.hidden).flatMap((set) => set.data.map(({ y }) => y)).filter((y) => y > 0);
  const logarithmic = values.length > 0 && spread(values) > LOGARITHMIC_FROM;
  const title = { display: true, text: logarithmic ? `${unit} (logarithmic)` : unit };
  const ticks = { callback: (value) => significant(value, 3), maxTicksLimit: 6 };
  if (!logarithmic) return { type: "linear", title, ticks, beginAtZero: true };
  const [min, max] = [Math.min(...values) / 1.2, Math.max(...values) * 1.2];
  return { type: "logarithmic", title, ticks, min, max, afterBuildTicks: (axis) => { axis.ticks = roundTicks(min, max); } };
}

export function rankAxis(ranks, unit) {
  const logarithmic = spread(ranks) > LOGARITHMIC_FROM;
  const margin = logarithmic ? [ranks[0] / 1.15, ranks.at(-1) * 1.15] : [ranks[0] - 0.25, ranks.at(-1) + 0.25];
  return {
    type: logarithmic ? "logarithmic" : "linear",
    min: margin[0],
    max: margin[1],
    title: { display: true, text: `${unit}s` },
    afterBuildTicks: (axis) => { axis.ticks = ranks.map((value) => ({ value })); },
    ticks: { callback: (value) => String(value), autoSkip: true, maxRotation: 0 },
  };
}

function tooltip(item, unit) {
  const { label, data } = item.dataset;
  const { rows } = data[item.dataIndex];
  const several = rows.length > 1 ? ` (median of ${rows.length} runs)` : "";
  return `${label}: ${significant(item.parsed.y)} ${unit}${several}`;
}

function scalingChart(canvas, series, ranks, column, unit, rankUnit, title) {
  const sets = series.flatMap((one) => datasets(one, column));
  draw(canvas, {
    type: "line",
    data: { datasets: sets },
    options: {
      interaction: { mode: "nearest", intersect: false },
      scales: { x: rankAxis(ranks, rankUnit), y: valueAxis(sets, unit) },
      plugins: {
        legend: { display: false },
        tooltip: {
          filter: ({ dataset }) => !dataset.isIdeal && !dataset.isRepeat,
          callbacks: { title: ([item]) => (item ? `${item.parsed.x} ${rankUnit}${item.parsed.x === 1 ? "" : "s"}` : ""), label: (item) => tooltip(item, unit) },
        },
      },
    },
  }, `${title} over ${rankUnit}s: ${series.map(({ name }) => name).join("; ")}`);
}

function legendOf(series, left, redraw) {
  const items = series.map(({ key, name, style }) => {
    const button = element("button", { type: "button", title: "Show or hide" }, element("i"), name);
    button.firstChild.style.borderTop = `3px ${style.dash.length ? "dotted" : "solid"} ${style.colour}`;
    button.setAttribute("aria-pressed", String(!hidden.has(key)));
    button.addEventListener("click", () => {
      if (!hidden.delete(key)) hidden.add(key);
      redraw();
      byId("legend").querySelectorAll("button")[series.findIndex((one) => one.key === key)].focus();
    });
    return element("li", {}, button);
  });
  if (left) items.push(element("li", {}, `and ${left} more series: filter to see them`));
  return element("ul", { id: "legend", ariaLabel: "Series" }, ...items);
}

/** Draw step time and throughput over GPUs or ranks in a section; hides it if there is nothing to draw. */
export function drawScaling(section, rows, unit) {
  const all = seriesOf(rows).sort((a, b) => b.scales.size - a.scales.size || b.runs - a.runs);
  section.hidden = !all.length;
  if (!all.length) return;
  const series = all.slice(0, MAX_SERIES).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  series.forEach((one, index) => {
    one.style = { colour: colour(`--series-${(index % COLOURS) + 1}`), dash: DASHES[Math.floor(index / COLOURS)] };
  });
  const ranks = [...new Set(series.flatMap(({ scales }) => [...scales.keys()]))].sort((a, b) => a - b);
  const [times, timeCanvas] = figureFor("step-time", "Step time", "s, mean of the window; dashed: at linear scaling");
  const [rates, rateCanvas] = figureFor("throughput", "Throughput", "tokens/s; dashed: linear from the smallest scale");
  for (const canvas of section.querySelectorAll("canvas")) Chart.getChart(canvas)?.destroy();
  section.replaceChildren(times, rates, legendOf(series, all.length - series.length, () => drawScaling(section, rows, unit)));
  scalingChart(timeCanvas, series, ranks, "step_time_mean_s", "s", unit, "Step time");
  scalingChart(rateCanvas, series, ranks, "tokens_per_s", "tokens/s", unit, "Throughput");
}

/** Draw one run's step times over global steps, the averaged window in full colour, and the loss beside it. */
export function drawSteps(run, steps) {
  const [first, last] = run.window.split(":").map(Number);
  const inWindow = ({ global_step: step }) => step >= first && step <= last;
  const series = (wanted) => steps.map((step) => (inWindow(step) === wanted ? step.step_time_s : null));
  const losses = steps.map((step) => step.loss);
  const bars = { type: "bar", stack: "steps", barPercentage: 0.95, categoryPercentage: 0.95, maxBarThickness: 48 };
  const sets = [
    { ...bars, label: `step time in the window ${run.window}, s`, data: series(true), backgroundColor: colour("--series-1") },
    { ...bars, label: "step time outside, s", data: series(false), backgroundColor: colour("--faint") },
  ].filter((set) => set.data.some((value) => value != null));
  const withLoss = losses.some((loss) => loss != null);
  if (withLoss) {
    const line = colour("--series-2");
    sets.unshift({ type: "line", label: "loss", data: losses, yAxisID: "loss", borderColor: line, backgroundColor: line, borderWidth: 1.5, pointRadius: steps.length > 60 ? 0 : 2 });
  }
  draw(byId("steps"), {
    data: { labels: steps.map((step) => step.global_step), datasets: sets },
    options: {
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { stacked: true, title: { display: true, text: "global step" }, grid: { display: false }, ticks: { maxRotation: 0 } },
        y: { stacked: true, title: { display: true, text: "step time, s" }, beginAtZero: true },
        loss: { display: withLoss, position: "right", title: { display: true, text: "loss" }, grid: { display: false } },
      },
      plugins: { legend: { position: "bottom", labels: { boxWidth: 12, boxHeight: 12 } } },
    },
  }, `Step times of ${run.label} over global steps`);
}
