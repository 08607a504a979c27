/** The classes that are being prepared. Kept in the browser, so that a reload loses nothing. */

import { list } from "./format.js";

const DATABASE = "remembering";
const STORE = "draft";
const WRITE_MS = 200;
const HOLD_OUT = 5; // The service holds out every fifth picture of a class.
const NOVELTY_PICTURES = 19; // With fewer, no p-value can be as low as 5 %.

/** `target` is the task that the classes are added to; null for a task of their own. */
export const draft = { classes: [], name: "", target: null, submitted: null };
const listeners = new Set();
let nextId = 1;

function open() {
  return new Promise((done, fail) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error);
  });
}

let database = null;

/** Read the draft of an earlier visit. Browsers without a database start with an empty one. */
export async function restoreDraft() {
  try {
    database = await open();
  } catch {
    return;
  }
  const saved = await new Promise((done) => {
    const request = database.transaction(STORE).objectStore(STORE).get(STORE);
    request.onsuccess = () => done(request.result);
    request.onerror = () => done(undefined);
  });
  if (saved) Object.assign(draft, saved);
  const all = [...draft.classes, ...(draft.submitted?.classes ?? [])];
  nextId = 1 + Math.max(0, ...all.flatMap((one) => [one.id, ...one.images.map((image) => image.id)]));
}

export const onDraftChange = (listener) => listeners.add(listener);

let writing = null;

function write() {
  clearTimeout(writing);
  writing = null;
  database?.transaction(STORE, "readwrite").objectStore(STORE).put(draft, STORE);
}

addEventListener("pagehide", () => {
  if (writing !== null) write();
});

function changed() {
  clearTimeout(writing);
  writing = setTimeout(write, WRITE_MS);
  for (const listener of listeners) listener();
}

export function addClass(label = "", urls = []) {
  const one = { id: nextId++, label, images: [] };
  draft.classes.push(one);
  addImages(one, urls);
  return one;
}

export function addImages(one, urls) {
  one.images.push(...urls.map((url) => ({ id: nextId++, url })));
  changed();
}

export function removeImage(one, id) {
  one.images = one.images.filter((image) => image.id !== id);
  changed();
}

export function removeClass(id) {
  draft.classes = draft.classes.filter((one) => one.id !== id);
  changed();
}

export function setLabel(one, label) {
  one.label = label;
  changed();
}

export function setName(name) {
  draft.name = name;
  changed();
}

export function setTarget(task) {
  draft.target = task;
  changed();
}

/** The classes that would be learned: those that have a name or pictures. */
export const usedClasses = () => draft.classes.filter((one) => one.label.trim() || one.images.length);

/** Name of the task: what the user typed, or the labels, with a number if it is taken. */
export function taskName(taken) {
  if (draft.name.trim()) return draft.name.trim();
  const labels = usedClasses().map((one) => one.label.trim()).filter(Boolean);
  const base = list(labels);
  let name = base;
  for (let n = 2; taken.includes(name); n += 1) name = `${base} (${n})`;
  return name;
}

/**
 * What keeps the draft from being learned, in words; null if nothing does.
 *
 * `known` are the classes of the task that the draft is added to; null for a new task.
 */
export function obstacle(taken, known = null) {
  const used = usedClasses();
  const named = used.map((one) => one.label.trim());
  if (!used.length && known) return "Add a class, or more pictures of one that I know.";
  if (used.length < 2 && !known) return "A new task needs at least two classes.";
  if (named.includes("")) return "Give every class a name.";
  const twice = named.find((label, i) => named.indexOf(label) !== i);
  if (twice !== undefined) return `Two classes are called “${twice}”. Rename one.`;
  const least = (one) => (known?.includes(one.label.trim()) ? 1 : 2);
  const small = used.find((one) => one.images.length < least(one));
  if (small) return `Add at least ${least(small) === 1 ? "one picture" : "two pictures"} of “${small.label.trim()}”.`;
  if (!known && taken.includes(taskName(taken))) return "A task of this name is already learned. Choose another name.";
  return null;
}

export function counts() {
  const sizes = usedClasses().map((one) => one.images.length);
  const heldOut = sizes.map((n) => (n >= 3 ? Math.max(1, Math.floor(n / HOLD_OUT)) : 0));
  const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);
  const images = sum(sizes);
  return { classes: sizes.length, images, heldOut: sum(heldOut), noveltyWorks: images - sum(heldOut) >= NOVELTY_PICTURES };
}

/** Move the classes out of the draft while they are being learned. */
export function submit(job, name) {
  const used = usedClasses();
  draft.submitted = { job, name, classes: used };
  draft.classes = draft.classes.filter((one) => !used.includes(one));
  draft.name = "";
  draft.target = null;
  changed();
}

/** Drop the submitted classes if they were learned; otherwise put them back. */
export function finishSubmitted(job, learned) {
  if (draft.submitted?.job !== job) return;
  if (!learned) draft.classes = [...draft.submitted.classes, ...usedClasses()];
  draft.submitted = null;
  changed();
}
