// The data of a page that was saved as a file: `steptime report` puts it into the document.
const place = document.getElementById("frozen");

/** What the file has instead of a server: `{of, made, answers, newest}`; null on the page in Airflow. */
export const frozen = place && JSON.parse(place.textContent);

/** What the server would answer, by its address. */
export function frozenAnswer(address) {
  const [path] = address.split("?");
  const [, kind, job] = path.match(/^(api\/trend\/)(.*)$/) ?? [];
  const name = job && decodeURIComponent(job);
  const wanted = kind ? kind + (frozen.newest[name] ?? name) : decodeURIComponent(path);
  if (Object.hasOwn(frozen.answers, address)) return JSON.stringify(frozen.answers[address]);
  if (!Object.hasOwn(frozen.answers, wanted)) throw new Error("This file does not have it: see the page in Airflow.");
  return JSON.stringify(frozen.answers[wanted]);
}
