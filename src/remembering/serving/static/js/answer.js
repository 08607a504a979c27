/** How a prediction is shown. */

import { bar, button, h } from "./dom.js";
import { pValue, percent } from "./format.js";
import { store } from "./store.js";

const TOP = 5;

export function emptyAnswer(title = "What is it?", text = "Draw a digit or show me a picture. My answer appears here.") {
  return h("div", { class: "empty-answer" }, h("p", { class: "big muted" }, title), h("p", { class: "muted" }, text));
}

function shares(title, rows, color) {
  return h("section", { class: "shares" },
    h("h3", {}, title),
    h("ul", {}, rows.map(({ name, probability }) => h("li", {},
      h("span", { class: "name" }, String(name)),
      bar(probability, { class: `bar ${color(name)}` }),
      h("span", { class: "number" }, percent(probability))))));
}

/** The answer in one sentence, for screen readers. */
export function spokenAnswer({ label, probability, task, unknown }) {
  return unknown
    ? `New to me. The closest thing I know is ${label}. Teach me?`
    : `${label}, ${percent(probability)} sure. Task ${task}.`;
}

/** CSS class of the colour of a task: the same on every page. */
export function taskColor(name) {
  const position = store.model?.tasks.findIndex((task) => task.name === name) ?? -1;
  return position < 0 ? "" : `color-${position % 8}`;
}

/** The nodes that show one prediction. `onteach` starts a new class with the picture. */
export function answer(prediction, version, onteach) {
  const { label, probability, top, task, tasks, adapter, p_value: p, unknown } = prediction;
  const hasP = typeof p === "number";
  const verdict = unknown
    ? h("div", { class: "verdict new" },
      h("p", { class: "big" }, "New to me. Teach me?"),
      h("p", {}, `The closest thing I know is “${label}”.`),
      hasP && h("p", { class: "muted" }, pValue(p, true)),
      button("Teach me this", onteach, { kind: "primary", image: "teach" }))
    : h("div", { class: "verdict" },
      h("p", { class: "label-line" }, h("span", { class: "label-big" }, String(label)), h("span", { class: "sure" }, `${percent(probability)} sure`)),
      hasP && h("p", { class: "muted" }, pValue(p, false)));
  const familiar = [...tasks].sort((a, b) => b.probability - a.probability).slice(0, TOP);
  return [
    verdict,
    shares(unknown ? "If it were something I know" : "Answer", top.slice(0, TOP).map((row) => ({ name: row.label, probability: row.probability })), () => taskColor(task)),
    familiar.length > 1 && shares(unknown ? "Closest task" : "Familiarity of each task", familiar, taskColor),
    h("p", { class: "provenance muted" }, `Answered by adapter ${adapter} (task “${task}”), model version ${version}.`),
    !unknown && h("p", { class: "provenance" }, button("Not right? Teach me", onteach, { kind: "link" })),
  ].filter(Boolean);
}
