/** Pictures from files, the clipboard and drops, as data URLs that are small enough to send. */

import { store } from "./store.js";

const MIN_SIDE = 128; // Thumbnails of smaller pictures would look coarse.
const LOSSLESS_SIDE = 128;

/** Pictures are sent at no more than twice the resolution that the backbone reads. */
const maxSide = () => Math.max(MIN_SIDE, 2 * (store.model?.backbone.image_size ?? 0));

/** Draw a source to a data URL that is small enough to send. */
export function toDataUrl(source, width, height, crop = null) {
  const from = crop ?? { x: 0, y: 0, width, height };
  const scale = Math.min(1, maxSide() / Math.max(from.width, from.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(from.width * scale));
  canvas.height = Math.max(1, Math.round(from.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff"; // Transparent pictures are shown on white.
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(source, from.x, from.y, from.width, from.height, 0, 0, canvas.width, canvas.height);
  const lossless = Math.max(canvas.width, canvas.height) <= LOSSLESS_SIDE;
  return canvas.toDataURL(lossless ? "image/png" : "image/jpeg", 0.92);
}

async function decode(file) {
  try {
    return await createImageBitmap(file);
  } catch {
    return null;
  }
}

/** Decode files in order. Returns the pictures and how many files could not be read. */
export async function readFiles(files) {
  const urls = [];
  let unreadable = 0;
  for (const file of files) {
    const bitmap = await decode(file);
    if (bitmap === null) {
      unreadable += 1;
      continue;
    }
    urls.push(toDataUrl(bitmap, bitmap.width, bitmap.height));
    bitmap.close();
  }
  return { urls, unreadable };
}

/** Open the file chooser. Resolves to the chosen files. */
export function chooseFiles({ multiple = true, capture = false } = {}) {
  return new Promise((done) => {
    const input = document.createElement("input");
    input.type = "file";
    input.accept = "image/*";
    input.multiple = multiple;
    if (capture) input.setAttribute("capture", "environment");
    input.addEventListener("change", () => done([...input.files]));
    input.addEventListener("cancel", () => done([]));
    input.click();
  });
}

const readEntries = (reader) => new Promise((done, fail) => { reader.readEntries(done, fail); });
const entryFile = (entry) => new Promise((done, fail) => { entry.file(done, fail); });

async function walk(entry, folder, found) {
  if (entry.isFile) {
    const file = await entryFile(entry);
    if (file.type.startsWith("image/")) found.push({ folder, file });
    return;
  }
  const reader = entry.createReader();
  for (let batch = await readEntries(reader); batch.length; batch = await readEntries(reader)) {
    for (const child of batch) await walk(child, entry.name, found);
  }
}

/** List the dropped files with the name of the folder that holds them (null for single files). */
export async function droppedFiles(transfer) {
  // Entries and files must be taken before the first await: the browser empties the list then.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const taken = items.map((item) => ({ entry: item.webkitGetAsEntry?.(), file: item.getAsFile() }));
  const found = [];
  for (const { entry, file } of taken) {
    if (entry?.isDirectory) await walk(entry, null, found);
    else if (file) found.push({ folder: null, file });
  }
  return found;
}

export const hasFiles = (transfer) => [...(transfer?.types ?? [])].includes("Files");
