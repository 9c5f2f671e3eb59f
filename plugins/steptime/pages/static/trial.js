// A trial: its answer, a row for each variant, and by how much each is slower than the best one after each round.
import { current, scope, viewLink } from "./address.js";
import { whyWithoutResults } from "./airflow.js";
import { colour, draw, figureFor, intervals } from "./charts.js";
import { columnsOf } from "./columns.js";
import { element } from "./dom.js";
import { frozen } from "./frozen.js";
import { fixed, significant } from "./format.js";
import { announce, summarise } from "./messages.js";
import { readNew, rowsOf } from "./server.js";
import { makeTable } from "./table.js";
import { dagRunLink, inWords } from "./trials.js";
import { signed } from "./verdicts.js";

export const title = "Trial";

const COLOURS = 8;
const APART = 0.3; // of a round: the whiskers of variants stand beside each other

const ADDED = {
  variant: { cell: variantLink, className: "run" },
  difference_percent: { write: signed, className: "main" },
  low_percent: { write: signed },
  high_percent: { write: signed },
  cause: { write: (value) => value ?? "", className: "cause" },
};
const percent = fixed(1);

let [answer, why, parts] = [null, null, null];

/** A link to the runs of a variant; just the name of one that never ran. */
function variantLink({ variant, status }) {
  if (frozen || status === "left out") return variant;
  const link = viewLink({ view: "runs", trial: answer.trial, variant }, variant);
  link.className = "open";
  return link;
}

/** Prepare the view. */
export function open(box) {
  const [took, rest] = [element("p", { className: "totals" }), element("div")];
  const charts = element("section", { id: "charts", ariaLabel: "Differences by round", hidden: true });
  const listing = element("section", { id: "listing", ariaLabel: "Variants", hidden: true });
  const drawRows = makeTable(listing, { mark: (row, made) => { made.dataset.variant = row.variant; } });
  listing.append(element("p", { className: "footnote" },
    "Slower: than the variant under Than, with the interval from From to To. The chance that anything a trial states is wrong is at most 5 %, over all its rounds and variants. Times and rates: medians of the variant's valid runs."));
  box.append(rest, took, listing, charts);
  parts = { took, rest, charts, listing, drawRows };
  answer = why = null;
}

function points(variant, place, of) {
  const offset = of > 1 ? APART * (place / (of - 1) - 0.5) : 0;
  return answer.by_round.filter((found) => found.variant === variant)
    .map(({ round, difference_percent: y, low_percent: low, high_percent: high }) => ({ x: round + offset, y, low, high, round }));
}

/** The axis has room for all differences and the newest intervals: the first ones, of unknown noise, may be tens of times as wide. */
function differenceAxis(sets) {
  const newest = sets.flatMap(({ data }) => [data.at(-1).low, data.at(-1).high]);
  const values = [...sets.flatMap(({ data }) => data.map(({ y }) => y)), ...newest, answer.least_difference_percent, -answer.least_difference_percent];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = (high - low) / 5;
  return { type: "linear", min: low - room, max: high + room };
}

const interval = ({ y, low, high }) => `${percent(y)} % (${percent(low)} to ${percent(high)} %)`;

function drawRounds() {
  const names = [...new Set(answer.by_round.map(({ variant }) => variant))];
  parts.charts.hidden = !names.length;
  if (!names.length) return;
  const [figure, canvas] = figureFor("by-round", `Slower than ${answer.best}, %`, "after each round, with its interval; dashed: the least difference that matters");
  figure.className = "wide";
  parts.charts.replaceChildren(figure);
  const rounds = Array.from({ length: answer.rounds }, (_, index) => index + 1);
  const sets = names.map((label, place) => {
    const line = colour(`--series-${(place % COLOURS) + 1}`);
    return { label, data: points(label, place, names.length), borderColor: line, backgroundColor: line, borderWidth: 1.5, borderDash: place < COLOURS ? [] : [5, 4], pointRadius: 4 };
  });
  const limits = [answer.least_difference_percent, -answer.least_difference_percent].map((y) => (
    { kind: "limit", data: [{ x: 0.5, y }, { x: answer.rounds + 0.5, y }], borderColor: colour("--quiet"), borderWidth: 1, borderDash: [6, 5], pointRadius: 0, pointHitRadius: 0 }));
  const axis = differenceAxis(sets);
  draw(canvas, {
    type: "line",
    data: { datasets: [...sets, ...limits] },
    plugins: [intervals],
    options: {
      interaction: { mode: "nearest", intersect: false },
      scales: {
        x: { type: "linear", min: 0.5, max: answer.rounds + 0.5, title: { display: true, text: "round" }, grid: { display: false }, afterBuildTicks: (axis) => { axis.ticks = rounds.map((value) => ({ value })); }, ticks: { maxRotation: 0 } },
        y: { ...axis, title: { display: true, text: "%" }, ticks: { callback: (value) => significant(value, 3), includeBounds: false } },
      },
      plugins: {
        legend: { position: "bottom", labels: { boxWidth: 12, boxHeight: 12, filter: ({ text }) => text !== undefined } },
        tooltip: { filter: ({ dataset }) => !dataset.kind, callbacks: { title: ([item]) => (item ? `round ${item.raw.round}` : ""), label: ({ dataset, raw }) => `${dataset.label}: ${interval(raw)}` } },
      },
    },
  }, `By how much each variant is slower than ${answer.best}, by round: ${sets.map(({ label, data }) => `${label} ${interval(data.at(-1))} after round ${data.at(-1).round}`).join("; ")}`);
}

function csvLink() {
  return element("a", { id: "csv", className: "button", download: "steptime-trial.csv", href: `api/trial.csv?${new URLSearchParams({ together: answer.together })}`, title: "The variants, with every column" }, "Download CSV");
}

/** Draw the latest answer, in the current colours. */
export function redraw() {
  if (!answer) return;
  parts.listing.hidden = !answer.trial;
  if (!answer.trial) {
    summarise();
    announce(element("p", {}, why ?? "No run of this trial has a result yet."));
    return;
  }
  announce();
  const [first, ...others] = answer.sentences;
  summarise(element("strong", {}, ...inWords([first])));
  parts.rest.replaceChildren(...others.map((sentence) => element("p", {}, ...inWords([sentence]))));
  const nodes = answer.same_nodes ? "a round's variants on the same nodes" : "a round's variants on any nodes";
  const links = element("span", { className: "links" }, ...(frozen ? [] : [csvLink()]), ...(scope.size ? [] : [viewLink({ view: "trials" }, "All trials"), dagRunLink(answer)].filter(Boolean)));
  parts.took.replaceChildren(`Trial ${answer.trial} · ${answer.rounds} round${answer.rounds === 1 ? "" : "s"}, ${significant(answer.gpu_hours, 3)} GPU-hours · ${nodes}`, links);
  parts.drawRows(rowsOf(answer), columnsOf("trial", ADDED));
  drawRounds();
}

/** Read the trial that the address names. */
export async function show() {
  const together = scope.size ? `${scope.get("dag_id")}/${scope.get("dag_run_id")}` : current().get("together") ?? "";
  const found = await readNew(answer, `api/trial?${new URLSearchParams({ together })}`);
  const ended = scope.size && !found.trial ? await whyWithoutResults(scope.get("dag_id"), scope.get("dag_run_id")) : null;
  if (found === answer && ended === why) return;
  [answer, why] = [found, ended];
  redraw();
}
