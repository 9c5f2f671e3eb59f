// The columns as `api/columns` declares them, and how their values are written.
import { timeZone } from "./airflow.js";
import { decimals, fixed, shortTimestamps, significant, words } from "./format.js";
import { read } from "./server.js";
import { overPublished } from "./verdicts.js";

let declared = null;

/** Read what the columns are, once. */
export async function readColumns() {
  declared ??= await read("api/columns");
}

/** The names of the columns that are these parts of what makes a series. */
export const ofSeries = (...parts) => declared.columns.filter(({ series }) => parts.includes(series)).map(({ name }) => name);

/** The columns that people select runs by. */
export const choices = () => declared.columns.filter(({ choice }) => choice);

/** The columns that list several values, and that people select runs by one of, the column's `element`. */
export const listing = () => declared.columns.filter(({ element }) => element);

/** The heading of a column, of the results or a comparison. */
export const headingOf = (name) => [...declared.columns, ...declared.comparison].find((column) => column.name === name).heading;

/** What a column of the results means. */
export const meaningOf = (name) => declared.columns.find((column) => column.name === name).description.replaceAll("`", "");

/** Every measured number that a run has, as [title, value with unit, name of the column]. */
export const numbersOf = (run) => declared.columns.filter(({ name, kind }) => kind === "number" && run[name] != null)
  .map(({ name, heading, unit, significant: digits }) => [capitalised(heading), `${significant(run[name], digits)} ${unit}`.trim(), name]);

/** The columns of all measured numbers that one of two runs has. */
export const comparedNumbers = (one, other) => declared.columns.filter(({ name, kind }) => kind === "number" && (one[name] ?? other[name]) != null);

export const capitalised = (text) => (/^[a-z]+(?=[ ,;/\-]|$)/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text);

export const valueOf = (column, row) => (column.value ? column.value(row) : row[column.name]);

/** Numbers have the same decimals within a series over its scales: a tiny model must not give its digits to a large one. */
function numberWriter(column, rows) {
  const names = ofSeries("model", "variant", "mode");
  const comparable = (row) => JSON.stringify(names.map((name) => row[name]));
  const digitsOf = column.decimals_of ? declared.columns.find(({ name }) => name === column.decimals_of) : column;
  const values = new Map();
  for (const row of rows) values.set(comparable(row), [...(values.get(comparable(row)) ?? []), row[digitsOf.name]]);
  const digits = new Map([...values].map(([key, some]) => [key, decimals(some, digitsOf.significant, digitsOf.decimals)]));
  const most = Math.max(...digits.values());
  const writers = new Map([...digits].map(([key, own]) => [key, aligned(own, most)]));
  return (row) => writers.get(comparable(row))(valueOf(column, row));
}

/** A function that writes numbers with so many decimals, and as wide as if there were more: the points stand in line. */
function aligned(own, most) {
  const [write, room] = [fixed(own), (own ? "" : most ? "\u2008" : "") + "\u2007".repeat(most - own)];
  return (value) => (value == null ? "" : write(value) + room);
}

/** The function that writes a column of these rows. */
function writer(column, rows) {
  if (column.write) return (row) => column.write(valueOf(column, row), row);
  if (column.as_change) return (row) => overPublished(valueOf(column, row));
  if (column.kind === "number") return numberWriter(column, rows);
  if (column.kind === "time") {
    const write = shortTimestamps(rows.map((row) => valueOf(column, row)));
    return (row) => write(valueOf(column, row));
  }
  if (column.kind === "boolean") return (row) => (valueOf(column, row) ? column.heading : "");
  return (row) => words(valueOf(column, row));
}

/**
 * The columns of a table, from the declarations of `results` or a `comparison`, and what the page adds to them:
 * `cell` makes a cell's content, `value` takes what is sorted and written, `write` writes it, `hint` explains it.
 * Columns that are declared as part of no table are shown if the page adds something to them.
 */
export function columnsOf(table, added) {
  return declared[table === "results" ? "columns" : table]
    .map((column) => ({ ...column, ...added[column.name] }))
    .filter(({ name, priority, left_out }) => !left_out && (priority !== null || name in added))
    .sort((a, b) => (a.place ?? 0) - (b.place ?? 0))
    .map((column) => ({
      title: capitalised(column.heading), numeric: ["number", "integer"].includes(column.kind), ...column,
      unit: column.kind === "time" ? timeZone : column.unit,
    }));
}

/** The columns in which these rows differ, and those in which all have the same value; each can write a row. */
export function split(columns, rows) {
  const [shown, shared] = [[], []];
  for (const column of columns) {
    const first = valueOf(column, rows[0]);
    const made = { ...column, writeRow: writer(column, rows) };
    if (column.shared && rows.every((row) => valueOf(column, row) === first)) shared.push(made);
    else if (rows.some((row) => ![null, undefined, "", false].includes(valueOf(column, row)))) shown.push(made);
  }
  return [shown, shared];
}
