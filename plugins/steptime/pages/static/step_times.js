// Step times over GPUs or ranks, of the models that one DAG run has measured at several scales.
import { valueAxis } from "./charts.js";
import { significant } from "./format.js";
import { drawMultiples, groupsOf, mean, modelsOf } from "./multiples.js";

/** The step times that the throughput per GPU of the smallest scale would give everywhere. */
function linear(points) {
  if (points.length < 2) return [];
  const perGpu = mean(points[0].rows.map((row) => row.tokens_per_s_per_gpu));
  return points.map(({ x, rows: [row] }) => ({ x, y: (row.tokens_per_s * row.step_time_mean_s) / (perGpu * x) }));
}

function published(rows) {
  const known = rows.filter((row) => row.published_step_time_s != null);
  return [...groupsOf(known, ["gpus"]).values()].map(([row]) => ({ x: row.gpus, y: row.published_step_time_s }));
}

const STEP_TIME = {
  id: "step-time",
  name: "Step time",
  remark: "s, mean of the window; dashed: at linear scaling; triangles: published; crosses: below the publication",
  of: (row) => row.step_time_mean_s,
  write: (value) => `${significant(value)} s`,
  axis: (values) => valueAxis(values, "s"),
  ideal: linear,
  published,
};

/** Draw them in a section, which is hidden if no model has several scales. */
export function drawStepTimes(section, rows) {
  const measured = rows.filter((row) => row.state === "valid" && row.mode === "performance" && row.step_time_mean_s);
  const models = [...modelsOf(measured)].filter(([, some]) => some.some(({ gpus }) => gpus !== some[0].gpus));
  drawMultiples(section, new Map(models), STEP_TIME);
}
