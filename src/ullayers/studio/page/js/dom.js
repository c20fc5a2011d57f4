/**
 * Building elements. Text always becomes text nodes, so nothing that a file or a server says can
 * turn into markup.
 */

import { ICONS } from "./icons.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an element.
 *
 * @param {string} tag
 * @param {Record<string, any>} [props] Attributes; functions under "on..." become listeners, `false`
 *     and `null` leave an attribute out, `testid` becomes `data-testid`.
 * @param {...(Node|string|number|null|false|undefined)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "testid") node.dataset.testid = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

/**
 * Replace all children of a node.
 *
 * @param {Element} node
 * @param {...(Node|string|number|null|false|undefined)} children
 */
export function fill(node, ...children) {
  node.replaceChildren();
  add(node, children);
}

/** @param {Element} node @param {any[]} children */
function add(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

/**
 * An icon of 20 by 20, drawn with lines in the colour of the text around it.
 *
 * @param {keyof typeof ICONS} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/**
 * A button with an icon only; its label is what a screen reader says and what the tooltip shows.
 *
 * @param {keyof typeof ICONS} name
 * @param {string} label
 * @param {(event: MouseEvent) => void} onclick
 * @param {Record<string, any>} [props]
 */
export function iconButton(name, label, onclick, props = {}) {
  const classes = `quiet square ${props.class ?? ""}`;
  return h(
    "button",
    { type: "button", "aria-label": label, title: label, onclick, ...props, class: classes },
    icon(name),
  );
}

/**
 * Set the text of a node only if it changed, which keeps selections and spares layout.
 *
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {string} id */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no element ${id}`);
  return node;
}
