/** Teach: collect pictures of classes and have them learned as one task. */

import { canPhotograph, chooseSamples, drawPictures, loadSamples, photograph } from "./capture.js";
import { announce, button, h, icon, iconButton, toast } from "./dom.js";
import { addClass, addImages, draft, onDraftChange, removeClass, removeImage, setLabel } from "./draft.js";
import { plural } from "./format.js";
import { chooseFiles, droppedFiles, readFiles } from "./images.js";
import { learnPanel } from "./learn.js";

function reportUnreadable(count) {
  if (count) toast(`${plural(count, "file")} could not be read as a picture.`, { error: true });
}

async function addFiles(one, files) {
  const { urls, unreadable } = await readFiles(files);
  reportUnreadable(unreadable);
  if (!urls.length) return;
  addImages(one, urls);
  announce(`${plural(urls.length, "picture")} added to ${one.label || "the class"}.`);
}

function thumbnails(one, grid) {
  const present = new Map([...grid.children].map((item) => [Number(item.dataset.image), item]));
  const wanted = new Set(one.images.map((image) => image.id));
  for (const [id, item] of present) if (!wanted.has(id)) item.remove();
  for (const [i, image] of one.images.entries()) {
    let item = present.get(image.id);
    if (!item) {
      const remove = () => {
        const next = item.nextElementSibling ?? item.previousElementSibling;
        removeImage(one, image.id);
        next?.querySelector("button").focus();
      };
      item = h("li", { "data-image": image.id },
        h("button", { type: "button", class: "thumbnail", onclick: remove },
          h("img", { src: image.url, alt: "" }), icon("close")));
      grid.append(item);
    }
    const label = `Remove picture ${i + 1} of ${one.label || "this class"}`;
    item.firstChild.setAttribute("aria-label", label);
    item.firstChild.title = "Remove this picture";
  }
}

/** A card for one class. It is built once and updated in place, so that the focus stays. */
function classCard(one, { onactive, onremove }) {
  const name = h("input", {
    class: "class-name", value: one.label, maxlength: 80, placeholder: "Name this class",
    "aria-label": "Class name", autocomplete: "off", spellcheck: "false",
    oninput: () => setLabel(one, name.value),
  });
  const count = h("span", { class: "count muted" });
  const grid = h("ul", { class: "thumbnails" });
  const hint = h("p", { class: "drop-hint muted" }, "Drop or paste pictures here, or");
  const add = (url) => addImages(one, [url]);
  const title = () => (one.label ? `Pictures of “${one.label}”` : "Pictures of this class");
  const card = h("article", {
    class: "card class-card", "data-class": one.id,
    onfocusin: onactive, onpointerdown: onactive,
  },
    h("header", {}, name, count, iconButton("trash", "Remove this class", onremove)),
    grid, hint,
    h("div", { class: "sources" },
      button("Files", async () => addFiles(one, await chooseFiles()), { image: "upload" }),
      canPhotograph() && button("Camera", () => photograph(title(), add), { image: "camera" }),
      button("Draw", () => drawPictures(title(), add), { image: "draw" })));
  const update = () => {
    count.textContent = one.images.length ? plural(one.images.length, "picture") : "";
    hint.hidden = one.images.length > 0;
    grid.hidden = one.images.length === 0;
    card.setAttribute("aria-label", one.label ? `Class ${one.label}` : "Class without a name");
    thumbnails(one, grid);
  };
  update();
  return { element: card, name, update };
}

export function teachView() {
  const cards = new Map();
  let active = null;
  const list = h("div", { class: "class-list" });

  function focusName(one) {
    cards.get(one.id)?.name.focus();
  }

  function newClass(urls = []) {
    const one = addClass("", urls);
    active = one;
    focusName(one);
    return one;
  }

  async function addSamples() {
    try {
      const chosen = await chooseSamples();
      if (!chosen) return;
      samplesButton.disabled = true;
      samplesButton.lastChild.textContent = "Loading pictures…";
      const classes = await loadSamples(chosen);
      for (const { label, urls } of classes) addClass(label, urls);
      announce(`${plural(classes.length, "class", "classes")} added.`);
    } catch (problem) {
      toast(problem.message, { error: true });
    } finally {
      samplesButton.disabled = false;
      samplesButton.lastChild.textContent = "Built-in pictures";
    }
  }

  function removeWithUndo(one) {
    removeClass(one.id);
    if (!one.images.length) return;
    toast(`Removed ${one.label ? `“${one.label}”` : "a class"}.`,
      { action: { text: "Put back", run: () => addClass(one.label, one.images.map((image) => image.url)) } });
  }

  const samplesButton = button("Built-in pictures", addSamples, { image: "grid", kind: "quiet" });
  const addButton = button("Add a class", () => newClass(), { image: "plus" });
  const addTile = h("div", { class: "add-tile" },
    h("div", { class: "welcome" },
      h("h2", {}, "Show me two things or more"),
      h("p", { class: "muted" }, "Add a class for each and a few pictures of it, or drop a folder of pictures per class. The built-in digits and letters work right away.")),
    addButton,
    samplesButton);

  function update() {
    const ids = new Set(draft.classes.map((one) => one.id));
    for (const [id, card] of cards) {
      if (ids.has(id)) continue;
      card.element.remove();
      cards.delete(id);
    }
    for (const one of draft.classes) {
      if (!cards.has(one.id)) {
        const card = classCard(one, { onactive: () => { active = one; }, onremove: () => removeWithUndo(one) });
        cards.set(one.id, card);
        addTile.before(card.element);
      }
      cards.get(one.id).update();
    }
    list.classList.toggle("empty", draft.classes.length === 0);
    addButton.classList.toggle("primary", draft.classes.length === 0);
  }

  const panel = learnPanel();
  const element = h("section", { class: "page", "aria-labelledby": "teach-title" },
    h("h1", { id: "teach-title", tabindex: "-1" }, "Teach me"),
    h("p", { class: "lead" }, "Name a few things and show me pictures of each. What I learned before stays."),
    h("div", { class: "columns" }, list, panel.element));
  list.append(addTile);
  onDraftChange(() => {
    update();
    panel.update();
  });
  update();
  panel.update();

  /** The class that pasted pictures go to: the last used one, or the first that is still empty. */
  const pasteTarget = () => draft.classes.find((one) => one === active)
    ?? draft.classes.find((one) => !one.images.length) ?? newClass();

  return {
    element,
    update: panel.update,
    paste: (files) => addFiles(pasteTarget(), files),
    /** Pictures go to the card under the pointer; each folder becomes a class of its own. */
    async drop(transfer, target) {
      const id = Number(target.closest?.("[data-class]")?.dataset.class);
      const files = await droppedFiles(transfer);
      const single = files.filter((item) => item.folder === null).map((item) => item.file);
      if (single.length) await addFiles(draft.classes.find((one) => one.id === id) ?? newClass(), single);
      for (const folder of new Set(files.map((item) => item.folder).filter((name) => name !== null))) {
        const inside = files.filter((item) => item.folder === folder).map((item) => item.file);
        await addFiles(draft.classes.find((one) => one.label === folder) ?? addClass(folder), inside);
      }
    },
    /** Start a class with these pictures, to be named. */
    startWith: (urls) => newClass(urls),
  };
}
