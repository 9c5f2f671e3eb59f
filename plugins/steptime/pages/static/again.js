// Running one cell of a DAG run again: Airflow's own REST API clears exactly its tasks, if the user may.
import { airflowLink, dagRunAddress } from "./airflow.js";
import { element } from "./dom.js";
import { drawAsking } from "./messages.js";
import { readAirflow, sendAirflow } from "./server.js";

const PAGE = 100;
const UNFINISHED = ["scheduled", "queued", "running", "deferred", "awaiting_input", "restarting", "up_for_retry", "up_for_reschedule"];

/**
 * Return the tasks of a cell (both runs of a checkpoint pair), and the report, which decides the DAG run's state.
 * In a trial the later runs that were skipped are there, too: with another result they may be needed.
 */
async function tasksOf({ dag_id: dag, dag_run_id: run, task_id: waited, map_index: index, trial }) {
  const group = waited.replace(/\.[^.]+$/, "").replace(/\.(save|load)$/, "");
  const all = [];
  for (let total = 1; all.length < total;) {
    const answer = await readAirflow(["dags", dag, "dagRuns", run, "taskInstances"], { limit: PAGE, offset: all.length });
    if (!answer?.task_instances.length) break;
    all.push(...answer.task_instances);
    total = answer.total_entries;
  }
  const own = all.filter((task) => task.task_id.startsWith(`${group}.`) && task.map_index === index);
  if (!own.length) throw new Error("Airflow no longer has the tasks of this run.");
  const busy = own.find(({ state }) => UNFINISHED.includes(state));
  if (busy) throw new Error(`${busy.task_id} is ${busy.state}: wait for its end, or mark it as failed first.`);
  const isSkipped = (task) => task.task_id === `${group}.submit` && task.map_index > index && task.state === "skipped";
  const skipped = new Set(trial ? all.filter(isSkipped).map((task) => task.map_index) : []);
  own.push(...all.filter((task) => task.task_id.startsWith(`${group}.`) && skipped.has(task.map_index)));
  return [...own.map((task) => [task.task_id, task.map_index]), ...(all.some((task) => task.task_id === "report") ? ["report"] : [])];
}

/** Put a button into `box` that runs a cell again, if the user may. */
export function drawAgain(box, run, mayRunAgain) {
  box.hidden = !mayRunAgain;
  const start = element("button", { type: "button", title: "With a new job; other cells are not affected" }, "Run this cell again …");
  const asked = element("label", {}, `Clear the tasks of ${run.label} in DAG run ${run.dag_run_id}, and train it with a new job?`);
  drawAsking(box, start, asked, "Run again", async () => {
    const tasks = await tasksOf(run);
    await sendAirflow(["dags", run.dag_id, "clearTaskInstances"], { dag_run_id: run.dag_run_id, task_ids: tasks, dry_run: false, only_failed: false, reset_dag_runs: true });
    box.replaceChildren(element("p", { role: "status" }, "It runs again: ", airflowLink(dagRunAddress(run), `DAG run ${run.dag_run_id}`)));
  });
}
