// Charts of the page, drawn with Chart.js (vendored). Data comes in as rows of the metrics store.
import { byId, element } from "./dom.js";
import { significant } from "./format.js";

const LOGARITHMIC_FROM = 8; // ratio of the largest to the smallest value
const STEADY_AFTER = 5; // steps
const WHOLE_POINT_PX = 8; // so far outside the axes is drawn what lies on them

/** A colour of the style sheet as the theme has it now. */
export function colour(name) {
  const probe = document.body.appendChild(element("span"));
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** Draw a chart on a canvas, in today's colours; `described` is read out to people who do not see it. */
export function draw(canvas, config, described) {
  Chart.getChart(canvas)?.destroy();
  Chart.defaults.color = colour("--quiet");
  Chart.defaults.borderColor = colour("--line");
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 12;
  canvas.setAttribute("aria-label", described);
  const options = { animation: false, maintainAspectRatio: false, clip: WHOLE_POINT_PX, ...config.options };
  return new Chart(canvas, { ...config, options });
}

/** Destroy all charts before their canvases leave the document. */
export function forgetCharts() {
  for (const chart of Object.values(Chart.instances)) chart.destroy();
}

/** Return a figure for a chart: [the figure, its canvas]. */
export function figureFor(id, title, remark) {
  const canvas = element("canvas", { id, role: "img" });
  return [element("figure", {}, element("figcaption", {}, title, " ", element("span", {}, remark)), element("div", { className: "chart" }, canvas)), canvas];
}

/** Whiskers from end to end of each point's interval, as far as the axes go. */
export const intervals = {
  id: "intervals",
  afterDatasetsDraw(chart) {
    const { ctx, chartArea: { left, top: upper, width, height }, scales: { y } } = chart;
    chart.data.datasets.forEach(({ data, borderColor }, index) => {
      if (!chart.isDatasetVisible(index)) return;
      data.forEach(({ low, high }, place) => {
        if (low == null) return;
        const { x } = chart.getDatasetMeta(index).data[place];
        const [top, bottom] = [y.getPixelForValue(high), y.getPixelForValue(low)];
        ctx.save();
        ctx.beginPath();
        ctx.rect(left, upper, width, height);
        ctx.clip();
        Object.assign(ctx, { strokeStyle: borderColor, lineWidth: 1.5 });
        ctx.beginPath();
        for (const [from, to] of [[[x, top], [x, bottom]], [[x - 4, top], [x + 4, top]], [[x - 4, bottom], [x + 4, bottom]]]) {
          ctx.moveTo(...from);
          ctx.lineTo(...to);
        }
        ctx.stroke();
        ctx.restore();
      });
    });
  },
};

const spread = (values) => Math.max(...values) / Math.min(...values);

/** 1, 2 and 5 times powers of ten, or the powers alone if those would be many. */
function roundTicks(min, max) {
  const [first, last] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
  const leading = last - first > 3 ? [1] : [1, 2, 5];
  const values = Array.from({ length: last - first + 1 }, (_, index) => leading.map((digit) => digit * 10 ** (first + index))).flat();
  return values.filter((value) => value >= min && value <= max).map((value) => ({ value }));
}

/** An axis that is fitted to its values: it does not begin at zero, and is logarithmic if they are far apart. */
export function valueAxis(values, unit) {
  const logarithmic = spread(values) > LOGARITHMIC_FROM;
  const title = { display: true, text: logarithmic ? `${unit} (logarithmic)` : unit };
  const ticks = { callback: (value) => significant(value, 4), maxTicksLimit: 6 };
  if (!logarithmic) return { type: "linear", title, ticks, grace: "8%" };
  const [min, max] = [Math.min(...values) / 1.2, Math.max(...values) * 1.2];
  return { type: "logarithmic", title, ticks, min, max, afterBuildTicks: (axis) => { axis.ticks = roundTicks(min, max); } };
}

/** An axis of percent, fitted to its values but for the room around 100. */
export function percentAxis(values) {
  const [low, high] = [Math.min(90, ...values), Math.max(105, ...values)];
  const stepSize = [5, 10, 25, 50].find((step) => (high - low) / step <= 8) ?? 100;
  return {
    min: Math.floor(low / stepSize) * stepSize, max: Math.ceil(high / stepSize) * stepSize,
    title: { display: true, text: "%" }, ticks: { stepSize },
  };
}

/** An axis of scales: people double them, so that each doubling is as wide. */
export function rankAxis(ranks, unit) {
  const margin = Math.max(1.15, spread(ranks) ** 0.03);
  return {
    type: "logarithmic",
    min: ranks[0] / margin,
    max: ranks.at(-1) * margin,
    title: { display: true, text: `${unit}s` },
    afterBuildTicks: (axis) => { axis.ticks = ranks.map((value) => ({ value })); },
    ticks: { callback: (value) => String(value), autoSkip: true, maxRotation: 0 },
  };
}

/** An axis for the steps of the window: the first steps of a run, which take longer, do not flatten the others. */
function stepAxis(seconds) {
  const [low, high] = [Math.min(...seconds), Math.max(...seconds)];
  const room = Math.max((high - low) * 0.5, high * 0.02);
  return { min: Math.max(0, low - room), max: high + room, title: { display: true, text: "step time, s" }, ticks: { callback: (value) => significant(value, 4), includeBounds: false } };
}

/** The steps after the first ones, which take longer. */
export const steady = (steps) => steps.slice(Math.min(STEADY_AFTER, steps.length - 1));

/** Draw one run's step times over global steps, the averaged window in full colour, and the loss beside it. */
export function drawSteps(run, steps) {
  const [first, last] = run.window.split(":").map(Number);
  const inWindow = ({ global_step: step }) => step >= first && step <= last;
  const later = steady(steps).map(({ step_time_s: seconds }) => seconds).filter((seconds) => seconds != null);
  const axis = stepAxis(later.length ? later : [0, 1]);
  const isShown = (seconds) => seconds != null && seconds >= axis.min && seconds <= axis.max;
  const left = steps.map(({ step_time_s: seconds }) => seconds).filter((seconds) => seconds != null && !isShown(seconds));
  const leftOut = left.length ? `; ${left.length} not drawn, up to ${significant(Math.max(...left))} s` : "";
  const series = (wanted) => steps.map((step) => (inWindow(step) === wanted && isShown(step.step_time_s) ? step.step_time_s : null));
  const losses = steps.map((step) => step.loss);
  const points = { type: "line", borderWidth: 1, pointRadius: steps.length > 60 ? 2 : 3 };
  const tone = (name) => ({ borderColor: colour(name), backgroundColor: colour(name) });
  const sets = [
    { ...points, label: `step time in the window ${run.window}, s`, data: series(true), ...tone("--series-1") },
    { ...points, label: `step time outside, s${leftOut}`, data: series(false), ...tone("--quiet") },
  ].filter((set) => set.data.some((value) => value != null));
  const withLoss = losses.some((loss) => loss != null);
  if (withLoss) {
    const line = colour("--series-2");
    sets.push({ type: "line", label: "loss", data: losses, yAxisID: "loss", borderColor: line, backgroundColor: line, borderWidth: 1, borderDash: [3, 3], pointRadius: 0 });
  }
  draw(byId("steps"), {
    data: { labels: steps.map((step) => step.global_step), datasets: sets },
    options: {
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { title: { display: true, text: "global step" }, grid: { display: false }, ticks: { maxRotation: 0 } },
        y: axis,
        loss: { display: withLoss, position: "right", title: { display: true, text: "loss" }, grid: { display: false } },
      },
      plugins: { legend: { position: "bottom", labels: { boxWidth: 12, boxHeight: 12 } } },
    },
  }, `Step times of ${run.label} over global steps`);
}
