/** The page: three views, one of them shown, and what they share. */

import { setTokenPrompt } from "./api.js";
import { askView } from "./ask.js";
import { promptText } from "./dialog.js";
import { h, icon, toast } from "./dom.js";
import { restoreDraft, setTarget, usedClasses } from "./draft.js";
import { percent } from "./format.js";
import { hasFiles } from "./images.js";
import { checkSubmitted } from "./learn.js";
import { followRunning, isActive, refresh, store, subscribe } from "./store.js";
import { teachView } from "./teach.js";
import { watchView } from "./watch.js";

const TITLES = { teach: "Teach", ask: "Ask", watch: "Watch" };

setTokenPrompt((wrong) => promptText(
  wrong ? "That token was not accepted" : "Token needed",
  "Token of the server", "", "Continue",
  { type: "password", hint: "It is kept until this tab is closed." }));

let views = null;
let current = null;

const route = () => {
  const name = location.hash.slice(1);
  if (name in TITLES) return name;
  return store.model?.tasks.length ? "ask" : "teach";
};

function navigate({ focus = true } = {}) {
  const name = route();
  if (name === current) return;
  current = name;
  document.getElementById("main").replaceChildren(views[name].element);
  document.title = `${TITLES[name]} · Remembering`;
  for (const tab of document.querySelectorAll("[data-tab]")) {
    if (tab.dataset.tab === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  views[name].update();
  scrollTo(0, 0);
  if (focus) views[name].element.querySelector("h1").focus();
}

function updateStatus() {
  const status = document.getElementById("status");
  if (!isActive(store.job)) status.replaceChildren();
  else status.replaceChildren(h("a", { class: "pill", href: "#teach" }, `Learning ${percent(store.job.progress ?? 0)}`));
}

/** Start a class with these pictures on the Teach page, to be added to a task. */
function teachWith(urls, task) {
  location.hash = "#teach";
  navigate({ focus: false });
  if (!usedClasses().length) setTarget(task);
  views.teach.startWith(urls);
  toast("Name this class and add more pictures of it.");
}

function receiveFiles() {
  let depth = 0;
  const mark = (on) => document.body.classList.toggle("dropping", on);
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event.dataTransfer)) return;
    depth += 1;
    mark(true);
  });
  addEventListener("dragleave", (event) => {
    if (!hasFiles(event.dataTransfer)) return;
    depth = Math.max(0, depth - 1);
    mark(depth > 0);
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault(); // The browser would leave the page and open the file.
    depth = 0;
    mark(false);
    if (!document.querySelector("dialog[open]")) views[current].drop?.(event.dataTransfer, event.target);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    views[current].paste?.(files);
  });
}

function addTabIcons() {
  for (const tab of document.querySelectorAll("[data-tab]")) tab.prepend(icon(tab.dataset.tab));
}

async function start() {
  addTabIcons();
  await restoreDraft();
  try {
    await refresh();
    if (!await followRunning()) await checkSubmitted();
  } catch (problem) {
    toast(problem.message, { error: true, action: { text: "Try again", run: () => location.reload() } });
  }
  views = { teach: teachView(), ask: askView({ onteach: teachWith }), watch: watchView({ onadd: (task) => teachWith([], task) }) };
  subscribe(() => {
    updateStatus();
    views[current].update();
  });
  receiveFiles();
  navigate({ focus: false });
  updateStatus();
  addEventListener("hashchange", () => {
    navigate();
    refresh().catch((problem) => toast(problem.message, { error: true }));
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh().catch(() => undefined); // The next action reports it.
  });
}

start();
