// How tables write the verdict of a cell against its history, and of a run against the publication.
import { element } from "./dom.js";
import { fixed } from "./format.js";

const change = fixed(1);

/** A change in percent with its sign: above 0 is slower. */
export const signed = (value) => {
  const written = change(value).replace(/^−(?=0\.0$)/, "");
  return value > 0 && written !== "0.0" ? `+${written}` : written;
};

/** A change in percent in words: `3.3 % slower`. */
export const overUsual = (percent) => `${change(Math.abs(percent))} % ${percent > 0 ? "slower" : "faster"}`;

/** A step time relative to the published one, in words: `3.3 % faster`. */
export const overPublished = (ratio) => (ratio == null ? "" : overUsual(100 * (ratio - 1)));

/** The name of a cell or run, with a line break allowed only before the mode: 70b·bf16·64·checkpoint save. */
export function cellName(name) {
  const [scale] = name.match(/^[^·]*(·[^·]*)?(·[^· ]*)?/);
  return [element("span", { className: "whole" }, scale), element("wbr"), name.slice(scale.length)];
}

/** The verdict in its colour, with the state of the series if that says more. */
export function verdictBadge({ verdict, series_state: state, silenced_until: until }) {
  const changed = ["slower", "faster"].includes(verdict);
  const words = changed || state === "suspected" ? [verdict, state] : [verdict];
  if (until) words.push("silenced");
  return element("span", { className: `judged ${changed && !until ? `${verdict} ${state}` : verdict.replaceAll(" ", "-")}` }, words.join(", "));
}

/** Whether a run passes against the publication; empty if none is known. */
export function publicationBadge({ against_publication: verdict }) {
  return verdict ? element("span", { className: verdict === "passes" ? "state valid" : "state warned" }, verdict) : "";
}
