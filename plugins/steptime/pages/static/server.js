// Requests to the pages' server. Errors become one sentence that says what to do.

import { frozen, frozenAnswer } from "./frozen.js";

let reading = new AbortController();

/** Abort pending requests: a late answer must not replace a newer one. */
export function giveUp() {
  reading.abort();
  reading = new AbortController();
}

/** Whether an error means that a request was aborted. */
export const givenUp = ({ name }) => name === "AbortError";

async function ask(address, options = {}) {
  try {
    return await fetch(address, { credentials: "same-origin", signal: reading.signal, ...options });
  } catch (error) {
    if (givenUp(error)) throw error;
    throw new Error("Airflow's API server does not answer: check that it is running, then press Refresh.");
  }
}

/** Return the text of an answer; the address is relative to the page. */
export async function readText(address, options = {}) {
  return frozen ? frozenAnswer(address) : textOf(await ask(address, options));
}

async function textOf(reply) {
  if (reply.ok) return reply.text();
  if (reply.status === 401) throw new Error("Your session has ended: log in to Airflow again.");
  const { detail } = await reply.json().catch(() => ({}));
  throw new Error(typeof detail === "string" ? detail : `Airflow's API server answered with status ${reply.status}: its log has the reason.`);
}

/** Return an answer parsed from JSON. */
export const read = async (address) => JSON.parse(await readText(address));

/**
 * Return an answer of Airflow's REST API; null if the object does not exist or the user may not read it.
 *
 * `options` are those of fetch; `signal: null` keeps the request alive when the page shows something else.
 */
export async function readAirflow(parts, query, options = {}) {
  const path = `../api/v2/${parts.map(encodeURIComponent).join("/")}`;
  const reply = await ask(query ? `${path}?${new URLSearchParams(query)}` : path, options);
  return [403, 404].includes(reply.status) ? null : JSON.parse(await textOf(reply));
}

/** Send a change to Airflow's REST API, with the permissions of the user. */
export async function sendAirflow(parts, content) {
  const options = { signal: null, method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) };
  return JSON.parse(await readText(`../api/v2/${parts.map(encodeURIComponent).join("/")}`, options));
}

/** Return a new answer, or `before` if it is equal and shown: a page that is not redrawn keeps its focus. */
export async function readNew(before, address) {
  const text = await readText(address);
  const isShown = text === before?.text && !document.querySelector("#message .failure");
  return isShown ? before : { ...JSON.parse(text), text };
}

/** Send something to be written; the request is not aborted when the page shows something else. */
export const send = (address, content) => readText(address, { signal: null, method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });

/** Return the rows of a table as objects by column name. */
export const rowsOf = ({ columns, rows }) => rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
