// The pages: one view at a time by its address, and the run over it. No framework, no network.
import { current, followAddress, keep, scope, viewLink } from "./address.js";
import { followTheme, followTimeZone } from "./airflow.js";
import { forgetCharts } from "./charts.js";
import { readColumns } from "./columns.js";
import { byId } from "./dom.js";
import { frozen } from "./frozen.js";
import { redrawRun, showRun } from "./run.js";
import * as compare from "./compare.js";
import * as runs from "./runs.js";
import * as scaling from "./scaling.js";
import * as node from "./node.js";
import * as nodes from "./nodes.js";
import * as pairs from "./pairs.js";
import * as plan from "./plan.js";
import { announce, attempt, summarise } from "./messages.js";
import { giveUp } from "./server.js";
import * as trend from "./trend.js";
import * as trial from "./trial.js";
import * as trials from "./trials.js";
import * as week from "./week.js";

const REREAD_MS = 15_000;
const OF_TRIALS = "steptime_trial"; // `dag_ids.py` has the same id
// In the tab of a DAG run its own runs come first, or the answer of its trial.
const VIEWS = scope.get("dag_id") === OF_TRIALS ? { trial, runs, node, nodes }
  : scope.size ? { runs, scaling, trend, node, nodes, pairs }
    : { week, runs, trend, scaling, ...(frozen ? {} : { compare }), ...(frozen?.answers["api/trials"].trials.length === 0 ? {} : { trials }), trial, node, nodes, pairs, plan };
const ONLY_BY_LINK = ["node", "nodes", "pairs", "plan", ...(scope.size ? [] : ["trial"])];

let shown = null;

function wanted() {
  const name = current().get("view");
  return Object.hasOwn(VIEWS, name) ? name : Object.keys(VIEWS)[0];
}

function drawNavigation(name) {
  const focused = [...byId("views").children].indexOf(document.activeElement);
  const links = Object.entries(VIEWS).filter(([view]) => !ONLY_BY_LINK.includes(view) || view === name).map(([view, { title }]) => {
    const link = viewLink({ view }, title);
    if (view === name) link.setAttribute("aria-current", "page");
    return link;
  });
  byId("views").hidden = links.length < 2;
  byId("views").replaceChildren(...links);
  links[focused]?.focus();
}

function open(name) {
  drawNavigation(name);
  announce();
  if (!frozen) summarise("Reading the metrics store …");
  forgetCharts();
  byId("view").replaceChildren();
  VIEWS[name].open(byId("view"));
  shown = name;
}

/** Show what the address names: the view, and the run over it. */
async function show() {
  giveUp();
  await readColumns();
  if (wanted() !== shown) open(wanted());
  await VIEWS[shown].show();
  await showRun(current());
}

function followRun() {
  setTimeout(async () => {
    if (document.visibilityState === "visible" && !byId("detail").open) await attempt(show);
    followRun();
  }, REREAD_MS);
}

function redraw() {
  if (!shown) return;
  VIEWS[shown].redraw();
  redrawRun();
}

// Not by the address alone, which names the view: the first row, behind all filters and headings.
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  (byId("view").querySelector("tbody :is(a, button)") ?? byId("view")).focus();
});
if (frozen) byId("actions").replaceChildren(`${frozen.of} · ${frozen.made}`);
else byId("refresh").addEventListener("click", () => attempt(show));
byId("detail").addEventListener("close", () => keep({ run: null, with: null }));
followAddress(() => attempt(show));
followTheme(redraw);
followTimeZone(redraw);
attempt(show);
// Runs of a DAG run arrive one by one while it goes on.
if (scope.size) followRun();
