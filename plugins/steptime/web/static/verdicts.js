// How a cell stands against its history, and a run against the publication, as every table writes it.
import { element } from "./dom.js";
import { fixed } from "./format.js";

const change = fixed(1);

/** A change in percent with its sign: above 0 is slower. */
export const signed = (value) => {
  const written = change(value).replace(/^−(?=0\.0$)/, "");
  return value > 0 && written !== "0.0" ? `+${written}` : written;
};

/** A change in percent as people say it: `3.3 % slower`. */
export const overUsual = (percent) => `${change(Math.abs(percent))} % ${percent > 0 ? "slower" : "faster"}`;

/** A step time relative to the published one, as people say it: `3.3 % faster`. */
export const overPublished = (ratio) => (ratio == null ? "" : overUsual(100 * (ratio - 1)));

/** A cell's or run's name, which breaks before its mode alone, as in 70b·bf16·64·checkpoint save. */
export function cellName(name) {
  const [scale] = name.match(/^[^·]*(·[^·]*)?(·[^· ]*)?/);
  return [element("span", { className: "whole" }, scale), element("wbr"), name.slice(scale.length)];
}

/** The verdict in its colour, with what its suspicion has come to. */
export function verdictBadge({ verdict, suspicion }) {
  const moved = ["slower", "faster"].includes(verdict);
  const words = moved || suspicion === "suspected" ? [verdict, suspicion] : [verdict];
  return element("span", { className: `judged ${moved ? `${verdict} ${suspicion}` : verdict.replaceAll(" ", "-")}` }, words.filter(Boolean).join(", "));
}

/** Whether a run passes its publication; nothing if none is known. */
export function publicationBadge({ against_publication: verdict }) {
  return verdict ? element("span", { className: verdict === "passes" ? "state valid" : "state warned" }, verdict) : "";
}
