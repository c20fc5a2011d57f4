/** The keyboard: every key in one table, which is also what the help shows. */

import { byId, h, iconButton } from "./dom.js";
import { SPEEDS } from "./player.js";
import { toggleLayer } from "./stage.js";

/** @import {App} from "./store.js" */
/** @import {Timeline} from "./timeline.js" */
/** @import {Viewport} from "./viewer.js" */
/** @typedef {(event: KeyboardEvent) => void} Run */
/** @typedef {[string, string, string, Run]} Key Names, as shown, what it does, how. */

/**
 * Keys by their groups. The names are those of the browser, with spaces between them.
 *
 * @param {App} app
 * @param {Viewport} viewport
 * @param {Timeline} timeline
 * @param {() => void} help
 * @returns {Record<string, Key[]>}
 */
function keyTable({ store, playhead, session, corrector }, viewport, timeline, help) {
  /** @param {(direction: 1|-1) => void} jump @returns {Run} */
  const either = (jump) => (event) => jump(event.shiftKey ? -1 : 1);
  /** @type {Run} */
  const step = ({ key, shiftKey }) =>
    playhead.step((key === "ArrowLeft" ? -1 : 1) * (shiftKey ? 10 : 1));
  /** @type {Run} */
  const speed = ({ key }) => {
    const place = SPEEDS.indexOf(playhead.speed) + (key === "," ? -1 : 1);
    playhead.setSpeed(SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, place))]);
  };
  /** @type {Run} */
  const zoom = ({ key }) =>
    key === "0" ? viewport.fit() : viewport.zoomAt(key === "-" ? 1 / 1.5 : 1.5);
  const layers = /** @type {const} */ ({ l: "outlines", p: "centroids", t: "trails", n: "names" });
  /** @type {Run} */
  const layer = ({ key }) => toggleLayer(store, layers[/** @type {keyof typeof layers} */ (key)]);
  const compare = () =>
    /** @type {HTMLElement|null} */ (document.querySelector("[data-testid=compare]"))?.focus();
  /** @type {Run} */
  const range = ({ key }) =>
    key === "x" ? store.set({ range: null }) : session.mark(key === "i" ? "first" : "last");
  /** @type {Run} */
  const pick = ({ code, shiftKey }) => {
    const number = Number(code.replace(/\D/g, ""));
    if (store.state.results?.objects.some(({ object }) => object === number))
      session.pick(number, shiftKey);
  };
  /** @type {Run} */
  const undo = ({ key, shiftKey }) =>
    shiftKey || key === "y" ? corrector.redo() : corrector.undo();
  const clear = () => store.set({ picked: [], moving: false });
  /** @type {Run} */
  const end = ({ key }) => playhead.jump(key === "Home" ? playhead.first : playhead.last);
  /** @type {Run} */
  const lines = ({ key }) => timeline.zoom(key === "ArrowUp" ? 1.5 : 1 / 1.5);
  const unsure = either((direction) => session.jumpUnsure(direction));
  const crossing = either((direction) => session.jumpCrossing(direction));
  return {
    "Move in time": [
      ["Space", "Space", "Play or pause", () => playhead.toggle()],
      ["ArrowLeft ArrowRight", "← →", "One frame; with shift, ten", step],
      ["Home End", "Home End", "First or last frame", end],
      ["u U", "u", "Next uncertain stretch; with shift, the previous one", unsure],
      ["c C", "c", "Next crossing; with shift, the previous one", crossing],
      [", .", ", .", "Slower or faster", speed],
    ],
    Look: [
      ["+ = - 0", "+ − 0", "Zoom in, zoom out, fit", zoom],
      ["ArrowUp ArrowDown", "↑ ↓", "Zoom the time lines", lines],
      ["l p t n", "l p t n", "Outlines, centroids, trails, names", layer],
      ["v", "v", "Compare with another run", compare],
      ["i o x", "i o x", "Start range here, end it here, clear it", range],
      ["?", "?", "This help", help],
    ],
    "Select and correct": [
      ["1 2 3 4 5 6 7 8 9", "1 – 9", "Select an object; with shift, add it", pick],
      ["s", "s", "Swap two objects from here on", () => corrector.swap()],
      ["g", "g", "Merge two objects", () => corrector.merge()],
      ["d", "d", "Split the object here", () => corrector.split()],
      ["m", "m", "Move: click, or use arrows and Enter", () => corrector.aim()],
      [
        "Delete Backspace",
        "Del",
        "Delete the object, in the range if there is one",
        () => corrector.remove(),
      ],
      ["b", "b", "Mark the frame or range as empty", () => corrector.nothing()],
      ["z Z y", "z", "Undo; with shift, redo", undo],
      ["Escape", "Esc", "Select nothing", clear],
    ],
  };
}

/**
 * Listen to the keyboard. Keys belong to whatever has the focus first: a field takes all, a button
 * takes space and Enter, a list of tabs or choices takes the arrows.
 *
 * @param {App} app
 * @param {Viewport} viewport
 * @param {Timeline} timeline
 * @returns {() => void} Opens or closes the help.
 */
export function listenToKeys(app, viewport, timeline) {
  const help = () => (dialog.open ? dialog.close() : dialog.showModal());
  const groups = keyTable(app, viewport, timeline, help);
  const dialog = fillHelp(groups);
  const table = Object.values(groups)
    .flat()
    .map(([names, , , run]) => ({ names: names.split(" "), run }));
  addEventListener("keydown", (event) => {
    if (event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
    const undo = ["z", "Z", "y"].includes(event.key);
    if (((event.ctrlKey || event.metaKey) && !undo) || belongsToFocus(event)) return;
    const name = event.key === " " ? "Space" : event.key;
    const digit = event.shiftKey && /^Digit[1-9]$/.test(event.code) ? event.code.slice(-1) : "";
    const key =
      table.find(({ names }) => names.includes(name)) ??
      table.find(({ names }) => names.includes(digit));
    if (!key) return;
    event.preventDefault();
    key.run(event);
  });
  freeKeysAfterClicks();
  return help;
}

/** The overlay that lists all keys. @param {Record<string, Key[]>} groups */
function fillHelp(groups) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("help"));
  const close = iconButton("close", "Close", () => dialog.close(), { testid: "help-close" });
  const kbd = (/** @type {string} */ part) => (part === "–" ? " – " : h("kbd", part));
  const sections = Object.entries(groups).map(([group, keys]) => {
    const rows = keys.map(([, shown, text]) =>
      h("div", h("dt", shown.split(" ").map(kbd)), h("dd.soft", text)),
    );
    return h("section", h("h3", group), h("dl", rows));
  });
  dialog.append(
    h("header", h("h2", "Keyboard"), close),
    h("div.help-groups", sections),
    h(
      "p.note",
      "In the picture, the wheel or a pinch zooms, dragging pans, and shift with the wheel steps through frames. In the time lines, the wheel zooms, dragging moves in time, and dragging with shift marks a range.",
    ),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside the text
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key !== "?") return;
    event.preventDefault();
    event.stopPropagation(); // else the page, which has no open dialog then, opens it again
    dialog.close();
  });
  return dialog;
}

/**
 * Give the keyboard back to the page after a click. Else the space bar would press the button that
 * was clicked last, and the arrows would change a menu that is no longer used.
 */
function freeKeysAfterClicks() {
  let byPointer = false;
  addEventListener("pointerdown", () => (byPointer = true), { capture: true });
  addEventListener("keydown", () => (byPointer = false), { capture: true });
  const free = (/** @type {Event} */ { target, type }) => {
    if (!byPointer || !(target instanceof Element)) return;
    const control = target.closest("button, select, summary, input");
    if (!(control instanceof HTMLElement) || control.closest("dialog")) return;
    const typed = control instanceof HTMLInputElement && !isBox(control);
    const opening = type === "click" && control instanceof HTMLSelectElement;
    if (!typed && !opening) control.blur();
  };
  addEventListener("click", free);
  addEventListener("change", free);
}

/** @param {HTMLInputElement} input */
function isBox({ type }) {
  return type === "checkbox" || type === "radio";
}

/** @param {KeyboardEvent} event */
function belongsToFocus({ target, key }) {
  if (!(target instanceof HTMLElement)) return false;
  if (target.closest("textarea, select, [contenteditable]")) return true;
  if (target instanceof HTMLInputElement)
    return !isBox(target) || key === " " || key.startsWith("Arrow");
  return Boolean(target.closest("button, a, summary")) && (key === " " || key === "Enter");
}
