/** A small line chart: accuracy of one task after each step. */

import { svg } from "./dom.js";
import { percent } from "./format.js";

const WIDTH = 300;
const HEIGHT = 54;
const PAD = 6;
const AXIS = 42; // Width of the labels on the right.

/** The steps at which any task was measured, and the lowest accuracy that must be shown. */
export function scale(tasks) {
  const points = tasks.flatMap((task) => task.accuracy);
  const measured = points.map((point) => point.accuracy).filter((value) => value !== null);
  const lowest = Math.min(1, ...measured);
  return {
    versions: [...new Set(points.map((point) => point.version))].sort((a, b) => a - b),
    floor: Math.max(0, Math.min(0.5, Math.floor(lowest * 10 - 0.5) / 10)),
  };
}

/** Draw the curve of a task. `scale` is shared by all tasks, so that steps are aligned. */
export function sparkline(task, { versions, floor }, color) {
  const points = task.accuracy.filter((point) => point.accuracy !== null);
  const step = versions.length > 1 ? (WIDTH - AXIS - 2 * PAD) / (versions.length - 1) : 0;
  const x = (version) => PAD + versions.indexOf(version) * step;
  const y = (value) => PAD + (1 - (value - floor) / (1 - floor)) * (HEIGHT - 2 * PAD);
  const spots = points.map(({ version, accuracy }) => ({ x: x(version), y: y(accuracy), version, accuracy }));
  const values = points.map((point) => percent(point.accuracy)).join(", ");
  const label = points.length ? `Accuracy of ${task.name} after each step: ${values}` : `Accuracy of ${task.name} was not measured`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: `sparkline ${color}`, role: "img", "aria-label": label },
    [1, (1 + floor) / 2, floor].map((value) => svg("line", { class: "grid", x1: 0, x2: WIDTH - AXIS, y1: y(value), y2: y(value) })),
    [1, floor].map((value) => svg("text", { x: WIDTH - 1, y: y(value) + 3.5, "text-anchor": "end" }, percent(value))),
    spots.length > 1 && svg("polyline", { class: "curve", points: spots.map((spot) => `${spot.x},${spot.y}`).join(" ") }),
    spots.map((spot, i) => svg("circle", { class: "spot", cx: spot.x, cy: spot.y, r: i === spots.length - 1 ? 4 : 2.5 },
      svg("title", {}, `Version ${spot.version}: ${percent(spot.accuracy)}`))));
}
