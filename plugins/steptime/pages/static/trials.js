// Trials: the answer of each in a sentence, the newest first.
import { viewLink } from "./address.js";
import { airflowLink, dagRunAddress } from "./airflow.js";
import { element } from "./dom.js";
import { frozen } from "./frozen.js";
import { significant, timestamps } from "./format.js";
import { announce, summarise } from "./messages.js";
import { readNew } from "./server.js";
import { plainTable } from "./table.js";

export const title = "Trials";

let [answer, box] = [null, null];

/** A link to the page of a trial's DAG run. */
export const trialLink = ({ together, trial }) => viewLink({ view: "trial", together }, trial);

/** Sentences of an answer with the names of variants, which stand between backticks, as code. */
export const inWords = (sentences) => sentences.join(" ").split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));

/** A link to the DAG run of a trial in Airflow; null in a file. */
export function dagRunLink(trial) {
  const address = dagRunAddress(trial);
  return address ? airflowLink(address, "DAG run") : null;
}

/** Prepare the view. */
export function open(place) {
  [answer, box] = [null, place];
}

/** Draw the latest answer, in the current time zone. */
export function redraw() {
  if (!answer) return;
  const { trials } = answer;
  box.replaceChildren();
  if (!trials.length) {
    summarise();
    announce(element("p", {}, "No trial has a result yet. A trial finds out which of several settings is fastest. Type, for example:"), element("code", {}, "steptime trial run example-micro-batch"));
    return;
  }
  announce();
  summarise(element("strong", {}, `${trials.length} trial${trials.length === 1 ? "" : "s"}, the newest first.`));
  const when = timestamps();
  const columns = [
    { head: "Trial", cell: trialLink },
    { head: "Answer", cell: ({ sentences }) => inWords(sentences), className: "words" },
    { head: "Rounds", cell: ({ rounds }) => rounds, className: "number" },
    { head: "GPU-hours", cell: ({ gpu_hours: hours }) => significant(hours, 3), className: "number" },
    { head: "Newest run", cell: ({ submitted_at: at }) => when(at) },
    ...(frozen ? [] : [{ head: "Airflow", cell: dagRunLink }]),
  ];
  box.append(plainTable({ id: "trials", label: "Trials", columns, rows: trials }));
}

/** Read the trials. */
export async function show() {
  const found = await readNew(answer, "api/trials");
  if (found === answer) return;
  answer = found;
  redraw();
}
