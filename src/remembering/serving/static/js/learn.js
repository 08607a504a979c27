/** The panel that starts learning and shows its progress. */

import { api } from "./api.js";
import { announce, bar, button, h, icon, toast } from "./dom.js";
import { counts, draft, finishSubmitted, obstacle, setName, setTarget, submit, taskName, usedClasses } from "./draft.js";
import { list, percent, plural, sentence, timeLeft } from "./format.js";
import { follow, isActive, onJobEnd, store } from "./store.js";

const ANNOUNCE_EVERY = 0.25;

const learnedNames = () => store.model?.tasks.map((task) => task.name) ?? [];

/** The task that the draft is added to, if it is still there. */
const target = () => (store.model?.can_add && store.model.tasks.find((task) => task.name === draft.target)) || null;

async function start() {
  const into = target();
  const name = into ? into.name : taskName(learnedNames());
  const used = usedClasses();
  const classes = Object.fromEntries(used.map((one) => [one.label.trim(), one.images.map((image) => image.url)]));
  try {
    const job = await (into ? api.add(name, classes) : api.learn(name, classes));
    submit(job.id, name);
    announce(`Learning ${name}.`);
    follow(job);
  } catch (problem) {
    toast(problem.message, { error: true });
  }
}

function form() {
  const name = h("input", {
    class: "field", id: "task-name", maxlength: 80, autocomplete: "off",
    oninput: () => setName(name.value),
  });
  const nameField = h("label", { class: "stack tight" }, h("span", { class: "label" }, "Name of this task"), name);
  const into = h("select", { class: "field wide", onchange: () => setTarget(into.value || null) });
  const intoField = h("label", { class: "stack tight" }, h("span", { class: "label" }, "Learn as"), into);
  const learn = h("button", { class: "button primary large", "aria-describedby": "learn-note" },
    icon("spark"), h("span", {}, "Learn"));
  const summary = h("p", { class: "summary" });
  const note = h("p", { id: "learn-note", class: "muted note" });
  const element = h("form", {
    class: "stack",
    onsubmit: async (event) => {
      event.preventDefault();
      if (learn.disabled) return;
      learn.disabled = true;
      await start();
      update();
    },
  },
    summary,
    intoField, nameField, learn, note);
  function update() {
    const taken = learnedNames();
    const chosen = target();
    const problem = store.model?.read_only ? "This server only answers. Teach the one that writes the model."
      : obstacle(taken, chosen?.classes.map(String));
    const { classes, images, heldOut, noveltyWorks } = counts();
    intoField.hidden = !store.model?.can_add || !taken.length || !(chosen || classes);
    nameField.hidden = chosen !== null;
    into.replaceChildren(h("option", { value: "" }, "A new task"),
      ...taken.map((task) => h("option", { value: task }, `Part of “${task}”`)));
    into.value = chosen?.name ?? "";
    if (document.activeElement !== name) name.value = draft.name;
    name.placeholder = taskName([...taken]) || "Named after its classes";
    learn.disabled = problem !== null;
    summary.textContent = images ? `${plural(classes, "class", "classes")}, ${plural(images, "picture")}` : "Nothing to learn yet";
    if (problem) note.textContent = problem;
    else if (chosen) note.textContent = "New names become classes of this task. Known names get more pictures.";
    else if (!noveltyWorks) note.textContent = "This is enough to learn. With about 25 pictures in all I can also tell when something is new.";
    else note.textContent = `${plural(heldOut, "picture")} will be held out to measure how well I remember.`;
  }
  return { element, update };
}

function progress() {
  const fill = bar(0, { class: "bar thick" });
  const track = h("div", {
    role: "progressbar", "aria-label": "Learning progress", "aria-valuemin": 0, "aria-valuemax": 100,
  }, fill);
  const title = h("h2", {});
  const message = h("p", { class: "muted note" });
  const left = h("p", { class: "time" });
  const cancel = button("Cancel", async () => {
    cancel.disabled = true;
    try {
      await api.cancel(store.job.id);
    } catch (problem) {
      toast(problem.message, { error: true });
    }
  });
  let announced = 0;
  const element = h("div", { class: "stack" }, title, track, h("div", {}, left, message), cancel,
    h("p", { class: "muted note" }, "You can prepare the next task or ask me something meanwhile."));
  function update(job) {
    const share = job.progress ?? 0;
    title.textContent = job.task ? `${job.kind === "add" ? "Adding to" : "Learning"} “${job.task}”` : "Learning";
    fill.firstChild.style.setProperty("--share", String(share));
    track.setAttribute("aria-valuenow", String(Math.round(share * 100)));
    left.textContent = [percent(share), timeLeft(job.seconds_left)].filter(Boolean).join(", ");
    message.textContent = job.status === "queued" ? "Waiting to start." : sentence(job.message ?? "");
    if (share < announced) announced = 0;
    if (share >= announced + ANNOUNCE_EVERY) {
      announced = share;
      announce(`${percent(share)} learned, ${timeLeft(job.seconds_left)}`);
    }
    if (!isActive(job)) cancel.disabled = false;
  }
  return { element, update };
}

function doneMessage(task, kind) {
  const accuracy = task.accuracy.at(-1)?.accuracy;
  const measured = typeof accuracy === "number" ? ` I name ${percent(accuracy)} of its held-out pictures correctly.` : "";
  const classes = list(task.classes.map(String), 6);
  return `${kind === "add" ? `“${task.name}” is now ${classes}.` : `I learned ${classes}.`}${measured}`;
}

export function learnPanel() {
  const views = { form: form(), progress: progress() };
  const result = h("div", { class: "result", hidden: true });
  const element = h("aside", { class: "card panel", "aria-label": "Learn" }, result, views.form.element, views.progress.element);

  function show(kind, text, ...actions) {
    result.className = `result ${kind}`;
    result.replaceChildren(h("p", {}, kind === "good" && icon("check"), text), h("div", { class: "row" }, actions));
    result.hidden = false;
    announce(text);
  }

  onJobEnd((job) => {
    finishSubmitted(job.id, job.status === "done");
    if (job.status === "failed") show("bad", sentence(job.error || "Learning failed. Nothing was changed."));
    else if (job.status === "cancelled") show("", "Cancelled. Nothing was changed; your pictures are still here.");
    const task = store.model?.tasks.find((one) => one.name === job.task);
    if (job.status !== "done" || !task) return;
    show("good", doneMessage(task, job.kind),
      h("a", { class: "button primary", href: "#ask" }, "Ask me"),
      h("a", { class: "button", href: "#watch" }, "See what I know"));
    if (location.hash !== "#teach") {
      toast(doneMessage(task, job.kind));
    }
  });

  return {
    element,
    update() {
      const active = isActive(store.job);
      if (active) {
        result.hidden = true;
        views.progress.update(store.job);
      }
      if (usedClasses().length && result.classList.contains("good")) result.hidden = true; // The next task has begun.
      views.form.element.hidden = active;
      views.progress.element.hidden = !active;
      views.form.update();
    },
  };
}

/** Finish a task that was submitted before the page was loaded and has ended since. */
export async function checkSubmitted() {
  if (!draft.submitted) return;
  const { job, name } = draft.submitted;
  try {
    const found = await api.job(job);
    if (!isActive(found)) finishSubmitted(job, found.status === "done");
  } catch (problem) {
    if (problem.status === 404) finishSubmitted(job, learnedNames().includes(name));
  }
}
