// Charts of the result page, drawn with Chart.js (vendored). Data comes in as rows of the metrics store.

const PALETTE = ["#017cee", "#e8710a", "#12a150", "#9353d3", "#d0246b", "#0e8a9c", "#8a6d00", "#5b6675"];
const drawn = new Map();

function draw(canvasId, config) {
  drawn.get(canvasId)?.destroy();
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
  Chart.defaults.color = colour("--quiet");
  Chart.defaults.borderColor = colour("--line");
  Chart.defaults.font.family = style.fontFamily || "system-ui, sans-serif";
  drawn.set(canvasId, new Chart(document.getElementById(canvasId), config));
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Valid performance runs grouped into series that may be compared: one line each over the number of ranks. */
function seriesOf(rows) {
  const groups = new Map();
  for (const row of rows) {
    if (row.state !== "valid" || row.mode !== "performance") continue;
    const name = [row.workload, row.size, row.dtype, row.gpu_type, row.scaling, row.cluster].join(" · ");
    if (!groups.has(name)) groups.set(name, new Map());
    const scales = groups.get(name);
    scales.set(row.gpus, [...(scales.get(row.gpus) ?? []), row]);
  }
  return [...groups].map(([name, scales]) => ({ name, scales }));
}

function line(label, data, colour, extra = {}) {
  return { label, data, borderColor: colour, backgroundColor: colour, borderWidth: 2, pointRadius: 4, spanGaps: true, ...extra };
}

const axis = (text) => ({ title: { display: true, text } });

function scalingChart(canvasId, series, ranks, value, unit, withIdeal) {
  const datasets = series.flatMap(({ name, scales }, index) => {
    const colour = PALETTE[index % PALETTE.length];
    const measured = ranks.map((n) => (scales.has(n) ? median(scales.get(n).map(value)) : null));
    const sets = [line(name, measured, colour)];
    const first = ranks.findIndex((n) => scales.has(n));
    if (withIdeal && scales.size > 1) {
      const ideal = ranks.map((n, i) => (i < first ? null : (measured[first] * n) / ranks[first]));
      sets.push(line(`${name} (linear)`, ideal, colour, { borderDash: [5, 5], pointRadius: 0, borderWidth: 1 }));
    }
    return sets;
  });
  draw(canvasId, {
    type: "line",
    data: { labels: ranks.map(String), datasets },
    options: {
      animation: false,
      maintainAspectRatio: false,
      scales: { x: axis("GPUs (CPU ranks for tiny sizes)"), y: { ...axis(unit), beginAtZero: true } },
      plugins: {
        legend: { position: "bottom", labels: { boxWidth: 12, filter: (item) => !item.text.endsWith("(linear)") } },
        tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${item.formattedValue} ${unit}` } },
      },
    },
  });
}

/** Draw step time and throughput over ranks; returns whether there was anything to draw. */
export function drawScaling(rows) {
  const series = seriesOf(rows);
  const ranks = [...new Set(series.flatMap(({ scales }) => [...scales.keys()]))].sort((a, b) => a - b);
  if (!ranks.length) return false;
  scalingChart("step-time", series, ranks, (row) => row.step_time_median_s, "s", false);
  scalingChart("throughput", series, ranks, (row) => row.tokens_per_s, "tokens/s", true);
  return true;
}

/** Draw one run's step times over global steps, the averaged window in full colour. */
export function drawSteps(run, steps) {
  const [first, last] = (run.window ?? "0:-1").split(":").map(Number);
  const inside = (step) => step.global_step >= first && step.global_step <= last;
  const points = (wanted) => steps.map((step) => (inside(step) === wanted ? step.step_time_s : null));
  draw("steps", {
    type: "bar",
    data: {
      labels: steps.map((step) => step.global_step),
      datasets: [
        { label: `in the window ${run.window ?? ""}`, data: points(true), backgroundColor: PALETTE[0] },
        { label: "outside", data: points(false), backgroundColor: "#9aa6b5" },
      ],
    },
    options: {
      animation: false,
      maintainAspectRatio: false,
      scales: { x: { stacked: true, ...axis("global step") }, y: { stacked: true, ...axis("step time, s"), beginAtZero: true } },
      plugins: { legend: { position: "bottom", labels: { boxWidth: 12 } } },
    },
  });
}
