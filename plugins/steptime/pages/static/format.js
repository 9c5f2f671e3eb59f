// Numbers and times for people: the same number of decimals in a column, so that digits align.
import { timeZone } from "./airflow.js";

const MINUS = "−";

export const DAY_S = 86_400;
/** Periods that people choose from, by their days. */
export const PERIODS = { 1: "last day", 7: "last 7 days", 30: "last 30 days", 365: "last year" };

/** The Unix time when the last `days` days began. */
export const startOfLast = (days) => Math.floor(Date.now() / 1000 - days * DAY_S);

/** Decimals that leave the smallest of the values `significant` digits, at most `most`. */
export function decimals(values, significant, most) {
  let smallest = Infinity;
  for (const value of values) if (value) smallest = Math.min(smallest, Math.abs(value));
  if (smallest === Infinity) return 0;
  return Math.min(most, Math.max(0, significant - 1 - Math.floor(Math.log10(smallest))));
}

/** A function that writes numbers with so many decimals and groups of thousands; nothing for null. */
export function fixed(digits) {
  const format = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return (value) => (value == null ? "" : format.format(value).replace("-", MINUS));
}

/** A single number with so many significant digits. */
export function significant(value, digits = 4) {
  if (value == null) return "";
  return new Intl.NumberFormat("en-US", { maximumSignificantDigits: digits }).format(value).replace("-", MINUS);
}

/** A function that writes Unix times as 2026-11-21 03:30, in Airflow's time zone. */
export function timestamps() {
  const format = new Intl.DateTimeFormat("sv-SE", {
    timeZone: timeZone(), year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit",
  });
  return (seconds) => (seconds == null ? "" : format.format(seconds * 1000));
}

/** The same without the year if all times are of this year. */
export function shortTimestamps(values) {
  const format = timestamps();
  const year = format(Date.now() / 1000).slice(0, 4);
  const known = values.filter((value) => value != null);
  if (!known.length) return () => "";
  const thisYear = [Math.min, Math.max].every((edge) => format(known.reduce((a, b) => edge(a, b), known[0])).startsWith(year));
  return (seconds) => format(seconds).slice(thisYear ? 5 : 0);
}

/** Seconds as 40 s, 3 min 20 s, 2 h 5 min. */
export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds < 60) return `${significant(seconds, 3)} s`;
  const [whole, minutes] = [Math.round(seconds), Math.round(seconds / 60)];
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A count as text, `1,680`. */
export const grouped = (number) => number.toLocaleString("en-US");

/** `checkpoint_save` as people write it. */
export const words = (value) => String(value ?? "").replaceAll("_", " ");
