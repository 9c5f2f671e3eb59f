// Scaling: efficiency over GPUs of one sweep run or DAG run, a small chart for each model.
import { current, go, scope } from "./address.js";
import { colour, draw, figureFor, rankAxis } from "./charts.js";
import { ofSeries } from "./columns.js";
import { element } from "./dom.js";
import { fixed, timestamps } from "./format.js";
import { read, rowsOf } from "./server.js";
import { unitOf } from "./table.js";
import { announce, summarise } from "./messages.js";

export const title = "Scaling";

const percent = fixed(1);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

let [answer, parts] = [null, null];

/** Make what the view is made of. */
export function open(box) {
  const choice = element("select", { id: "together", onchange: ({ target }) => go({ together: target.value }) });
  const form = element("form", { className: "filters", hidden: scope.size > 0, onsubmit: (event) => event.preventDefault() }, element("label", {}, "Sweep run or DAG run", choice));
  const multiples = element("section", { id: "multiples", ariaLabel: "Charts, one for each model" });
  box.append(form, multiples, element("p", { className: "footnote" },
    "Efficiency: tokens/s per GPU (on CPUs: per rank) relative to the smallest scale measured together, or where only one was, to the smallest of the nearest earlier runs. Whiskers: its 95 % interval over jobs, from three of a scale on. Dashed: 100 %. Triangles: the publication, relative to its own number at the same smallest scale."));
  parts = { choice, multiples };
  answer = null;
}

function groupsOf(rows, names) {
  const groups = new Map();
  for (const row of rows) {
    const key = names.map((name) => (name === "proxy" ? (row.proxy ? "proxy" : "") : row[name])).filter(Boolean).join(" · ");
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return groups;
}

/** Efficiency by GPUs: the mean of repeats, with each of them, and the interval that it is in. */
function pointsOf(rows) {
  return [...groupsOf(rows, ["gpus"]).values()].map((some) => ({
    x: some[0].gpus, rows: some, y: mean(some.map((row) => row.scaling_efficiency_percent)),
    low: some[0].scaling_efficiency_low_percent, high: some[0].scaling_efficiency_high_percent,
  })).sort((a, b) => a.x - b.x);
}

/** Whiskers from end to end of each point's interval. */
const intervals = {
  id: "intervals",
  afterDatasetsDraw(chart) {
    const { ctx, scales: { y } } = chart;
    chart.data.datasets.forEach(({ data, borderColor }, index) => {
      if (!chart.isDatasetVisible(index)) return;
      data.forEach(({ low, high }, place) => {
        if (low == null) return;
        const { x } = chart.getDatasetMeta(index).data[place];
        const [top, bottom] = [y.getPixelForValue(high), y.getPixelForValue(low)];
        ctx.save();
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

/** What the publication has at the same scales, relative to its smallest of them. */
function publishedPoints(rows) {
  const rates = rows.filter((row) => row.step_time_over_published != null)
    .map((row) => ({ x: row.gpus, rate: row.tokens_per_s_per_gpu * row.step_time_over_published })).sort((a, b) => a.x - b.x);
  const scales = new Set(rates.map(({ x }) => x));
  return scales.size > 1 ? rates.map(({ x, rate }) => ({ x, y: (100 * rate) / rates[0].rate })) : [];
}

function datasets(lines, scales) {
  const made = [...lines].flatMap(([label, rows], index) => {
    const line = colour(`--series-${(index % 8) + 1}`);
    const base = { label: label || "efficiency", borderColor: line, backgroundColor: line };
    const points = pointsOf(rows);
    const repeats = points.flatMap(({ x, rows: some }) => (some.length > 1 ? some.map((row) => ({ x, y: row.scaling_efficiency_percent })) : []));
    const published = publishedPoints(rows);
    return [
      { ...base, data: points, borderWidth: 2, pointRadius: 4 },
      ...(repeats.length ? [{ ...base, data: repeats, kind: "repeat", showLine: false, pointRadius: 2, pointHitRadius: 0 }] : []),
      ...(published.length ? [{ ...base, label: `${base.label}, published`, data: published, kind: "published", showLine: false, pointStyle: "triangle", pointRadius: 6, backgroundColor: "transparent", borderWidth: 1.5 }] : []),
    ];
  });
  const ideal = { label: "100 %", kind: "ideal", data: [scales[0], scales.at(-1)].map((x) => ({ x, y: 100 })), borderColor: colour("--quiet"), borderWidth: 1.25, borderDash: [6, 5], pointRadius: 0, pointHitRadius: 0 };
  return [ideal, ...made];
}

const between = ({ low, high }) => (low == null ? "" : `, between ${percent(low)} and ${percent(high)} %`);

function drawModel(canvas, model, rows) {
  const unit = unitOf(rows);
  const scales = [...new Set(rows.map(({ gpus }) => gpus))].sort((a, b) => a - b);
  const apart = ofSeries("variant").filter((name) => rows.some((row) => row[name] !== rows[0][name]));
  const sets = datasets(groupsOf(rows, apart.length ? apart : ["dtype"]), scales);
  const values = sets.flatMap(({ data }) => data.flatMap(({ y, low, high }) => [y, low ?? y, high ?? y]));
  draw(canvas, {
    type: "line",
    data: { datasets: sets },
    plugins: [intervals],
    options: {
      interaction: { mode: "nearest", intersect: false },
      onClick: (_, [point]) => {
        const [row] = (point && sets[point.datasetIndex].data[point.index].rows) ?? [];
        if (row) go({ run: row.job_name });
      },
      scales: {
        x: rankAxis(scales, unit),
        y: { min: Math.min(90, Math.floor(Math.min(...values) / 5) * 5), max: Math.max(105, Math.ceil(Math.max(...values) / 5) * 5), title: { display: true, text: "%" } },
      },
      plugins: {
        legend: { position: "bottom", labels: { boxWidth: 12, boxHeight: 12, filter: ({ datasetIndex }) => !["ideal", "repeat"].includes(sets[datasetIndex].kind) } },
        tooltip: { filter: ({ dataset }) => dataset.kind !== "ideal", callbacks: { title: ([item]) => (item ? `${item.parsed.x} ${unit}${item.parsed.x === 1 ? "" : "s"}` : ""), label: ({ dataset, parsed, raw }) => `${dataset.label}: ${percent(parsed.y)} %${between(raw)}` } },
      },
    },
  }, `Efficiency of ${model} over ${unit}s: ${sets.filter(({ kind }) => !kind).map(({ label, data }) => `${label} ${data.map((point) => `${percent(point.y)} % at ${point.x}${between(point)}`).join(", ")}`).join("; ")}`);
}

function explainEmpty() {
  if (scope.size) announce(element("p", {}, "No model ran at several scales in this DAG run, or at a smaller one before: efficiency needs two."));
  else announce(element("p", {}, "No sweep run or DAG run has measured several scales. Type, for example:"), element("code", {}, "steptime run llama3.1 --gpus 1,2 --wait"));
}

/** Draw what was read last, in today's colours and time zone. */
export function redraw() {
  if (!answer) return;
  const when = timestamps();
  parts.choice.replaceChildren(...answer.known.map(({ together, submitted_at: at, runs }) => element("option", { value: together }, `${together} · ${when(at)}, ${runs} runs`)));
  parts.choice.value = answer.together ?? "";
  for (const canvas of parts.multiples.querySelectorAll("canvas")) Chart.getChart(canvas)?.destroy();
  const rows = rowsOf(answer).filter((row) => row.scaling_efficiency_percent != null);
  const models = groupsOf(rows, ofSeries("model"));
  summarise(rows.length ? `${answer.together}: how ${models.size} model${models.size === 1 ? " scales" : "s scale"}` : "");
  if (rows.length) announce();
  else explainEmpty();
  const figures = [...models.keys()].map((model, index) => figureFor(`scaling-${index}`, model, "efficiency, %"));
  parts.multiples.replaceChildren(...figures.map(([figure]) => figure));
  [...models].forEach(([model, some], index) => drawModel(figures[index][1], model, some));
}

/** Read the sweep run or DAG run that the address names, else the latest. */
export async function show() {
  const own = scope.size ? `${scope.get("dag_id")}/${scope.get("dag_run_id")}` : current().get("together");
  answer = await read(`api/scaling${own ? `?${new URLSearchParams({ together: own })}` : ""}`);
  redraw();
}
