// The address of what is shown: it survives a reload, can be shared, and follows the browser's Back button.
// On its page in the navigation, Airflow appends the address of this page to its own, which follows it.
import { element } from "./dom.js";
import { frozen } from "./frozen.js";

const SCOPE = ["dag_id", "dag_run_id"];
// A file has no server that would be asked for the rest of its address.
const START = frozen ? "#" : "?";
const query = () => (frozen ? location.hash.slice(1) : location.search);
const here = new URLSearchParams(query());

/** The DAG run whose tab this page is; empty on the page in the navigation. */
export const scope = here.has("dag_run_id") ? new URLSearchParams(SCOPE.map((key) => [key, here.get(key)]).filter(([, value]) => value !== null)) : new URLSearchParams();

let arrived = () => {};

/** Call `show` whenever the address has changed, by a link or by the browser's buttons. */
export function followAddress(show) {
  arrived = show;
  window.addEventListener("popstate", () => {
    remember("replaceState", current());
    show();
  });
}

/** Return the values in the address, without those of the DAG run. */
export function current() {
  return new URLSearchParams([...new URLSearchParams(query())].filter(([key, value]) => value && !(scope.size && SCOPE.includes(key))));
}

function remember(way, values) {
  const whole = new URLSearchParams([...scope, ...values]);
  if (frozen) history[way](null, "", START + whole);
  for (const place of frozen ? [] : new Set([window, window.parent])) {
    const { pathname } = place.location;
    if (!pathname.endsWith(location.pathname)) continue;
    place.history[place === window ? way : "replaceState"](place.history.state, "", whole.size ? `${pathname}?${whole}` : pathname);
  }
}

/** Return the values with some changed; null or empty ones are removed. */
function changed(before, values) {
  const next = new URLSearchParams(before);
  for (const [key, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") next.delete(key);
    else next.set(key, value);
  }
  return next;
}

/** Change some values without a new entry in the browser's history. */
export const keep = (values) => remember("replaceState", changed(current(), values));

/** Change some values as `keep` does, and show the result. */
export function stay(values) {
  keep(values);
  arrived();
}

/** Change some values, and show what the new address has. */
export function go(values) {
  remember("pushState", changed(current(), values));
  arrived();
}

/** Return a link to a view with only these values; keys for new tabs work as usual. */
export function viewLink(values, ...content) {
  const wanted = changed(new URLSearchParams(), values);
  const link = element("a", { href: `${START}${new URLSearchParams([...scope, ...wanted])}` }, ...content);
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    remember("pushState", wanted);
    arrived();
  });
  return link;
}
