/** The keyboard: every key in one table, which is also what the help shows. */

import { toggleLayer } from "./viewbar.js";
import { SPEEDS } from "./playhead.js";

/** @typedef {{keys: string[], shown: string, text: string, group: string, run: (event: KeyboardEvent) => void}} Key */

/**
 * @param {{store: import("./store.js").Store, playhead: import("./playhead.js").Playhead,
 *   session: import("./session.js").Session, corrector: import("./corrections.js").Corrector,
 *   viewport: import("./viewport.js").Viewport, timeline: import("./timeline.js").Timeline,
 *   help: () => void, compare: () => void}} parts
 * @returns {Key[]}
 */
export function keyTable({
  store,
  playhead,
  session,
  corrector,
  viewport,
  timeline,
  help,
  compare,
}) {
  const speed = (/** @type {number} */ step) => {
    const place = SPEEDS.indexOf(playhead.speed) + step;
    playhead.setSpeed(SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, place))]);
  };
  const go = (/** @type {number} */ frame) => {
    playhead.pause();
    playhead.seek(frame);
  };
  const move = "Move in time";
  const look = "Look";
  const correct = "Select and correct";
  return [
    {
      group: move,
      keys: [" "],
      shown: "Space",
      text: "Play or pause",
      run: () => playhead.toggle(),
    },
    {
      group: move,
      keys: ["ArrowLeft", "ArrowRight"],
      shown: "← →",
      text: "One frame; with shift, ten",
      run: (event) =>
        playhead.step((event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1)),
    },
    {
      group: move,
      keys: ["Home", "End"],
      shown: "Home End",
      text: "First or last frame",
      run: (event) => go(event.key === "Home" ? playhead.first : playhead.last),
    },
    {
      group: move,
      keys: ["u", "U"],
      shown: "u",
      text: "Next uncertain stretch; with shift, the previous one",
      run: (event) => session.jumpUnsure(event.shiftKey ? -1 : 1),
    },
    {
      group: move,
      keys: ["c", "C"],
      shown: "c",
      text: "Next crossing; with shift, the previous one",
      run: (event) => session.jumpCrossing(event.shiftKey ? -1 : 1),
    },
    {
      group: move,
      keys: [",", "."],
      shown: ", .",
      text: "Slower or faster",
      run: (event) => speed(event.key === "," ? -1 : 1),
    },
    {
      group: look,
      keys: ["+", "=", "-", "0"],
      shown: "+ − 0",
      text: "Zoom in, zoom out, fit",
      run: (event) =>
        event.key === "0" ? viewport.fit() : viewport.zoomAt(event.key === "-" ? 1 / 1.5 : 1.5),
    },
    {
      group: look,
      keys: ["ArrowUp", "ArrowDown"],
      shown: "↑ ↓",
      text: "Zoom the time lines",
      run: (event) => timeline.zoom(event.key === "ArrowUp" ? 1.5 : 1 / 1.5),
    },
    {
      group: look,
      keys: ["l", "p", "t", "n"],
      shown: "l p t n",
      text: "Outlines, centroids, trails, names",
      run: (event) =>
        toggleLayer(
          store,
          /** @type {any} */ (
            { l: "outlines", p: "centroids", t: "trails", n: "names" }[event.key]
          ),
        ),
    },
    { group: look, keys: ["v"], shown: "v", text: "Compare with another run", run: compare },
    {
      group: look,
      keys: ["i", "o", "x"],
      shown: "i o x",
      text: "Start range here, end it here, clear it",
      run: (event) =>
        event.key === "x"
          ? store.set({ range: null })
          : session.mark(event.key === "i" ? "first" : "last"),
    },
    { group: look, keys: ["?"], shown: "?", text: "This help", run: help },
    {
      group: correct,
      keys: ["1", "2", "3", "4", "5", "6", "7", "8", "9"],
      shown: "1 – 9",
      text: "Select an object; with shift, add it",
      run: (event) => pickNumber(store, session, event),
    },
    {
      group: correct,
      keys: ["s"],
      shown: "s",
      text: "Swap two objects from here on",
      run: () => corrector.swap(),
    },
    {
      group: correct,
      keys: ["g"],
      shown: "g",
      text: "Merge two objects",
      run: () => corrector.merge(),
    },
    {
      group: correct,
      keys: ["d"],
      shown: "d",
      text: "Split the object here",
      run: () => corrector.split(),
    },
    {
      group: correct,
      keys: ["m"],
      shown: "m",
      text: "Move: click, or use arrows and Enter",
      run: () => corrector.aim(),
    },
    {
      group: correct,
      keys: ["Delete", "Backspace"],
      shown: "Del",
      text: "Delete the object, in the range if there is one",
      run: () => corrector.remove(),
    },
    {
      group: correct,
      keys: ["b"],
      shown: "b",
      text: "Mark the frame or range as empty",
      run: () => corrector.nothing(),
    },
    {
      group: correct,
      keys: ["z", "Z", "y"],
      shown: "z",
      text: "Undo; with shift, redo",
      run: (event) => (event.shiftKey || event.key === "y" ? corrector.redo() : corrector.undo()),
    },
    {
      group: correct,
      keys: ["Escape"],
      shown: "Esc",
      text: "Select nothing",
      run: () => store.set({ picked: [], moving: false }),
    },
  ];
}

/** @param {import("./store.js").Store} store @param {import("./session.js").Session} session @param {KeyboardEvent} event */
function pickNumber(store, session, event) {
  const number = Number(event.code.replace(/\D/g, ""));
  if (store.state.results?.objects.some(({ object }) => object === number))
    session.pick(number, event.shiftKey);
}

/**
 * Listen to the keyboard. Keys belong to whatever has the focus first: a field takes all, a button
 * takes space and Enter, a list of tabs or choices takes the arrows.
 *
 * @param {Key[]} table
 */
export function listenToKeys(table) {
  addEventListener("keydown", (event) => {
    if (event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
    const undo = (event.ctrlKey || event.metaKey) && ["z", "Z", "y"].includes(event.key);
    if ((event.ctrlKey || event.metaKey) && !undo) return;
    if (belongsToFocus(event)) return;
    const digit = /^Digit[1-9]$/.test(event.code) ? event.code.slice(-1) : null;
    const key =
      table.find(({ keys }) => keys.includes(event.key)) ??
      table.find(({ keys }) => digit && event.shiftKey && keys.includes(digit));
    if (!key) return;
    event.preventDefault();
    key.run(event);
  });
}

/**
 * Give the keyboard back to the page after a click. Else the space bar would press the button that
 * was clicked last, and the arrows would change a menu that is no longer used.
 */
export function freeKeysAfterClicks() {
  let byPointer = false;
  addEventListener("pointerdown", () => (byPointer = true), { capture: true });
  addEventListener("keydown", () => (byPointer = false), { capture: true });
  for (const name of ["click", "change"]) {
    addEventListener(name, (event) => {
      const control =
        event.target instanceof Element
          ? event.target.closest("button, select, summary, input")
          : null;
      const typed =
        control instanceof HTMLInputElement &&
        control.type !== "checkbox" &&
        control.type !== "radio";
      const opening = name === "click" && control instanceof HTMLSelectElement;
      if (
        byPointer &&
        control instanceof HTMLElement &&
        !typed &&
        !opening &&
        !control.closest("dialog")
      )
        control.blur();
    });
  }
}

/** @param {KeyboardEvent} event */
function belongsToFocus(event) {
  const target = event.target;
  if (!(target instanceof HTMLElement)) return false;
  if (target.closest("textarea, select, [contenteditable]")) return true;
  if (target instanceof HTMLInputElement) {
    const clickable = target.type === "checkbox" || target.type === "radio";
    return clickable ? event.key === " " || event.key.startsWith("Arrow") : true;
  }
  const pressed = target.closest("button, a, summary");
  return Boolean(pressed) && (event.key === " " || event.key === "Enter");
}
