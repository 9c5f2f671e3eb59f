// What a comparison lacks: one line, and each cell that failed or did not run.
import { viewLink } from "./address.js";
import { element } from "./dom.js";
import { cellName } from "./verdicts.js";

/** Make the empty box. */
export const completenessBox = () => element("section", { className: "completeness", ariaLabel: "Completeness", hidden: true });

/** Fill the box; a failed cell links to its run, one that did not run to its trend. */
export function drawCompleteness(box, completeness) {
  box.hidden = !completeness?.planned;
  if (box.hidden) return;
  const items = completeness.missing.map(({ cell, sentence, attempts, job_name: job }) => {
    const name = cellName(cell);
    const named = job ? [viewLink(attempts ? { run: job } : { view: "trend", series: job }, ...name)] : name;
    return element("li", {}, ...named, ` ${sentence}`);
  });
  box.replaceChildren(element("p", {}, `${completeness.counts}.`), ...(items.length ? [element("ul", {}, ...items)] : []));
}
