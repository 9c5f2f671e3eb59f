// Sending this page by mail: a DAG does it, through the connection of the mail server.
import { airflowLink, dagRunAddress } from "./airflow.js";
import { element } from "./dom.js";
import { attempt, drawAsking } from "./messages.js";
import { readAirflow, sendAirflow } from "./server.js";

const DAG = "steptime_send_report"; // as in dag_ids.py

/** What sends the report on the last `days()`, for users who may see that there is a mail server. */
export function sendBox(days) {
  const box = element("div", { id: "send", className: "filters", hidden: true });
  const start = element("button", { type: "button", title: "This page as a file, by mail" }, "Send …");
  const to = element("input", { type: "email", multiple: true, required: true, placeholder: "team@example.com, …" });
  drawAsking(box, start, element("label", {}, "To", to), "Send", async () => {
    const conf = { to: to.value.split(",").map((one) => one.trim()), days: Number(days()) };
    const run = await sendAirflow(["dags", DAG, "dagRuns"], { conf, logical_date: null });
    box.replaceChildren(element("span", { role: "status" }, "It is sent by ", airflowLink(dagRunAddress(run), "a DAG run"), "."));
  });
  attempt(async () => {
    const mail = await readAirflow(["connections"], { connection_id_pattern: "smtp_default" }, { signal: null });
    box.hidden = !mail?.total_entries;
  });
  return box;
}
