/** Watch: what the model knows, how well it remembers, and what it keeps. */

import { taskColor } from "./answer.js";
import { api } from "./api.js";
import { confirm, promptText } from "./dialog.js";
import { announce, button, h, icon, iconButton, toast } from "./dom.js";
import { bytes, list, percent, plural } from "./format.js";
import { scale, sparkline } from "./sparkline.js";
import { isActive, refresh, store } from "./store.js";

async function change(action, done) {
  try {
    await action();
    await refresh();
    toast(done);
  } catch (problem) {
    toast(problem.message, { error: true });
  }
}

async function undo() {
  await change(api.undo, "The last change was undone.");
}

async function renameTask(task) {
  const name = await promptText("Rename task", "New name", task.name, "Rename");
  if (name) await change(() => api.renameTask(task.name, name), `Renamed to “${name}”.`);
}

async function renameClass(task, label) {
  const name = await promptText("Rename class", `New name for “${label}”`, String(label), "Rename");
  if (name) await change(() => api.renameClass(task.name, label, name), `Renamed to “${name}”.`);
}

async function forget(task) {
  const text = `I will no longer recognise ${list(task.classes.map(String), 6)}. The other tasks answer as before. You can undo this.`;
  if (!await confirm(`Forget “${task.name}”?`, text, "Forget")) return;
  await change(() => api.forget(task.name), `Forgot “${task.name}”.`);
}

async function download() {
  announce("Preparing the download.");
  try {
    const url = URL.createObjectURL(await api.download());
    h("a", { href: url, download: `${store.model.name || "model"}.zip` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  } catch (problem) {
    toast(problem.message, { error: true });
  }
}

function memoryOf(task) {
  const values = task.accuracy.map((point) => point.accuracy).filter((value) => value !== null);
  if (!values.length) return { now: "–", note: "not measured: too few pictures" };
  const points = Math.round((values.at(-1) - values[0]) * 100);
  const note = values.length === 1 ? "just learned" : points < 0 ? `${plural(-points, "point")} lower than when learned`
    : points > 0 ? `${plural(points, "point")} higher than when learned` : "as when it was learned";
  return { now: percent(values.at(-1)), note };
}

function taskRow(task, axis, onadd) {
  const { now, note } = memoryOf(task);
  const color = taskColor(task.name);
  const fixed = store.model.read_only;
  return h("li", { class: "task" },
    h("div", { class: "task-head" },
      h("h3", {}, h("span", { class: `dot ${color}`, "aria-hidden": "true" }), h("span", {}, task.name)),
      h("p", { class: "muted" }, `${plural(task.images, "picture")}, adapter ${task.adapter}`),
      h("ul", { class: "chips", "aria-label": "Classes" }, task.classes.map((label) => h("li", {},
        h("button", { type: "button", class: "chip", title: "Rename this class", "aria-label": `Rename class ${label}`, disabled: fixed, onclick: () => renameClass(task, label) }, String(label)))),
        !fixed && store.model.can_add && h("li", {},
          h("button", { type: "button", class: "chip add", title: "Add a class", "aria-label": `Add a class to ${task.name}`, onclick: () => onadd(task.name) }, icon("plus"))))),
    h("div", { class: "task-chart" }, sparkline(task, axis, color)),
    h("p", { class: "task-now" }, h("strong", {}, now), h("span", { class: "muted" }, note)),
    h("div", { class: "row task-actions" },
      iconButton("draw", `Rename task ${task.name}`, () => renameTask(task), { disabled: fixed }),
      iconButton("trash", `Forget task ${task.name}`, () => forget(task), { disabled: fixed })));
}

function stat(value, name) {
  return h("div", { class: "stat" }, h("dd", {}, value), h("dt", {}, name));
}

function adapterCard({ number, tasks }) {
  return h("li", { class: "adapter" },
    h("h3", {}, `Adapter ${number}`),
    h("ul", {}, tasks.map((name) => h("li", {}, h("span", { class: `dot ${taskColor(name)}`, "aria-hidden": "true" }), h("span", {}, name)))),
    tasks.length > 1 && h("p", { class: "muted" }, `Shared by ${plural(tasks.length, "task")}`));
}

function kept({ adapters, heads, routers, replay_bytes: replay, bytes: total }) {
  const row = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const numbers = (count) => plural(count, "parameter");
  return h("dl", { class: "kept" },
    row("Adapters", numbers(adapters)), heads > 0 && row("Heads", numbers(heads)), row("Routers", numbers(routers)),
    replay > 0 && row("Replay pictures", bytes(replay)), row("Stored in all", bytes(total)));
}

function content(model, onadd) {
  const axis = scale(model.tasks);
  const limit = model.capacity ? `, at most ${model.capacity}` : "";
  return [
    h("dl", { class: "stats" },
      stat(String(model.tasks.length), model.tasks.length === 1 ? "task" : "tasks"),
      stat(String(model.classes.length), model.classes.length === 1 ? "class" : "classes"),
      stat(String(model.adapters.length), (model.adapters.length === 1 ? "adapter" : "adapters") + limit),
      stat(bytes(model.footprint.bytes), "kept")),
    h("section", { class: "card", "aria-labelledby": "memory-title" },
      h("h2", { id: "memory-title" }, "What I remember"),
      h("p", { class: "muted" }, "Accuracy on held-out pictures of each task, measured again after every step."),
      h("ol", { class: "tasks" }, model.tasks.map((task) => taskRow(task, axis, onadd)))),
    h("div", { class: "columns even" },
      h("section", { class: "card", "aria-labelledby": "adapters-title" },
        h("h2", { id: "adapters-title" }, "Adapters"),
        h("p", { class: "muted" }, model.capacity
          ? "Beyond the limit, tasks share an adapter." : "Each is a small set of trained weights that answers for its tasks."),
        h("ul", { class: "adapters" }, model.adapters.map(adapterCard))),
      h("section", { class: "card", "aria-labelledby": "kept-title" },
        h("h2", { id: "kept-title" }, "What is kept"),
        h("p", { class: "muted" }, `Beside the frozen backbone “${model.backbone.name}”, ${model.backbone.image_size} px.`),
        kept(model.footprint))),
  ];
}

export function watchView({ onadd }) {
  const undoButton = button("Undo change", undo, { image: "undo", title: "Undo the last change" });
  const downloadButton = button("Download", download, { image: "download", title: "Download the model" });
  const empty = h("div", { class: "card empty-state" },
    h("h2", {}, "Nothing to watch yet"),
    h("p", { class: "muted" }, "After the first task you see here what I know and whether I still know it."),
    h("a", { class: "button primary", href: "#teach" }, "Teach me something"));
  const title = h("h1", { id: "watch-title", tabindex: "-1" }, "Watch me remember");
  const body = h("div", { class: "stack wide-gap" });
  let shown = null;
  return {
    element: h("section", { class: "page", "aria-labelledby": "watch-title" },
      h("div", { class: "title-row" },
        title,
        h("div", { class: "row" }, undoButton, downloadButton)),
      body),
    update() {
      const { model } = store;
      if (!model) return;
      undoButton.disabled = !model.can_undo || model.read_only || isActive(store.job);
      downloadButton.disabled = model.tasks.length === 0;
      const state = JSON.stringify(model);
      if (state === shown) return;
      shown = state;
      const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
      body.replaceChildren(...(model.tasks.length ? content(model, onadd) : [empty]));
      if (focused === null) return;
      const again = [...body.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused);
      (again ?? title).focus();
    },
  };
}
