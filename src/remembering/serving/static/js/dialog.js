/** Modal dialogs: confirm, ask for a text, or show a body of one's own. */

import { button, h, iconButton } from "./dom.js";

let counter = 0;

/**
 * Open a modal dialog and resolve when it closes.
 *
 * `build(close)` returns the body; `close(value)` closes the dialog and resolves to `value`.
 * Escape and the close button resolve to null.
 */
export function openDialog(title, build, { wide = false, onclose } = {}) {
  return new Promise((done) => {
    const id = `dialog-${counter += 1}`;
    let result = null;
    const close = (value = null) => {
      result = value;
      dialog.close();
    };
    const dialog = h("dialog", { "aria-labelledby": id, class: wide ? "wide" : "" },
      h("header", {}, h("h2", { id }, title), iconButton("close", "Close", () => close())),
      build(close));
    dialog.addEventListener("close", () => {
      dialog.remove();
      onclose?.();
      done(result);
    });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) close();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Ask whether to go on. Resolves to true or false. */
export async function confirm(title, text, action) {
  const answer = await openDialog(title, (close) => h("div", { class: "dialog-body" },
    h("p", {}, text),
    h("div", { class: "dialog-actions" },
      button("Cancel", () => close(), { kind: "quiet", autofocus: true }),
      button(action, () => close(true), { kind: "danger" }))));
  return answer === true;
}

/** Ask for a text. Resolves to the trimmed text, or null if cancelled or left unchanged. */
export function promptText(title, label, value, action, { type = "text", hint } = {}) {
  return openDialog(title, (close) => {
    const input = h("input", {
      type, value, class: "field", maxlength: type === "text" ? 80 : undefined,
      autocomplete: "off", autofocus: true, required: true,
    });
    const submit = (event) => {
      event.preventDefault();
      const text = input.value.trim();
      close(text && text !== value ? text : null);
    };
    return h("form", { class: "dialog-body", onsubmit: submit },
      h("label", { class: "stack" }, h("span", { class: "label" }, label), input),
      hint && h("p", { class: "muted" }, hint),
      h("div", { class: "dialog-actions" },
        button("Cancel", () => close(), { kind: "quiet" }),
        h("button", { class: "button primary" }, action)));
  });
}
