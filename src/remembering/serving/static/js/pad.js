/** A drawing pad: white strokes on black, as the bundled backbone was trained. */

import { h, icon, iconButton } from "./dom.js";

const SIZE = 280;
const LINE = 20;
const KEY_STEP = 14;
const OUTPUT = 112; // Four times the 28 pixels of the bundled backbone.
const SHARP = { fit: 0.74, line: 0.085 };
const COARSE = { fit: 0.85, line: 0.15 }; // Like the built-in digits, which have 8 x 8 pixels.
const COARSE_SIZE = 8;
const MAX_ZOOM = 2.5;

function trace(context, stroke, map) {
  const points = stroke.map(map);
  context.beginPath();
  context.moveTo(points[0].x, points[0].y);
  if (points.length === 1) context.lineTo(points[0].x + 0.01, points[0].y);
  for (let i = 1; i < points.length - 1; i += 1) {
    const middle = { x: (points[i].x + points[i + 1].x) / 2, y: (points[i].y + points[i + 1].y) / 2 };
    context.quadraticCurveTo(points[i].x, points[i].y, middle.x, middle.y);
  }
  if (points.length > 1) context.lineTo(points.at(-1).x, points.at(-1).y);
  context.stroke();
}

function prepare(context, size, line) {
  context.fillStyle = "#000";
  context.fillRect(0, 0, size, size);
  context.strokeStyle = "#fff";
  context.lineWidth = line;
  context.lineCap = "round";
  context.lineJoin = "round";
}

/** Average square blocks of a canvas of `OUTPUT` pixels. */
function shrink(canvas, size) {
  const block = OUTPUT / size;
  const small = h("canvas", { width: size, height: size });
  const to = small.getContext("2d");
  const pixels = to.createImageData(size, size);
  const from = canvas.getContext("2d").getImageData(0, 0, OUTPUT, OUTPUT).data;
  for (let i = 0; i < size * size; i += 1) {
    const [left, top] = [(i % size) * block, Math.floor(i / size) * block];
    let sum = 0;
    for (let y = top; y < top + block; y += 1) {
      for (let x = left; x < left + block; x += 1) sum += from[4 * (y * OUTPUT + x)];
    }
    pixels.data.set([sum, sum, sum].map((value) => Math.round(value / block ** 2)).concat(255), 4 * i);
  }
  to.putImageData(pixels, 0, 0);
  return small;
}

export class Pad {
  /** `onstroke` is called after each finished stroke and after each change by a button. */
  constructor(onstroke) {
    this.strokes = [];
    this.onstroke = onstroke;
    this.pen = null; // Position of the keyboard pen, shown while the pad has the focus.
    this.penDown = false;
    this.canvas = h("canvas", {
      width: SIZE, height: SIZE, class: "pad", tabindex: "0", role: "application",
      "aria-label": "Drawing pad. Draw with the mouse or a finger. With the keyboard: arrow keys move "
        + "the pen, space lowers and lifts it, backspace removes the last stroke.",
      onpointerdown: (event) => this.#start(event),
      onpointermove: (event) => this.#move(event),
      onpointerup: () => this.#end(),
      onpointercancel: () => this.#end(),
      onkeydown: (event) => this.#key(event),
      onblur: () => this.#hidePen(),
    });
    this.drawing = false;
    this.hint = h("p", { class: "pad-hint", "aria-hidden": "true" }, icon("draw"), "Draw here");
    this.tools = h("div", { class: "pad-tools" },
      iconButton("undo", "Undo stroke", () => this.undo()),
      iconButton("trash", "Clear drawing", () => this.clear()));
    this.element = h("div", { class: "pad-frame" }, this.canvas, this.hint, this.tools);
    this.render();
  }

  get empty() {
    return this.strokes.length === 0;
  }

  clear() {
    this.strokes = [];
    this.drawing = false;
    this.penDown = false;
    this.render();
    this.onstroke();
  }

  undo() {
    this.strokes.pop();
    this.penDown = false;
    this.render();
    this.onstroke();
  }

  render() {
    this.hint.hidden = !this.empty;
    this.tools.hidden = this.empty;
    const context = this.canvas.getContext("2d");
    prepare(context, SIZE, LINE);
    for (const stroke of this.strokes) trace(context, stroke, (point) => point);
    if (this.pen) {
      context.lineWidth = 2;
      context.strokeStyle = this.penDown ? "#5cc8b0" : "#9a9a9a";
      context.beginPath();
      context.arc(this.pen.x, this.pen.y, LINE / 2 + 3, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  /** The drawing, centred and scaled to one size, with a stroke of one width. */
  toDataUrl() {
    return this.#draw(SHARP).toDataURL("image/png");
  }

  /** The drawing at the resolution of the built-in digits. */
  toCoarseDataUrl() {
    return shrink(this.#draw(COARSE), COARSE_SIZE).toDataURL("image/png");
  }

  #draw({ fit, line }) {
    const points = this.strokes.flat();
    const xs = points.map((point) => point.x);
    const ys = points.map((point) => point.y);
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const extent = Math.max(right - left, bottom - top, 1);
    const scale = Math.min((OUTPUT * fit) / extent, (MAX_ZOOM * OUTPUT) / SIZE);
    const canvas = h("canvas", { width: OUTPUT, height: OUTPUT });
    const context = canvas.getContext("2d");
    prepare(context, OUTPUT, OUTPUT * line);
    for (const stroke of this.strokes) {
      trace(context, stroke, ({ x, y }) => ({
        x: OUTPUT / 2 + (x - (left + right) / 2) * scale,
        y: OUTPUT / 2 + (y - (top + bottom) / 2) * scale,
      }));
    }
    return canvas;
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) / box.width) * SIZE,
      y: ((event.clientY - box.top) / box.height) * SIZE,
    };
  }

  #start(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pen = null;
    this.drawing = true;
    this.strokes.push([this.#point(event)]);
    this.render();
  }

  #move(event) {
    if (!this.drawing) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length ? events : [event]) this.strokes.at(-1).push(this.#point(one));
    this.render();
  }

  #end() {
    if (!this.drawing) return;
    this.drawing = false;
    this.onstroke();
  }

  #key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step && event.key !== " " && event.key !== "Backspace") return;
    event.preventDefault();
    if (event.key === "Backspace") {
      this.undo();
      return;
    }
    this.pen ??= { x: SIZE / 2, y: SIZE / 2 };
    if (step) {
      const inside = (value) => Math.min(SIZE - LINE, Math.max(LINE, value));
      this.pen = { x: inside(this.pen.x + step[0] * KEY_STEP), y: inside(this.pen.y + step[1] * KEY_STEP) };
      if (this.penDown) this.strokes.at(-1).push(this.pen);
    } else {
      this.penDown = !this.penDown;
      if (this.penDown) this.strokes.push([this.pen]);
      else this.onstroke();
    }
    this.render();
  }

  #hidePen() {
    this.pen = null;
    if (this.penDown) this.onstroke();
    this.penDown = false;
    this.render();
  }
}
