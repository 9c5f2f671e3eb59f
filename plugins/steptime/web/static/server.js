// What the pages' server answers. What goes wrong becomes one sentence with what to do.

import { frozen, frozenAnswer } from "./frozen.js";

let reading = new AbortController();

/** Give up the answers that are under way: a late one must not be drawn over what was asked for after it. */
export function giveUp() {
  reading.abort();
  reading = new AbortController();
}

/** Whether an error is that an answer was given up. */
export const givenUp = ({ name }) => name === "AbortError";

async function ask(address, options = {}) {
  try {
    return await fetch(address, { credentials: "same-origin", signal: reading.signal, ...options });
  } catch (error) {
    if (givenUp(error)) throw error;
    throw new Error("Airflow's API server does not answer: see that it is up, then press Refresh.");
  }
}

/** The text of an answer, by its address below the page's. */
export async function readText(address, options = {}) {
  return frozen ? frozenAnswer(address) : textOf(await ask(address, options));
}

async function textOf(reply) {
  if (reply.ok) return reply.text();
  if (reply.status === 401) throw new Error("Your session has ended: log in to Airflow again.");
  const { detail } = await reply.json().catch(() => ({}));
  throw new Error(typeof detail === "string" ? detail : `Airflow's API server answered with status ${reply.status}: its log has the reason.`);
}

/** An answer as it is meant. */
export const read = async (address) => JSON.parse(await readText(address));

/** An answer of Airflow's REST API; null if there is no such thing or the user may not read it. */
export async function readAirflow(parts, query) {
  const path = `../api/v2/${parts.map(encodeURIComponent).join("/")}`;
  const reply = await ask(query ? `${path}?${new URLSearchParams(query)}` : path);
  return [403, 404].includes(reply.status) ? null : JSON.parse(await textOf(reply));
}

/** Ask Airflow's REST API for a change, with the permissions of the user. */
export async function sendAirflow(parts, content) {
  const options = { signal: null, method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) };
  return JSON.parse(await readText(`../api/v2/${parts.map(encodeURIComponent).join("/")}`, options));
}

/** An answer, or the one before if it is the same and is shown: what need not be drawn anew keeps its focus. */
export async function readNew(before, address) {
  const text = await readText(address);
  const isShown = text === before?.text && !document.querySelector("#message .failure");
  return isShown ? before : { ...JSON.parse(text), text };
}

/** Send something to be written, which is not given up when the page shows something else. */
export const send = (address, content) => readText(address, { signal: null, method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });

/** The rows of a table whose columns are named once. */
export const rowsOf = ({ columns, rows }) => rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
