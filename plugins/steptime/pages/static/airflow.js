// The Airflow UI around this page: its theme, its time zone, and its pages.
// Airflow shows the page in an iframe of the same origin whose sandbox forbids popups and top navigation.
import { element } from "./dom.js";
import { frozen } from "./frozen.js";
import { readAirflow } from "./server.js";

const framed = !frozen && window.parent !== window;
const frame = framed ? window.parent.document.documentElement : null;
const preference = window.matchMedia("(prefers-color-scheme: dark)");
// Airflow keeps what people chose in its menus in these keys of the local storage.
const THEME = "theme";
const TIME_ZONE = "timezone";
const stored = (key) => (frozen ? null : localStorage.getItem(key));

function theme() {
  const names = frame?.classList ?? [stored(THEME)];
  for (const name of ["dark", "light"]) if ([...names].includes(name)) return name;
  return preference.matches ? "dark" : "light";
}

/** Follow Airflow's theme, now and whenever it changes; `changed` is called after every change. */
export function followTheme(changed) {
  const apply = () => {
    const now = theme();
    if (document.documentElement.style.colorScheme === now) return;
    document.documentElement.style.colorScheme = now;
    changed();
  };
  apply();
  if (frame) new MutationObserver(apply).observe(frame, { attributes: true, attributeFilter: ["class"] });
  preference.addEventListener("change", apply);
  window.addEventListener("storage", ({ key }) => key === THEME && apply());
}

/** Call `changed` when people choose another time zone in Airflow. */
export function followTimeZone(changed) {
  window.addEventListener("storage", ({ key }) => key === TIME_ZONE && changed());
}

/** The time zone that Airflow shows times in: the chosen one, or the browser's. */
export function timeZone() {
  const chosen = stored(TIME_ZONE);
  if (chosen) {
    try {
      return new Intl.DateTimeFormat("en", { timeZone: JSON.parse(chosen) }).resolvedOptions().timeZone;
    } catch {
      // A zone that this browser does not know: as if none were chosen.
    }
  }
  return new Intl.DateTimeFormat().resolvedOptions().timeZone;
}

// As Airflow writes its addresses: with an escaped colon or plus its tabs do not know that they are open.
const escaped = (part) => encodeURIComponent(part).replaceAll("%3A", ":").replaceAll("%2B", "+");
const address = (...parts) => new URL(`../${parts.map(escaped).join("/")}`, location.origin + location.pathname).pathname;

/** Address of Airflow's page of a row's DAG run, or null. */
export function dagRunAddress({ dag_id: dag, dag_run_id: run }) {
  return dag && run && !frozen ? address("dags", dag, "runs", run) : null;
}

/** Address of Airflow's page with the log of the task that waited for this row's run, or null. */
export function logAddress(row) {
  if (!dagRunAddress(row) || !row.task_id) return null;
  const mapped = row.map_index == null || row.map_index < 0 ? [] : ["mapped", row.map_index];
  return address("dags", row.dag_id, "runs", row.dag_run_id, "tasks", row.task_id, ...mapped);
}

/** Why a DAG run that has ended has no results: its first failed task and that task's reason. Null while it goes on. */
export async function whyWithoutResults(dag, run) {
  const path = ["dags", dag, "dagRuns", run];
  const { state } = await readAirflow(path) ?? {};
  if (!["success", "failed"].includes(state)) return null;
  const [first] = (await readAirflow([...path, "taskInstances"], { state: "failed", order_by: "end_date", limit: 1 }))?.task_instances ?? [];
  if (!first) return "Ended without results";
  const failure = await readAirflow([...path, "taskInstances", first.task_id, "xcomEntries", "failure"], { map_index: first.map_index });
  return `Ended without results: ${first.task_id} failed: ${failure?.value ?? "its log has the reason"}`;
}

/** A link to a page of Airflow that works from within the sandbox, with the usual keys for a new tab, too. */
export function airflowLink(href, text, title = "") {
  const link = element("a", { href, title }, text);
  const follow = (event) => {
    event.stopPropagation();
    if (!framed || event.button > 1) return;
    event.preventDefault();
    const newTab = event.ctrlKey || event.metaKey || event.shiftKey || event.button === 1;
    if (newTab) clickInFrame(href, "_blank");
    else navigate(href);
  };
  link.addEventListener("click", follow);
  link.addEventListener("auxclick", follow);
  return link;
}

/** Ask the Airflow UI's router, which takes this page away at once; if it does not, load the page whole. */
function navigate(href) {
  const { history } = window.parent;
  history.pushState({ idx: (history.state?.idx ?? 0) + 1 }, "", href);
  window.parent.dispatchEvent(new PopStateEvent("popstate", { state: history.state }));
  setTimeout(() => clickInFrame(href, "_self"), 1500);
}

/** Click a link that belongs to the Airflow UI's document, which no sandbox holds. */
function clickInFrame(href, target) {
  const link = window.parent.document.createElement("a");
  Object.assign(link, { href, target, rel: "noopener" });
  link.click();
}
