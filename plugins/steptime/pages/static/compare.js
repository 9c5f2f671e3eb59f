// Compare: two sets of runs over all cells that both have, such as two releases of a container.
import { current, go, viewLink } from "./address.js";
import { choices, columnsOf, headingOf, listing } from "./columns.js";
import { byId, element } from "./dom.js";
import { givenUp, readNew, rowsOf } from "./server.js";
import { makeTable, plainTable } from "./table.js";
import { announce, summarise } from "./messages.js";
import { cellName, signed } from "./verdicts.js";

export const title = "Compare";

const ADDED = {
  cell: { cell: trendLink, className: "run" },
  difference_percent: { write: signed, className: "main" },
  from_percent: { write: signed },
  to_percent: { write: signed },
  a_median: {}, b_median: {}, a_runs: {}, b_runs: {},
};
const MEASURES = { "": "automatic", time: "time", tokens: "GPU time of a token", price: "price of a token" };
// What two sets are usually chosen by, the newest or largest two values against each other.
const USUAL = ["image", "nvidia_driver", "nccl", "gpu_type", "cluster", "dtype"];

let [answer, parts] = [null, null];

function trendLink(row) {
  const link = viewLink({ view: "trend", series: row.b_job }, ...cellName(row.cell));
  link.className = "open";
  return link;
}

/** The two sets that differ in one column, or in time; a link shows them. */
function ideas() {
  const links = [["Last 30 days, and the 30 before", "since=60d; until=30d", "since=30d"]];
  for (const name of USUAL) {
    const [a, b] = answer.choices[name].slice(-2);
    if (b !== undefined) links.push([headingOf(name), `${name}=${a}`, `${name}=${b}`]);
  }
  return ["For example: ", ...links.map(([text, a, b]) => viewLink({ view: "compare", a, b }, text))];
}

/** What is suggested while somebody types a condition: the values of the store, and the names of others. */
function conditions() {
  const known = choices().filter(({ name }) => name !== "state").flatMap(({ name }) => (answer.choices[name] ?? []).map((value) => `${name}=${value}`));
  return [...known, ...listing().map(({ element: name }) => `${name}=`), "since=30d", "until=30d"];
}

function setInput(name, heading) {
  const input = element("input", { id: `set-${name}`, className: "conditions", autocomplete: "off", placeholder: "image=nvcr.io/nvidia/nemo:25.04.01; since=30d" });
  input.setAttribute("list", "known-conditions");
  input.setAttribute("aria-describedby", "how");
  return element("label", {}, heading, input);
}

function compare(event) {
  event.preventDefault();
  go({ a: byId("set-a").value.trim(), b: byId("set-b").value.trim(), by: byId("by").value });
}

/** Prepare the view. */
export function open(box) {
  const by = element("select", { id: "by" }, ...Object.entries(MEASURES).map(([value, name]) => element("option", { value }, name)));
  const form = element("form", { id: "sets", className: "filters", onsubmit: compare },
    setInput("a", "Set A, to which differences are relative"), setInput("b", "Set B"), element("label", {}, "Compare by", by),
    element("button", { type: "submit" }, "Compare"), element("datalist", { id: "known-conditions" }));
  const how = element("p", { id: "how", className: "footnote" },
    "Conditions are NAME=VALUE, separated by semicolons: a column of the results, node, version, variable or the name of a variable, since and until (30d, or 2026-11-01). "
    + "* stands for any characters, NAME= for runs without that variable; a name that is repeated allows either value. tuning=*NAME=VALUE* finds an argument or another option of tuned runs, tuning= the others.");
  const [suggested, remarks] = [element("p", { className: "ideas" }), element("ul", { className: "remarks" })];
  const [listing, rest] = [element("section", { id: "listing", ariaLabel: "Cells", hidden: true }), element("section", { id: "rest", hidden: true })];
  const draw = makeTable(listing, { mark: (row, made) => { made.dataset.cell = row.cell; } });
  listing.append(element("p", { className: "footnote" },
    "Difference: the median of B's runs relative to that of A's; above 0 is slower, or costs more. Its 95 % interval needs two runs in each set. "
    + "The median over all cells has the interval of the sign test: each cell counts once, however many runs it has."));
  box.append(form, suggested, how, listing, remarks, rest);
  parts = { suggested, remarks, listing, rest, draw };
  answer = null;
}

function onlyIn(name, cells) {
  return cells.length ? [element("p", {}, `Only in ${name}: ${cells.join(", ")}.`)] : [];
}

function differing() {
  if (!answer.differing.length) return [element("p", {}, "Nothing else that is recorded differs within a cell.")];
  const columns = [
    { head: "What differs", cell: ({ name }) => name },
    { head: "A", cell: ({ a }) => a, className: "words" },
    { head: "B", cell: ({ b }) => b, className: "words" },
    { head: "Cells", cell: ({ cells }) => (cells ? `${cells} of ${answer.rows.length}` : ""), className: "number" },
  ];
  return [element("h3", {}, "What else differs"), plainTable({ label: "What differs between the sets", columns, rows: answer.differing })];
}

/** Draw the latest answer, in the current colours and time zone. */
export function redraw() {
  if (!answer) return;
  for (const name of ["a", "b"]) byId(`set-${name}`).value = current().get(name) ?? "";
  byId("by").value = Object.hasOwn(MEASURES, current().get("by") ?? "") ? current().get("by") ?? "" : "";
  parts.suggested.replaceChildren(...ideas());
  byId("known-conditions").replaceChildren(...conditions().map((value) => element("option", { value })));
  const compared = answer.sentence !== undefined;
  const rows = compared ? rowsOf(answer) : [];
  parts.listing.hidden = !rows.length;
  parts.rest.hidden = parts.remarks.hidden = !compared;
  announce();
  if (!compared) {
    summarise("Two sets of runs, over all cells that both have.");
    return;
  }
  summarise(element("strong", {}, `${answer.sentence.charAt(0).toUpperCase()}${answer.sentence.slice(1)}.`));
  parts.remarks.replaceChildren(...answer.remarks.map((remark) => element("li", {}, remark)));
  if (rows.length) parts.draw(rows, columnsOf("sets", ADDED));
  parts.rest.replaceChildren(...onlyIn("A", answer.only_a), ...onlyIn("B", answer.only_b), ...(rows.length ? differing() : []));
}

/** Compare the sets of the address, and draw the comparison; if that fails, only what can be chosen. */
export async function show() {
  const query = new URLSearchParams([...current()].filter(([key]) => ["a", "b", "by"].includes(key)));
  try {
    answer = await readNew(answer, `api/compare?${query}`);
    redraw();
  } catch (error) {
    if (givenUp(error)) throw error;
    const { choices: known } = answer ?? await readNew(null, "api/compare");
    answer = { choices: known };
    redraw();
    throw error;
  }
}
