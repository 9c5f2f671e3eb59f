// The data of a page that was saved as a file: `steptime report` puts it into the document.
const place = document.getElementById("frozen");

/** The data of the file, instead of a server: `{of, made, answers, newest}`; null on the page in Airflow. */
export const frozen = place && JSON.parse(place.textContent);

/** Return the text that the server would answer at an address. */
export function frozenAnswer(address) {
  const [path] = address.split("?");
  const [, kind, job] = path.match(/^(api\/trend\/)(.*)$/) ?? [];
  const name = job && decodeURIComponent(job);
  const wanted = kind ? kind + (frozen.newest[name] ?? name) : decodeURIComponent(path);
  if (Object.hasOwn(frozen.answers, address)) return JSON.stringify(frozen.answers[address]);
  if (!Object.hasOwn(frozen.answers, wanted)) throw new Error("This file does not contain it: open the page in Airflow.");
  return JSON.stringify(frozen.answers[wanted]);
}
