// Elements are made from text, never from markup, so that values of the store are shown as they are.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; null and undefined children are left out. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
