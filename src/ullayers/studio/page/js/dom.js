/**
 * Elements, icons, messages and questions. Text always becomes text nodes, so nothing that a file
 * or a server says can turn into markup.
 */

const SVG = "http://www.w3.org/2000/svg";
const STAY = 4500; // ms that a message is shown

/** @typedef {Node|string|number|null|false|undefined} Child */
/** @typedef {Record<string, any>} Props */

/**
 * Create an element. Of its properties, functions under "on..." become listeners, `testid` becomes
 * `data-testid`, and what is `false` or `null` is left out.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag|`${Tag}.${string}`} tag With classes: "p.note".
 * @param {...(Child|Child[]|Props)} parts Its properties, if there are any, then its children.
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, ...parts) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(/** @type {Tag} */ (name));
  if (classes.length) node.className = classes.join(" ");
  const [props, ...rest] = parts;
  const given = props && props.constructor === Object;
  for (const [key, value] of given ? Object.entries(props) : []) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key === "testid") node.dataset.testid = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  add(node, given ? rest : parts);
  return node;
}

/** Replace all children of a node. @param {Element} node @param {...(Child|Child[])} children */
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

/** An icon, drawn with lines in the colour of the text around it. @param {IconName} name */
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
 * A button with a text.
 *
 * @param {Child|Child[]} content
 * @param {((event: MouseEvent) => void)|null} onclick
 * @param {{icon?: IconName, [name: string]: any}} [props] With `icon`, one stands before the text.
 */
export function button(content, onclick, { icon: name, ...props } = {}) {
  return h("button", { type: "button", onclick, ...props }, name ? icon(name) : null, content);
}

/**
 * A button with an icon only; its label is what a screen reader says and what the tooltip shows.
 *
 * @param {IconName} name
 * @param {string} label
 * @param {(event: MouseEvent) => void} onclick
 * @param {Record<string, any>} [props]
 */
export function iconButton(name, label, onclick, props = {}) {
  const classes = `quiet square ${props.class ?? ""}`;
  return setIcon(button(null, onclick, { ...props, class: classes }), name, label);
}

/**
 * Change what a button with an icon shows and says.
 *
 * @template {HTMLElement} Control
 * @param {Control} node
 * @param {IconName} name
 * @param {string} label
 */
export function setIcon(node, name, label) {
  node.replaceChildren(icon(name));
  node.setAttribute("aria-label", label);
  node.title = label;
  return node;
}

/** @param {Child} title @param {Child} value Beside the title. @param {...Child} rest */
export function card(title, value, ...rest) {
  return h("section.card", h("header", h("h2", title), value), rest);
}

/** A control with its label. @param {string} label @param {HTMLElement} control */
export function field(label, control) {
  return h("label.field", h("span", label), control);
}

/** @param {HTMLSelectElement} select @param {(string|number)[][]} options Values and texts. */
export function fillOptions(select, options) {
  fill(
    select,
    options.map(([value, text]) => h("option", { value }, text)),
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

/**
 * Put elements into a list in this order. Those that are there already are not moved: a list that
 * is built again would lose the focus and reload its pictures.
 *
 * @param {Element} list
 * @param {Element[]} elements
 */
export function arrange(list, elements) {
  for (const child of [...list.children]) if (!elements.includes(child)) child.remove();
  elements.forEach((element, place) => {
    if (list.children[place] !== element) list.insertBefore(element, list.children[place] ?? null);
  });
}

/** @param {string} id */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no element ${id}`);
  return node;
}

/**
 * A function that calls another one before the next repaint, once however often it is called.
 *
 * @param {() => void} draw
 */
export function beforeRepaint(draw) {
  let scheduled = 0;
  return () => {
    scheduled ||= requestAnimationFrame(() => {
      scheduled = 0;
      draw();
    });
  };
}

/**
 * Say one sentence in a corner of the page, for a few seconds.
 *
 * @param {string} text
 * @param {{label: string, run: () => void}|null} [action]
 */
export function say(text, action = null) {
  const root = byId("toasts");
  for (const old of root.children) if (old.firstChild?.textContent === text) old.remove();
  const act = () => {
    action?.run();
    toast.remove();
  };
  const toast = h(
    "div.toast",
    { testid: "toast" },
    h("span", text),
    action && button(action.label, act, { class: "link" }),
    iconButton("close", "Close this message", () => toast.remove(), { class: "tiny" }),
  );
  root.append(toast);
  while (root.children.length > 4) root.firstChild?.remove();
  let timer = setTimeout(() => toast.remove(), STAY);
  // It stays while the pointer or the focus is on it.
  for (const name of ["pointerenter", "focusin"])
    toast.addEventListener(name, () => clearTimeout(timer));
  for (const name of ["pointerleave", "focusout"])
    toast.addEventListener(name, () => {
      clearTimeout(timer);
      timer = setTimeout(() => toast.remove(), STAY);
    });
}

/** @param {unknown} error */
export function sayError(error) {
  say(error instanceof Error ? error.message : String(error));
}

/**
 * Ask before something is lost.
 *
 * @param {string} question
 * @param {string} detail
 * @param {string} label Of the button that does it.
 * @returns {Promise<boolean>}
 */
export function ask(question, detail, label) {
  const answer = (
    /** @type {string} */ value,
    /** @type {string} */ kind,
    /** @type {string} */ text,
  ) => h("button", { type: "submit", value, class: kind, testid: `dialog-${value}` }, text);
  const no = answer("no", "plain", "Cancel");
  const dialog = h(
    "dialog.question",
    { "aria-labelledby": "question-title" },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "question-title" }, question),
      h("p", detail),
      h("div.buttons", no, answer("yes", "danger", label)),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  no.focus();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    }),
  );
}

/** @typedef {keyof typeof ICONS} IconName */

// Outlines of the icons, in a square of 20 by 20.
const ICONS = {
  play: "M6 4.2v11.6L15.6 10z",
  pause: "M6.5 4.5v11M13.5 4.5v11",
  stepBack: "M13.5 5 8 10l5.5 5M5.5 5v10",
  stepForward: "M6.5 5l5.5 5-5.5 5M14.5 5v10",
  upload:
    "M10 13V4M6.5 7.2 10 3.8l3.5 3.4M4 12.5v2.3c0 .7.5 1.2 1.2 1.2h9.6c.7 0 1.2-.5 1.2-1.2v-2.3",
  download: "M10 4v9M6.5 9.8 10 13.2l3.5-3.4M4 13.5v1.8c0 .4.3.7.7.7h10.6c.4 0 .7-.3.7-.7v-1.8",
  camera:
    "M3 6.5C3 5.7 3.7 5 4.5 5h7c.8 0 1.5.7 1.5 1.5v7c0 .8-.7 1.5-1.5 1.5h-7C3.7 15 3 14.3 3 13.5zM13 9l4-2.5v7L13 11z",
  spark: "M10 3.2 11.7 8.3 16.8 10l-5.1 1.7L10 16.8l-1.7-5.1L3.2 10l5.1-1.7z",
  film: "M4.5 4h11c.6 0 1 .4 1 1v10c0 .6-.4 1-1 1h-11c-.6 0-1-.4-1-1V5c0-.6.4-1 1-1zM7 4v12M13 4v12M3.5 8H7M3.5 12H7M13 8h3.5M13 12h3.5",
  trash:
    "M4 6h12M8 6V4.2h4V6M5.5 6l.7 9.2c0 .5.4.8.8.8h6c.4 0 .8-.3.8-.8L14.5 6M8.5 9v4.5M11.5 9v4.5",
  stop: "M5.5 5.5h9v9h-9z",
  resume: "M4.5 4.5v11M8.5 4.8v10.4L16.2 10z",
  eye: "M2.5 10S5.3 5 10 5s7.5 5 7.5 5-2.8 5-7.5 5-7.5-5-7.5-5zM10 7.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4z",
  eyeOff:
    "M4 4l12 12M8 5.3A7 7 0 0 1 10 5c4.7 0 7.5 5 7.5 5a13 13 0 0 1-2 2.5M12 14.7a7 7 0 0 1-2 .3c-4.7 0-7.5-5-7.5-5a13 13 0 0 1 2.7-3.1",
  undo: "M7.5 5 4 8.5 7.5 12M4.5 8.5h7a4 4 0 0 1 0 8H8",
  redo: "M12.5 5 16 8.5 12.5 12M15.5 8.5h-7a4 4 0 0 0 0 8H12",
  swap: "M4 7h11M12 4l3 3-3 3M16 13H5M8 10l-3 3 3 3",
  merge: "M4 4.5c4 0 4 5.5 8 5.5h4M4 15.5c4 0 4-5.5 8-5.5M13.5 7.5 16 10l-2.5 2.5",
  split:
    "M4 10h3.5c4 0 4-5.5 8.5-5.5M7.5 10c4 0 4 5.5 8.5 5.5M13.7 2.5 16 4.5l-2.3 2M13.7 13.5l2.3 2-2.3 2",
  move: "M10 3v14M3 10h14M8 5l2-2 2 2M8 15l2 2 2-2M5 8l-2 2 2 2M15 8l2 2-2 2",
  nothing: "M10 3.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM5.5 5.5l9 9",
  sun: "M10 6.8a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 0 0 0-6.4zM10 2v1.8M10 16.2V18M2 10h1.8M16.2 10H18M4.3 4.3l1.3 1.3M14.4 14.4l1.3 1.3M4.3 15.7l1.3-1.3M14.4 5.6l1.3-1.3",
  moon: "M15.8 12.3A6.5 6.5 0 0 1 7.7 4.2a6.5 6.5 0 1 0 8.1 8.1z",
  help: "M7.6 7.6a2.4 2.4 0 1 1 3.3 2.3c-.6.3-.9.7-.9 1.3v.4M10 14v.1M10 2.8a7.2 7.2 0 1 0 0 14.4 7.2 7.2 0 0 0 0-14.4z",
  compare: "M3.5 5h5.5v10H3.5zM11 5h5.5v10H11z",
  close: "M5 5l10 10M15 5 5 15",
  warning: "M10 3.5 17.2 16H2.8zM10 8.3v3.7M10 13.8v.1",
  check: "M4 10.5 8.2 14.5 16 6",
  plus: "M10 4.5v11M4.5 10h11",
  minus: "M4.5 10h11",
  file: "M5.5 3h6L15 6.5V17H5.5zM11.5 3v3.5H15",
  panelLeft: "M3.5 4.5h13v11h-13zM8 4.5v11",
  panelRight: "M3.5 4.5h13v11h-13zM12 4.5v11",
  learn: "M3 14.5c3 0 3.5-9 7-9s2.5 6 7 6M14.5 9l2.5 2.5-2.5 2.5",
  objects:
    "M7 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5zM13.5 10a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4z",
  chart: "M3.5 13.5 7 8.5l3 3.5 3-6.5 3.5 5",
  crossing: "M4 4.5c5 0 7 11 12 11M4 15.5c5 0 7-11 12-11",
  doubt: "M3.5 12c2-5 4-5 6 0s4.5 5 7 0M10 3.5v1.5",
};
