// Elements, made with text and never with markup: whatever a row of the store holds is shown as it is.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; null and undefined children are left out. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
