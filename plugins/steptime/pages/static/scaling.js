// Scaling: efficiency over GPUs of one sweep run or DAG run, a small chart for each model, and the same as a table.
import { current, go, scope } from "./address.js";
import { percentAxis } from "./charts.js";
import { columnsOf, meaningOf } from "./columns.js";
import { element } from "./dom.js";
import { DAY_S, fixed, timestamps } from "./format.js";
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

const [MONTH_S, LEAST_S] = [28 * DAY_S, 7 * DAY_S];

let [answer, earlier, parts] = [null, null, null];

function openCell(row) {
  return element("button", { type: "button", className: "open", title: row.job_name, onclick: () => go({ run: row.job_name }) }, row.label);
}

/** Prepare the view. */
export function open(box) {
  const choice = element("select", { id: "together", onchange: ({ target }) => go({ together: target.value }) });
  const beside = element("select", { id: "beside-scaling", onchange: ({ target }) => go({ beside: target.value || "none" }) });
  const form = element("form", { className: "filters", hidden: scope.size > 0, onsubmit: (event) => event.preventDefault() }, element("label", {}, "Sweep run or DAG run", choice), element("label", {}, "Beside", beside));
  const multiples = element("section", { id: "multiples", ariaLabel: "Charts, one for each model" });
  const listing = element("section", { id: "listing", ariaLabel: "Runs", hidden: true });
  const drawRows = makeTable(listing, { mark: (row, made) => { made.dataset.job = row.job_name; } });
  box.append(form, multiples, element("p", { className: "footnote" },
    "Efficiency: tokens/s per GPU (on CPUs: per rank) relative to the smallest scale measured together, or, if only one was, to the smallest of the nearest earlier runs. "
    + "Fine dashes: the run chosen as Beside. Whiskers, and scale mean from and to: 95 % interval of the mean of a scale's jobs, from three on. Dashed: 100 %. Triangles: the publication, relative to its own number at the same smallest scale. "
    + `Crosses: below the publication. Publication: ${meaningOf("against_publication")}`), listing);
  parts = { form, choice, beside, multiples, listing, drawRows };
  answer = earlier = null;
}

/** The published efficiency at the same numbers of GPUs, relative to the smallest of these. */
function publishedPoints(rows) {
  const known = rows.filter((row) => row.step_time_over_published != null && !row.then);
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
  sharesAxes: true,
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

/** Draw the latest answer, in the current colours and time zone. */
export function redraw() {
  if (!answer) return;
  const when = timestamps();
  parts.choice.replaceChildren(...answer.known.map(({ together, submitted_at: at, runs }) => element("option", { value: together }, `${together} · ${when(at)}, ${runs} runs`)));
  parts.form.hidden = scope.size > 0 || !answer.known.length;
  parts.choice.value = answer.together ?? "";
  parts.beside.replaceChildren(element("option", { value: "" }, "none"), ...answer.known.filter(({ together }) => together !== answer.together)
    .map(({ together, submitted_at: at }) => element("option", { value: together }, `${together} · ${when(at)}`)));
  parts.beside.value = earlier?.together ?? "";
  const measured = (from) => rowsOf(from).filter((row) => row.scaling_efficiency_percent != null);
  const rows = measured(answer);
  const then = earlier ? when(startOf(earlier.together)).slice(0, 10) : "";
  const models = modelsOf(rows);
  const both = new Map(models);
  for (const [model, some] of earlier ? modelsOf(measured(earlier)) : []) {
    if (both.has(model)) both.set(model, [...both.get(model), ...some.map((row) => ({ ...row, then }))]);
  }
  summarise(...(rows.length ? inWords(rows, models.size) : []));
  if (rows.length) announce();
  else explainEmpty();
  drawMultiples(parts.multiples, both, EFFICIENCY);
  parts.listing.hidden = !rows.length;
  if (rows.length) parts.drawRows(rows, columnsOf("results", SHOWN).filter(({ name }) => name in SHOWN));
}

const startOf = (name) => answer.known.find(({ together }) => together === name)?.submitted_at ?? null;

/** The run of the same DAG that is nearest to four weeks before; none if all others are of the last week. */
function aMonthBefore({ known, together }) {
  const [dag, at] = [together?.split("/")[0], known.find((one) => one.together === together)?.submitted_at];
  const older = known.filter((one) => one.together.split("/")[0] === dag && at - one.submitted_at >= LEAST_S);
  const apart = (one) => Math.abs(at - MONTH_S - one.submitted_at);
  return older.length ? older.reduce((a, b) => (apart(b) < apart(a) ? b : a)).together : null;
}

/** Read the sweep run or DAG run that the address names, else the latest, and the one to lay beside it. */
export async function show() {
  const own = scope.size ? `${scope.get("dag_id")}/${scope.get("dag_run_id")}` : current().get("together");
  const found = await readNew(answer, `api/scaling${own ? `?${new URLSearchParams({ together: own })}` : ""}`);
  const asked = current().get("beside");
  const beside = asked === "none" || scope.size ? null : asked && asked !== found.together ? asked : aMonthBefore(found);
  const laid = beside ? await readNew(earlier, `api/scaling?${new URLSearchParams({ together: beside })}`) : null;
  if (found === answer && laid === earlier) return;
  [answer, earlier] = [found, laid];
  redraw();
}
