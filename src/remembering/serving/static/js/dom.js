/** Elements without markup strings: every text goes through text nodes, so nothing needs escaping. */

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  teach: "M4 7h16M4 12h10M4 17h7M18 13v8M14 17h8",
  ask: "M9 9a3 3 0 1 1 4.5 2.6c-.9.5-1.5 1.2-1.5 2.4M12 18h.01M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18Z",
  watch: "M4 19V5M4 19h16M8 15l4-5 3 3 5-7",
  upload: "M12 16V5M7.5 9 12 4.5 16.5 9M5 19h14",
  camera: "M4 8h3l2-3h6l2 3h3v11H4ZM12 10a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7Z",
  draw: "M4 20l1-4L16 5l3 3L8 19ZM14 7l3 3",
  close: "M6 6l12 12M18 6 6 18",
  plus: "M12 5v14M5 12h14",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  undo: "M9 6 4 11l5 5M4 11h10a5 5 0 0 1 0 10h-3",
  download: "M12 4v11M7.5 10.5 12 15l4.5-4.5M5 19h14",
  check: "M5 12.5 10 17.5 19.5 7",
  spark: "M12 3l1.9 6.1L20 11l-6.1 1.9L12 19l-1.9-6.1L4 11l6.1-1.9Z",
  grid: "M4 4h7v7H4ZM13 4h7v7h-7ZM4 13h7v7H4ZM13 13h7v7h-7Z",
};

function apply(element, properties) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "disabled") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
}

/** Create an HTML element. Children are nodes or strings; empty values are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  apply(element, properties);
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

/** Create an SVG element. */
export function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  apply(element, properties);
  element.append(...children.flat().filter(Boolean));
  return element;
}

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] }));
}

/** A button with an optional icon. `kind` is "primary", "quiet", "danger" or empty. */
export function button(text, onclick, { kind = "", image, ...rest } = {}) {
  return h("button", { type: "button", class: `button ${kind}`.trim(), onclick, ...rest },
    image && icon(image), h("span", {}, text));
}

/** A button that shows an icon alone and has its name for screen readers and as a tooltip. */
export function iconButton(image, label, onclick, rest = {}) {
  return h("button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...rest },
    icon(image));
}

/** A horizontal bar; `share` is between 0 and 1. */
export function bar(share, properties = {}) {
  const fill = h("span", { class: "fill" });
  fill.style.setProperty("--share", String(Math.min(1, Math.max(0, share))));
  return h("span", { class: "bar", "aria-hidden": "true", ...properties }, fill);
}

/** Tell screen readers something that is visible elsewhere. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Show a short message for a few seconds; errors stay until they are dismissed. */
export function toast(text, { error = false, action } = {}) {
  const region = document.getElementById("toasts");
  const item = h("div", { class: error ? "toast error" : "toast", role: error ? "alert" : undefined },
    h("p", {}, text),
    action && button(action.text, () => { item.remove(); action.run(); }, { kind: "quiet" }),
    iconButton("close", "Dismiss message", () => item.remove()));
  while (region.children.length > 2) region.firstChild.remove();
  region.append(item);
  if (!error) setTimeout(() => item.remove(), action ? 12000 : 5000);
}
