// A small chart without axes: recent runs of a cell, the newest one marked, and the usual time as a line.
import { significant } from "./format.js";

const [WIDTH, HEIGHT, MARGIN] = [80, 24, 3];
const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function inWords(seconds, usual) {
  const text = `${seconds.length} runs from ${significant(Math.min(...seconds))} to ${significant(Math.max(...seconds))} s, the newest ${significant(seconds.at(-1))} s`;
  return usual == null ? text : `${text}; usual ${significant(usual)} s`;
}

/** Draw seconds, oldest first; nothing for fewer than two. `usual` is a level in seconds or null. */
export function sparkline(seconds, usual = null) {
  if (seconds.length < 2) return "";
  const known = usual == null ? seconds : [...seconds, usual];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const x = (place) => MARGIN + (place / (seconds.length - 1)) * (WIDTH - 2 * MARGIN);
  const y = (value) => (high === low ? HEIGHT / 2 : HEIGHT - MARGIN - ((value - low) / (high - low)) * (HEIGHT - 2 * MARGIN));
  const drawing = shape("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": inWords(seconds, usual) });
  if (usual != null) drawing.append(shape("line", { class: "usual", x1: MARGIN, x2: WIDTH - MARGIN, y1: y(usual), y2: y(usual) }));
  drawing.append(shape("polyline", { points: seconds.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
  drawing.append(shape("circle", { cx: x(seconds.length - 1), cy: y(seconds.at(-1)), r: 2.5 }));
  return drawing;
}
