// Small multiples over GPUs or ranks: a chart for each model, and in it a line for each way in which its runs differ.
import { go } from "./address.js";
import { colour, draw, figureFor, intervals, rankAxis } from "./charts.js";
import { ofSeries } from "./columns.js";
import { unitOf } from "./table.js";

const COLOURS = 8;
const UNNAMED = ["ideal", "repeat"];

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Rows by what they have in these columns, in words. */
export function groupsOf(rows, names) {
  const groups = new Map();
  for (const row of rows) {
    const key = names.map((name) => (name === "proxy" ? (row.proxy ? "proxy" : "") : row[name])).filter(Boolean).join(" · ");
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return groups;
}

/** The rows of each model, by its name. */
export const modelsOf = (rows) => groupsOf(rows, ofSeries("model"));

/** A value for each scale: the mean of repeats, with each of them, and the interval that it is in. */
function pointsOf(rows, { of, interval = () => [] }) {
  return [...groupsOf(rows, ["gpus"]).values()].map((some) => {
    const [low, high] = interval(some[0]);
    return { x: some[0].gpus, y: mean(some.map(of)), rows: some, low, high, below: some.some(({ against_publication: found }) => found === "below") };
  }).sort((a, b) => a.x - b.x);
}

function datasets(lines, quantity) {
  const now = [...lines].filter(([, [row]]) => !row.then).map(([name]) => name);
  return [...lines].flatMap(([name, rows], index) => {
    const today = rows[0].then ? name.replace(rows[0].then, "").replace(/ · $/, "") : name;
    const tone = now.includes(today) ? now.indexOf(today) : index;
    const line = colour(`--series-${(tone % COLOURS) + 1}`);
    const base = { line: tone, label: name || quantity.name, borderColor: line, backgroundColor: line };
    const isEarlier = Boolean(rows[0].then);
    const points = pointsOf(rows, quantity);
    const repeats = points.flatMap(({ x, rows: some }) => (some.length > 1 ? some.map((row) => ({ x, y: quantity.of(row) })) : []));
    const [ideal, published] = [quantity.ideal(points), quantity.published(rows)];
    const marks = points.map(({ below }) => (below ? colour("--bad") : line));
    return [
      { ...base, data: points, hasTwin: isEarlier && now.includes(today), borderWidth: isEarlier ? 1.5 : 2, borderDash: isEarlier ? [2, 3] : [], pointRadius: points.map(({ below }) => (below ? 6 : 4)), pointBorderWidth: points.map(({ below }) => (below ? 2.5 : 1)), pointStyle: points.map(({ below }) => (below ? "crossRot" : "circle")), pointBorderColor: marks },
      ...(ideal.length && !isEarlier ? [{ ...base, label: "ideal", kind: "ideal", data: ideal, borderWidth: 1.25, borderDash: [6, 5], pointRadius: 0, pointHitRadius: 0, ...(quantity.sharesIdeal ? { borderColor: colour("--quiet") } : {}) }] : []),
      ...(repeats.length ? [{ ...base, label: "each run", data: repeats, kind: "repeat", showLine: false, pointRadius: 2, pointHitRadius: 0 }] : []),
      ...(published.length ? [{ ...base, label: `${base.label}, published`, data: published, kind: "published", showLine: false, pointStyle: "triangle", pointRadius: 6, backgroundColor: "transparent", borderWidth: 1.5 }] : []),
    ];
  });
}

function described(model, unit, sets, quantity) {
  const point = (one) => `${quantity.write(one.y)} at ${one.x}${noteOf(one, quantity)}`;
  const lines = sets.filter(({ kind }) => !kind).map(({ label, data }) => `${label} ${data.map(point).join(", ")}`);
  return `${quantity.name} of ${model} over ${unit}s: ${lines.join("; ")}`;
}

/** A line in the legend stands for all that is drawn of it, earlier runs included. */
function showOrHide(_, { datasetIndex: clicked }, { chart }) {
  const [shown, { line }] = [!chart.isDatasetVisible(clicked), chart.data.datasets[clicked]];
  chart.data.datasets.forEach((set, index) => set.line === line && chart.setDatasetVisibility(index, shown));
  chart.update();
}

const noteOf = ({ low, high, below }, { write }) =>
  (low == null ? "" : `, between ${write(low)} and ${write(high)}`) + (below ? ", below the publication" : "");

/** The lines of a model: one for each way in which its runs differ, and for earlier runs. */
function setsOf(rows, quantity) {
  const apart = ofSeries("variant").filter((name) => rows.some((row) => row[name] !== rows[0][name]));
  const named = [...(apart.length ? apart : ["dtype"]), "then"];
  return datasets(groupsOf([...rows].sort((a, b) => Boolean(a.then) - Boolean(b.then)), named), quantity);
}

const valuesOf = (sets) => sets.flatMap(({ data }) => data.flatMap(({ y, low, high }) => [y, low ?? y, high ?? y]));

function drawModel(canvas, model, rows, quantity, sets, shared) {
  const unit = unitOf(rows);
  const scales = [...new Set((shared ? shared.rows : rows).map(({ gpus }) => gpus))].sort((a, b) => a - b);
  const values = shared ? shared.values : valuesOf(sets);
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
      scales: { x: rankAxis(scales, unit), y: quantity.axis(values) },
      plugins: {
        legend: { position: "bottom", onClick: showOrHide, labels: { boxWidth: 12, boxHeight: 12, filter: ({ datasetIndex }) => !sets[datasetIndex].kind && !sets[datasetIndex].hasTwin } },
        tooltip: {
          filter: ({ dataset }) => !UNNAMED.includes(dataset.kind),
          callbacks: { title: ([item]) => (item ? `${item.parsed.x} ${unit}${item.parsed.x === 1 ? "" : "s"}` : ""), label: ({ dataset, parsed, raw }) => `${dataset.label}: ${quantity.write(parsed.y)}${noteOf(raw, quantity)}` },
        },
      },
    },
  }, described(model, unit, sets, quantity));
}

/**
 * Draw a chart for each model in a section. The `quantity` has an `id`, a `name`, a `remark`, and what it is `of` a row; `write` writes
 * it, `axis` is its axis, `published` and `ideal` give points to compare it with, `interval` the ends of a scale's.
 */
export function drawMultiples(section, models, quantity) {
  for (const canvas of section.querySelectorAll("canvas")) Chart.getChart(canvas)?.destroy();
  const figures = [...models.keys()].map((model, index) => figureFor(`${quantity.id}-${index}`, model, quantity.remark));
  section.replaceChildren(...figures.map(([figure]) => figure));
  section.hidden = !figures.length;
  const sets = [...models.values()].map((rows) => setsOf(rows, quantity));
  const shared = quantity.sharesAxes ? { rows: [...models.values()].flat(), values: sets.flatMap(valuesOf) } : null;
  [...models].forEach(([model, rows], index) => drawModel(figures[index][1], model, rows, quantity, sets[index], shared));
}
