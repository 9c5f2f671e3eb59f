// Scaling: efficiency over GPUs of one sweep run or DAG run, a small chart for each model, and the same as a table.
import { current, go, scope } from "./address.js";
import { percentAxis } from "./charts.js";
import { columnsOf, meaningOf } from "./columns.js";
import { element } from "./dom.js";
import { fixed, timestamps } from "./format.js";
import { announce, summarise } from "./messages.js";
import { drawMultiples, groupsOf, modelsOf } from "./multiples.js";
import { readNew, rowsOf } from "./server.js";
import { makeTable, unitTitle } from "./table.js";
import { publicationBadge } from "./verdicts.js";

export const title = "Scaling";

const percent = fixed(1);
// The columns of the table: of the results alone those that are named here.
const SHOWN = {
  label: { cell: openCell, className: "run" },
  workload: {},
  cluster: {},
  gpus: { title: unitTitle },
  step_time_mean_s: {},
  scaling_efficiency_percent: { className: "main" },
  scaling_efficiency_low_percent: {},
  scaling_efficiency_high_percent: {},
  scaling_base_gpus: {},
  published_step_time_s: {},
  step_time_over_published: {},
  against_publication: { cell: publicationBadge },
};

let [answer, parts] = [null, null];

function openCell(row) {
  return element("button", { type: "button", className: "open", title: row.job_name, onclick: () => go({ run: row.job_name }) }, row.label);
}

/** Make what the view is made of. */
export function open(box) {
  const choice = element("select", { id: "together", onchange: ({ target }) => go({ together: target.value }) });
  const form = element("form", { className: "filters", hidden: scope.size > 0, onsubmit: (event) => event.preventDefault() }, element("label", {}, "Sweep run or DAG run", choice));
  const multiples = element("section", { id: "multiples", ariaLabel: "Charts, one for each model" });
  const listing = element("section", { id: "listing", ariaLabel: "Runs", hidden: true });
  const drawRows = makeTable(listing, { mark: (row, made) => { made.dataset.job = row.job_name; } });
  box.append(form, multiples, element("p", { className: "footnote" },
    "Efficiency: tokens/s per GPU (on CPUs: per rank) relative to the smallest scale measured together, or, if only one was, to the smallest of the nearest earlier runs. "
    + "Whiskers, and scale mean from and to: 95 % interval of the mean of a scale's jobs, from three on. Dashed: 100 %. Triangles: the publication, relative to its own number at the same smallest scale. "
    + `Crosses: below the publication. Publication: ${meaningOf("against_publication")}`), listing);
  parts = { form, choice, multiples, listing, drawRows };
  answer = null;
}

/** What the publication has at the same scales, relative to its smallest of them. */
function publishedPoints(rows) {
  const known = rows.filter((row) => row.step_time_over_published != null);
  const rates = [...groupsOf(known, ["gpus"]).values()]
    .map(([row]) => ({ x: row.gpus, rate: row.tokens_per_s_per_gpu * row.step_time_over_published })).sort((a, b) => a.x - b.x);
  return rates.length > 1 ? rates.map(({ x, rate }) => ({ x, y: (100 * rate) / rates[0].rate })) : [];
}

const EFFICIENCY = {
  id: "scaling",
  name: "Efficiency",
  remark: "efficiency, %",
  of: (row) => row.scaling_efficiency_percent,
  interval: (row) => [row.scaling_efficiency_low_percent, row.scaling_efficiency_high_percent],
  write: (value) => `${percent(value)} %`,
  axis: percentAxis,
  ideal: (points) => [points[0], points.at(-1)].map(({ x }) => ({ x, y: 100 })),
  sharesIdeal: true,
  published: publishedPoints,
};

function explainEmpty() {
  if (scope.size) announce(element("p", {}, "No model ran at several scales in this DAG run, or at a smaller one before: efficiency needs two."));
  else announce(element("p", {}, "No sweep run or DAG run has measured several scales. Type, for example:"), element("code", {}, "steptime run llama3.1 --gpus 1,2 --wait"));
}

function inWords(rows, models) {
  const lowest = rows.reduce((a, b) => (b.scaling_efficiency_percent < a.scaling_efficiency_percent ? b : a));
  return [element("strong", {}, `${models} model${models === 1 ? "" : "s"}; lowest efficiency ${percent(lowest.scaling_efficiency_percent)} % (${lowest.label})`), ` in ${answer.together}.`];
}

/** Draw what was read last, in today's colours and time zone. */
export function redraw() {
  if (!answer) return;
  const when = timestamps();
  parts.choice.replaceChildren(...answer.known.map(({ together, submitted_at: at, runs }) => element("option", { value: together }, `${together} · ${when(at)}, ${runs} runs`)));
  parts.form.hidden = scope.size > 0 || !answer.known.length;
  parts.choice.value = answer.together ?? "";
  const rows = rowsOf(answer).filter((row) => row.scaling_efficiency_percent != null);
  const models = modelsOf(rows);
  summarise(...(rows.length ? inWords(rows, models.size) : []));
  if (rows.length) announce();
  else explainEmpty();
  drawMultiples(parts.multiples, models, EFFICIENCY);
  parts.listing.hidden = !rows.length;
  if (rows.length) parts.drawRows(rows, columnsOf("results", SHOWN).filter(({ name }) => name in SHOWN));
}

/** Read the sweep run or DAG run that the address names, else the latest. */
export async function show() {
  const own = scope.size ? `${scope.get("dag_id")}/${scope.get("dag_run_id")}` : current().get("together");
  const found = await readNew(answer, `api/scaling${own ? `?${new URLSearchParams({ together: own })}` : ""}`);
  if (found === answer) return;
  answer = found;
  redraw();
}
