/** Dialogs that add pictures: camera, drawing pad and built-in sets. */

import { api } from "./api.js";
import { openDialog } from "./dialog.js";
import { announce, button, h, toast } from "./dom.js";
import { plural } from "./format.js";
import { chooseFiles, readFiles, toDataUrl } from "./images.js";
import { Pad } from "./pad.js";

const BURST_MS = 200;
const COUNTS = [10, 20, 50];

const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);
const isTouch = () => matchMedia("(pointer: coarse)").matches;

/** Whether a camera button makes sense here; phones can take a picture even without a live view. */
export const canPhotograph = () => hasCamera() || isTouch();

async function photographWithSystemCamera(onpicture) {
  const { urls } = await readFiles(await chooseFiles({ capture: true }));
  urls.forEach(onpicture);
}

const REASONS = {
  NotAllowedError: "The browser does not allow this page to use the camera. Allow it in the address bar, or choose picture files instead.",
  NotFoundError: "No camera was found. Choose picture files instead.",
  NotReadableError: "Another program is using the camera. Close it and try again.",
};

/** Take pictures with the camera; `onpicture` receives each as a data URL. */
export async function photograph(title, onpicture) {
  if (!hasCamera()) return photographWithSystemCamera(onpicture);
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    toast(REASONS[error.name] ?? "The camera cannot be used. Choose picture files instead.", { error: true });
    return undefined;
  }
  const video = h("video", { autoplay: true, playsinline: true, muted: true, class: "viewfinder", "aria-label": "Camera picture" });
  video.srcObject = stream;
  let taken = 0;
  let timer = null;
  const counter = h("p", { class: "muted" }, "Hold the button to take several.");
  const shoot = () => {
    const side = Math.min(video.videoWidth, video.videoHeight);
    if (!side) return;
    const crop = { x: (video.videoWidth - side) / 2, y: (video.videoHeight - side) / 2, width: side, height: side };
    onpicture(toDataUrl(video, side, side, crop));
    taken += 1;
    counter.textContent = `${plural(taken, "picture")} taken.`;
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
  };
  const start = () => {
    shoot();
    stop();
    timer = setInterval(shoot, BURST_MS);
  };
  await openDialog(title, (close) => h("div", { class: "dialog-body" },
    video, counter,
    h("div", { class: "dialog-actions" },
      button("Done", () => close(), { kind: "quiet" }),
      button("Take picture", (event) => { if (event.detail === 0) shoot(); }, {
        kind: "primary", image: "camera", autofocus: true,
        onpointerdown: start, onpointerup: stop, onpointerleave: stop, onpointercancel: stop,
      }))), {
    onclose: () => {
      stop();
      for (const track of stream.getTracks()) track.stop();
      announce(`${plural(taken, "picture")} taken.`);
    },
  });
  return undefined;
}

/** Draw pictures one after the other; `onpicture` receives each as a data URL. */
export function drawPictures(title, onpicture) {
  let added = 0;
  return openDialog(title, (close) => {
    const pad = new Pad(() => { add.disabled = pad.empty; });
    const counter = h("p", { class: "muted", "aria-live": "polite" }, "Draw it a little differently each time.");
    const add = button("Add drawing", () => {
      onpicture(pad.toDataUrl());
      added += 1;
      counter.textContent = `${plural(added, "drawing")} added.`;
      pad.clear();
    }, { kind: "primary", image: "plus", disabled: true });
    return h("div", { class: "dialog-body" },
      pad.element, counter,
      h("div", { class: "dialog-actions" }, button("Done", () => close(), { kind: "quiet" }), add));
  });
}

function setPicker(set, chosen, update) {
  const chips = set.labels.map((label) => {
    const key = JSON.stringify([set.name, label]);
    return h("button", {
      type: "button", class: "chip toggle", "aria-pressed": "false",
      onclick: (event) => {
        const on = !chosen.delete(key);
        if (on) chosen.set(key, { set: set.name, label: String(label) });
        event.currentTarget.setAttribute("aria-pressed", String(on));
        update();
      },
    }, String(label));
  });
  const name = set.name[0].toUpperCase() + set.name.slice(1);
  return h("fieldset", { class: "set" }, h("legend", {}, name), h("div", { class: "chips" }, chips));
}

/** Choose classes from the built-in sets. Resolves to {classes: [{set, label}], count}, or null. */
export async function chooseSamples() {
  const sets = await api.samples();
  const chosen = new Map();
  return openDialog("Built-in pictures", (close) => {
    const add = button("Add classes", () => close({ classes: [...chosen.values()], count: Number(count.value) }), { kind: "primary" });
    const update = () => {
      add.disabled = chosen.size === 0;
      add.lastChild.textContent = chosen.size ? `Add ${plural(chosen.size, "class", "classes")}` : "Add classes";
    };
    const count = h("select", { class: "field" }, COUNTS.map((n) => h("option", { value: n, selected: n === 20 }, String(n))));
    update();
    return h("div", { class: "dialog-body" },
      h("p", { class: "muted" }, "Teach a few classes now and more later. A new task needs at least two."),
      sets.map((set) => setPicker(set, chosen, update)),
      h("label", { class: "row" }, h("span", { class: "label" }, "Pictures of each"), count),
      h("div", { class: "dialog-actions" }, button("Cancel", () => close(), { kind: "quiet" }), add));
  }, { wide: true });
}

/** Load the pictures of the chosen classes. Resolves to [{label, urls}]. */
export function loadSamples({ classes, count }) {
  return Promise.all(classes.map(async ({ set, label }) => (
    { label, urls: await api.sample(set, label, count) })));
}
