/** Ask: draw or show a picture and see the answer. */

import { answer, emptyAnswer, spokenAnswer } from "./answer.js";
import { api } from "./api.js";
import { canPhotograph, photograph } from "./capture.js";
import { announce, button, h, iconButton, toast } from "./dom.js";
import { plural } from "./format.js";
import { chooseFiles, droppedFiles, readFiles } from "./images.js";
import { Pad } from "./pad.js";
import { store } from "./store.js";

const ASK_AFTER_MS = 350;
const MAX_PICTURES = 32;

export function askView({ onteach }) {
  let pictures = []; // [{url, prediction, version}]; empty while drawing
  let selected = 0;
  let timer = null;
  let latest = 0; // Number of the latest question; answers to earlier ones are dropped.

  const pad = new Pad(() => {
    clearTimeout(timer);
    latest += 1;
    if (pad.empty) showInvitation();
    else timer = setTimeout(askDrawing, ASK_AFTER_MS);
  });

  const shown = h("img", { class: "picture", alt: "The picture you asked about" });
  const strip = h("ul", { class: "strip", "aria-label": "Pictures" });
  const looking = h("div", { class: "stack", hidden: true },
    h("div", { class: "pad-frame" }, shown, h("div", { class: "pad-tools" }, iconButton("draw", "Draw instead", () => showPad()))),
    strip);

  const result = h("div", { class: "card answer", "aria-busy": "false" }, emptyAnswer());

  function showInvitation() {
    result.setAttribute("aria-busy", "false");
    result.replaceChildren(emptyAnswer());
  }

  function showPad() {
    pictures = [];
    looking.hidden = true;
    pad.element.hidden = false;
    pad.clear();
    pad.canvas.focus();
  }

  function renderStrip() {
    strip.hidden = pictures.length < 2;
    strip.replaceChildren(...pictures.map(({ url, prediction }, i) => {
      const said = prediction && (prediction.unknown ? "new" : String(prediction.label));
      return h("li", {}, h("button", {
        type: "button", class: "strip-item", "aria-pressed": String(i === selected),
        "aria-label": `Picture ${i + 1}${said ? `: ${said}` : ""}`,
        onclick: () => select(i),
      }, h("img", { src: url, alt: "" }), said && h("span", {}, said)));
    }));
  }

  function select(i) {
    selected = i;
    shown.src = pictures[i].url;
    renderStrip();
    if (pictures[i].prediction) showAnswer(pictures[i]);
  }

  function showAnswer({ url, prediction, version }) {
    result.replaceChildren(...answer(prediction, version, () => onteach([url], prediction.task)));
    announce(spokenAnswer(prediction));
  }

  /** Built-in digits are coarse, drawings are not: the rendition that is more familiar counts. */
  async function askDrawing() {
    const url = pad.toDataUrl();
    await ask([url, pad.toCoarseDataUrl()], (answered) => {
      const familiar = answered.reduce((best, one) => (one.prediction.p_value > best.prediction.p_value ? one : best));
      return [{ ...familiar, url }];
    });
  }

  async function ask(urls, choose = (answered) => answered) {
    const question = latest += 1;
    result.setAttribute("aria-busy", "true");
    try {
      const { predictions, version } = await api.predict(urls);
      if (question !== latest) return;
      const answered = choose(urls.map((url, i) => ({ url, version, prediction: predictions[i] })));
      if (pictures.length) {
        pictures = answered;
        renderStrip();
      }
      showAnswer(answered[pictures.length ? selected : 0]);
    } catch (problem) {
      if (question === latest) result.replaceChildren(emptyAnswer("I could not look at this.", problem.message));
    } finally {
      if (question === latest) result.setAttribute("aria-busy", "false");
    }
  }

  function show(urls) {
    if (!urls.length) return;
    pictures = urls.slice(0, MAX_PICTURES).map((url) => ({ url }));
    if (urls.length > MAX_PICTURES) toast(`Showing the first ${MAX_PICTURES} of ${urls.length} pictures.`);
    pad.element.hidden = true;
    looking.hidden = false;
    result.replaceChildren(emptyAnswer("Looking…"));
    select(0);
    ask(pictures.map((picture) => picture.url));
  }

  async function showFiles(files) {
    if (!files.length) return;
    const { urls, unreadable } = await readFiles(files);
    if (unreadable) toast(`${plural(unreadable, "file")} could not be read as a picture.`, { error: true });
    show(urls);
  }

  const content = h("div", { class: "columns ask" },
    h("div", { class: "card question" }, pad.element, looking),
    h("div", { class: "more" },
      h("div", { class: "sources" },
        button("Choose pictures", async () => showFiles(await chooseFiles()), { image: "upload" }),
        canPhotograph() && button("Camera", () => photograph("Take a picture", (url) => show([url])), { image: "camera" })),
      h("p", { class: "muted note" }, "Or drop or paste a picture anywhere on this page.")),
    result);
  const empty = h("div", { class: "card empty-state", hidden: true },
    h("h2", {}, "I have not learned anything yet"),
    h("p", { class: "muted" }, "Show me pictures of two or more things first. Built-in digits and letters are ready to use."),
    h("a", { class: "button primary", href: "#teach" }, "Teach me something"));

  return {
    element: h("section", { class: "page", "aria-labelledby": "ask-title" },
      h("h1", { id: "ask-title", tabindex: "-1" }, "Ask me"),
      h("p", { class: "lead" }, "Show me something. I find out by myself which task it belongs to."),
      empty, content),
    update() {
      const nothing = store.model !== null && store.model.tasks.length === 0;
      empty.hidden = !nothing;
      content.hidden = nothing;
    },
    paste: showFiles,
    async drop(transfer) {
      await showFiles((await droppedFiles(transfer)).map((item) => item.file));
    },
  };
}
