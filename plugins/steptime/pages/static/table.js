// Tables of runs or cells: headings that sort, and rows made a batch at a time as people scroll.
import { split, valueOf } from "./columns.js";
import { element } from "./dom.js";

const BATCH = 200;

const text = (wanted, facts) => (typeof wanted === "function" ? wanted(facts) : wanted ?? "");
const classes = (column) => [column.numeric && "number", column.className].filter(Boolean).join(" ");

/** The unit of scales: ranks for runs on the CPU, else GPUs. */
export const unitOf = (rows) => (rows.every((row) => row.gpu_type === "cpu") ? "rank" : "GPU");

/** The title of the column of scales. */
export const unitTitle = ({ unit }) => (unit === "rank" ? "Ranks" : "GPUs");

function sorted(rows, column, descending) {
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [valueOf(column, a), valueOf(column, b)];
    if (x == null || y == null) return (x == null) - (y == null);
    return (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y) * sign;
  });
}

/** The order after another click on a heading: numbers first descending, then ascending, then as at first. */
function nextOrder(order, { name, kind, numeric }) {
  const first = Boolean(numeric || kind === "time");
  if (order?.name !== name) return { name, descending: first };
  return order.descending === first ? { name, descending: !first } : null;
}

function heading(column, facts, order, reorder) {
  const button = element("button", { type: "button", title: column.description ?? "Sort" }, text(column.title, facts),
    element("small", {}, text(column.unit, facts) || "\u00a0"));
  button.addEventListener("click", () => reorder(nextOrder(order, column), column.name));
  const head = element("th", { scope: "col", className: classes(column) }, button);
  head.dataset.key = column.name;
  if (order?.name === column.name) head.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
  return head;
}

function cellOf(column, row) {
  const isHead = column.className === "run";
  const cell = element(isHead ? "th" : "td", { ...(isHead ? { scope: "row" } : {}), className: classes(column), title: column.hint?.(row) ?? "" });
  cell.append(...[column.cell ? column.cell(row) : column.writeRow(row)].flat());
  return cell;
}

const sharedFact = (column, row, facts) => {
  const value = column.cell && column.kind === "text" ? column.cell(row) : column.writeRow(row);
  return value === "" ? [] : [element("div", {}, element("dt", {}, text(column.title, facts)), element("dd", {}, value))];
};

/** Move between the rows with the arrow keys. */
function moveByKey(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.matches(".open")) return;
  const opens = [...event.currentTarget.querySelectorAll(".open")];
  opens[opens.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}

/** Follow the link of a row that is clicked beside it. */
function openRow({ target }) {
  const link = target.closest("tr")?.querySelector("a.open");
  if (!link || target.closest("a, button") || !getSelection().isCollapsed) return;
  link.focus(); // the focus returns here
  link.click();
}

/**
 * A table in `box`. `mark(row, made)` names a made row in the document; `sections(rows)` gives what stands in its
 * own order as [head, rows] pairs, where `head(columns)` makes a row or is null. Returns the function that draws.
 */
export function makeTable(box, { mark, sections = (rows) => [[null, rows]] }) {
  const how = element("caption", { className: "unseen" }, "Headings sort; the arrow keys move from row to row.");
  const table = element("table", {}, how, element("thead"), element("tbody"));
  const scroller = element("div", { className: "scroller", hidden: true }, table);
  const shared = element("dl", { className: "shared" });
  box.append(shared, scroller);
  table.addEventListener("keydown", moveByKey);
  table.tBodies[0].addEventListener("click", openRow);
  let [order, pending, redraw] = [null, [], () => {}];
  const more = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && grow(), { root: scroller, rootMargin: "600px" });

  function grow() {
    more.disconnect();
    table.tBodies[0].append(...pending.splice(0, BATCH).map((make) => make()));
    if (pending.length) more.observe(table.tBodies[0].lastElementChild);
  }

  function reorder(next, name) {
    order = next;
    redraw();
    scroller.scrollTop = 0;
    table.querySelector(`th[data-key="${name}"] button`)?.focus();
  }

  return function draw(rows, columns) {
    redraw = () => draw(rows, columns);
    scroller.hidden = false;
    const facts = { unit: unitOf(rows) };
    const [shown, same] = split(columns, rows);
    const rowOf = (row) => () => {
      const made = element("tr", {}, ...shown.map((column) => cellOf(column, row)));
      mark(row, made);
      return made;
    };
    const by = order && shown.find(({ name }) => name === order.name);
    shared.replaceChildren(...same.flatMap((column) => sharedFact(column, rows[0], facts)));
    table.tHead.replaceChildren(element("tr", {}, ...shown.map((column) => heading(column, facts, by ? order : null, reorder))));
    pending = by ? sorted(rows, by, order.descending).map(rowOf)
      : sections(rows).flatMap(([head, some]) => [...(head ? [() => head(shown)] : []), ...some.map(rowOf)]);
    table.tBodies[0].replaceChildren();
    grow();
  };
}

/**
 * A table that neither sorts nor grows, in a region of its own that scrolls. Each of `columns` is
 * `{ head, cell(row), className }`; the first one names the rows.
 */
export function plainTable({ id, label, columns, rows }) {
  const cellOf = ({ cell, className = "" }, place) => (row) => {
    const made = place ? element("td", { className }) : element("th", { scope: "row", className });
    made.append(...[cell(row) ?? ""].flat());
    return made;
  };
  const cells = columns.map(cellOf);
  const scroller = element("div", { className: "scroller", tabIndex: 0, role: "region", ariaLabel: label }, element("table", {},
    element("thead", {}, element("tr", {}, ...columns.map(({ head, className = "" }) => element("th", { scope: "col", className }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells.map((make) => make(row)))))));
  if (id) scroller.id = id;
  return scroller;
}
