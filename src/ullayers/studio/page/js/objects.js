/** The tab "Objects": the objects of the open sequence, and correcting what was found. */

import { api } from "./api.js";
import { css, identityColour, identityMarker } from "./colours.js";
import {
  arrange,
  button,
  card,
  fill,
  h,
  iconButton,
  say,
  sayError,
  setIcon,
  setText,
} from "./dom.js";
import { counted, percent } from "./format.js";
import { UNSURE } from "./results.js";

/** @import {ApiError} from "./api.js" */
/** @import {Playhead} from "./player.js" */
/** @import {Session} from "./session.js" */
/** @import {App, Correction, Store} from "./store.js" */

const TOOLS = /** @type {const} */ ([
  ["swap", "swap", "Swap", "Swap the numbers of the two selected objects from this frame on (s)"],
  ["merge", "merge", "Merge", "Merge the two selected objects into one (g)"],
  ["split", "split", "Split", "Make it a new object from this frame on (d)"],
  ["move", "aim", "Move", "Click on the picture where the object is (m)"],
  [
    "trash",
    "remove",
    "Delete",
    "Delete the selected object, in the marked range if there is one (Delete)",
  ],
  ["nothing", "nothing", "Nothing", "Mark the range, or this frame, as empty (b)"],
]);

/**
 * Corrections go to the server one after the other and nothing is shown before the server has kept
 * it; one that was on its way when the connection broke is sent again.
 */
export class Corrector {
  /** @param {Store} store @param {Session} session @param {Playhead} playhead */
  constructor(store, session, playhead) {
    this.store = store;
    this.session = session;
    this.playhead = playhead;
    this.queue = Promise.resolve();
    this.waiting = 0; // tasks in the queue
    /** @type {{run: string, correction: Correction, count: number}|null} Not known to be kept. */
    this.pending = null;
  }

  get ready() {
    const { results, open } = this.store.state;
    return open.kind === "run" && results?.kind === "tracks";
  }

  /** @param {{op: string, [field: string]: any}} fields */
  apply(fields) {
    const { open, sequence, details } = this.store.state;
    if (!this.ready || !open.id || !sequence || !details) return;
    const run = open.id;
    this.enqueue(async () => {
      const count = this.store.state.details?.corrections.applied.length ?? 0;
      this.pending = { run, correction: { ...fields, sequence }, count };
      await this.send();
    });
  }

  async send() {
    if (!this.pending) return;
    const { run, correction } = this.pending;
    try {
      await api.correct(run, correction);
      this.pending = null;
    } catch (error) {
      if (/** @type {ApiError} */ (error).status === 0) {
        say("The correction is kept here and sent when the connection is back.");
        return;
      }
      this.pending = null;
      throw error;
    }
    await this.session.reload();
  }

  /** After a new connection: send what may not have arrived, but never twice. */
  reconnect() {
    if (!this.pending) return;
    this.enqueue(async () => {
      if (!this.pending) return;
      const { run, count } = this.pending;
      const { applied } = await api.corrections(run);
      if (applied.length > count) this.pending = null;
      await this.send();
      await this.session.reload();
    });
  }

  /** @param {() => Promise<void>} task */
  enqueue(task) {
    this.waiting += 1;
    this.queue = this.queue
      .then(task)
      .catch(sayError)
      .finally(() => (this.waiting -= 1));
  }

  /** Whether a correction of this page is under way. */
  get busy() {
    return this.waiting > 0;
  }

  undo() {
    this.travel("undo", "applied");
  }

  redo() {
    this.travel("redo", "undone");
  }

  /** @param {"undo"|"redo"} what @param {"applied"|"undone"} list */
  travel(what, list) {
    const id = this.store.state.open.id;
    if (!this.ready || !id) return;
    this.enqueue(async () => {
      if (!this.store.state.details?.corrections[list].length)
        return say(`There is nothing to ${what}.`);
      await api.act(id, `corrections/${what}`);
      await this.session.reload();
    });
  }

  /** The two selected objects change their numbers from this frame on. */
  swap() {
    const pair = this.pair("swap");
    if (pair) this.apply({ op: "swap", objects: pair, first: this.playhead.frame });
  }

  merge() {
    const pair = this.pair("merge");
    if (pair) this.apply({ op: "merge", objects: [Math.min(...pair), Math.max(...pair)] });
  }

  split() {
    const object = this.single("split");
    if (object !== null) this.apply({ op: "split", object, first: this.playhead.frame });
  }

  /** Delete the selected object: in the marked range, or everywhere. */
  remove() {
    const object = this.single("delete");
    const [first, last] = this.store.state.range ?? [null, null];
    if (object !== null) this.apply({ op: "delete", object, first, last });
  }

  /** The next click on the picture says where the object is. */
  aim() {
    const { moving } = this.store.state;
    if (moving || this.single("move") !== null) this.store.set({ moving: !moving });
  }

  /** @param {number} x In pixels of the video. @param {number} y */
  move(x, y) {
    const object = this.single("move");
    this.store.set({ moving: false });
    if (object === null) return;
    const round = (/** @type {number} */ value) => Number(value.toFixed(2));
    this.apply({ op: "move", object, frame: this.playhead.frame, x: round(x), y: round(y) });
  }

  /** There is no object in the marked range, or in this frame. */
  nothing() {
    const [first, last] = this.store.state.range ?? [this.playhead.frame, this.playhead.frame];
    this.apply({ op: "nothing", first, last });
  }

  /** The two selected objects. @param {string} what To do with them. */
  pair(what) {
    const { picked } = this.store.state;
    if (this.ready && picked.length === 2) return picked;
    if (this.ready) say(`Select two objects to ${what} them.`);
    return null;
  }

  /** The selected object. @param {string} what To do with it. @returns {number|null} */
  single(what) {
    const { picked, results } = this.store.state;
    if (!this.ready) return null;
    if (picked.length === 1) return picked[0];
    if (!picked.length && results?.objects.length === 1) return results.objects[0].object;
    say(`Select one object to ${what} it.`);
    return null;
  }
}

/** A correction in words. @param {Correction} correction */
function correctionSentence({ op, object, objects, first, last, frame }) {
  const span = last === first ? `in frame ${first}` : `in frames ${first}–${last}`;
  if (op === "swap") return `Swapped ${objects[0]} and ${objects[1]} from frame ${first} on`;
  if (op === "merge") return `Merged ${objects[1]} into ${objects[0]}`;
  if (op === "split") return `Split ${object} at frame ${first}`;
  if (op === "delete")
    return first === null && last === null ? `Deleted ${object}` : `Deleted ${object} ${span}`;
  if (op === "move") return `Moved ${object} in frame ${frame}`;
  if (op === "nothing") return `Nothing ${span}`;
  return op;
}

/** @param {App} app */
export function objectsTab(app) {
  const { store } = app;
  const empty = h("div.empty");
  const body = h("div", objectList(app), correctCard(app), historyCard(app));
  const element = h("div", empty, body);
  store.follow(["results", "open"], () => {
    const { results, open } = store.state;
    body.hidden = results?.kind !== "tracks";
    empty.hidden = !body.hidden;
    const code = results?.kind === "codes";
    const text = code
      ? "This run describes the whole frame with a few numbers. The time lines show them."
      : open.kind === "run"
        ? "They are listed here when the run is finished."
        : "Open a finished run to see its objects, and to correct them.";
    const title = code ? "A code has no objects" : "No objects yet";
    fill(empty, h("h2", title), h("p", text));
  });
  return element;
}

/** The objects, where they are in this frame, and which are selected or hidden. @param {App} app */
function objectList({ store, session, playhead }) {
  const list = h("ul.objects", { "aria-label": "Objects", testid: "objects-list" });
  const count = h("span.soft");
  const element = card("Objects", count, list);
  /** @type {Map<number, ReturnType<typeof makeRow>>} */
  const rows = new Map();
  let timer = 0;

  /** @param {number} object */
  const makeRow = (object) => {
    const swatch = h("span", { class: `swatch ${identityMarker(object)}`, "aria-hidden": "true" });
    swatch.style.background = css(identityColour(object));
    const place = h("span.place.numeric");
    const meta = h("span.item-meta");
    const name = h("span.item-name", `Object ${object}`);
    const pick = (/** @type {MouseEvent} */ event) => {
      const touched = event instanceof PointerEvent && event.pointerType === "touch";
      // Without a keyboard, a tap adds a second object.
      const more = touched && store.state.picked.length === 1;
      session.pick(object, event.shiftKey || event.ctrlKey || event.metaKey || more);
    };
    const texts = h("span.item-text", name, meta);
    const props = { class: "object", testid: `object-${object}` };
    const choice = button([swatch, texts, place], pick, props);
    const toggle = () => {
      const others = store.state.hidden.filter((other) => other !== object);
      const shown = others.length === store.state.hidden.length;
      store.set({ hidden: shown ? [...others, object] : others });
    };
    const eye = iconButton("eye", "", toggle, { class: "tiny" });
    return { element: h("li", choice, eye), choice, place, eye, meta };
  };
  const mark = () => {
    const { picked, hidden } = store.state;
    for (const [object, row] of rows) {
      row.choice.setAttribute("aria-pressed", String(picked.includes(object)));
      const away = hidden.includes(object);
      const label = away ? `Show object ${object}` : `Hide object ${object}`;
      if (row.eye.title !== label) setIcon(row.eye, away ? "eyeOff" : "eye", label);
      row.element.classList.toggle("away", away);
    }
  };
  const showPlaces = () => {
    if (!rows.size || !element.offsetParent) return;
    const places = new Map(session.placesHere().map((place) => [place.object, place]));
    for (const [object, row] of rows) {
      const place = places.get(object);
      setText(row.place, place ? `${place.x.toFixed(0)}, ${place.y.toFixed(0)}` : "–");
      row.place.classList.toggle("unsure", Boolean(place && place.confidence < UNSURE));
      row.place.title = place ? `confidence ${place.confidence.toFixed(2)}` : "not in this frame";
    }
  };
  /** Not for every frame of a playing video, which would be too fast to read. */
  const schedulePlaces = () => {
    timer ||= setTimeout(() => {
      timer = 0;
      showPlaces();
    }, 80);
  };
  store.follow(["results", "open"], () => {
    const { results } = store.state;
    if (results?.kind !== "tracks") return;
    const { objects } = results;
    setText(count, counted(objects.length, "object"));
    for (const object of [...rows.keys()])
      if (!objects.some((found) => found.object === object)) rows.delete(object);
    for (const { object, first, last, sure } of objects) {
      const row = rows.get(object) ?? makeRow(object);
      rows.set(object, row);
      setText(row.meta, `${first}–${last} · ${percent(sure ?? 0)} sure`);
    }
    const ordered = objects.map(({ object }) => rows.get(object)?.element ?? list);
    arrange(list, ordered);
    mark();
    showPlaces();
  });
  store.follow(["picked", "hidden"], mark);
  store.follow(["tab", "results", "arrived"], schedulePlaces);
  playhead.addEventListener("frame", schedulePlaces);
  return element;
}

/** @param {App} app */
function correctCard({ store, corrector }) {
  const hint = h("p.note", { role: "status", testid: "correct-hint" });
  const undo = iconButton("undo", "Undo (z)", () => corrector.undo(), { testid: "undo" });
  const redo = iconButton("redo", "Redo (shift+z)", () => corrector.redo(), { testid: "redo" });
  const tools = TOOLS.map(([name, method, label, title]) => {
    const props = { icon: name, class: "tool", title, testid: `correct-${name}` };
    return button(h("span", label), () => corrector[method](), props);
  });
  const [swap, merge, split, move, remove, nothing] = tools;
  store.follow(["picked", "moving", "range", "results"], () => {
    const { picked, moving, range, results } = store.state;
    const only = results?.objects.length === 1;
    swap.disabled = merge.disabled = picked.length !== 2;
    const one = picked.length === 1 || (only && !picked.length);
    split.disabled = move.disabled = remove.disabled = !one;
    move.setAttribute("aria-pressed", String(moving));
    const text = range ? "Nothing in range" : "Nothing here";
    setText(/** @type {Element} */ (nothing.lastElementChild), text);
    setText(hint, hintText(picked.length, only, moving, range !== null));
  });
  store.follow(["details"], () => {
    const { corrections } = store.state.details ?? {};
    undo.disabled = !corrections?.applied.length;
    redo.disabled = !corrections?.undone.length;
  });
  const group = h("span.group", undo, redo);
  const row = { class: "tools", role: "group", "aria-label": "Corrections" };
  return card("Correct", group, h("div", row, tools), hint);
}

/**
 * @param {number} count Of selected objects.
 * @param {boolean} only Whether there is one object only.
 * @param {boolean} moving
 * @param {boolean} range Whether one is marked.
 */
function hintText(count, only, moving, range) {
  if (moving) return "Click on the picture where the object is. Escape leaves it where it was.";
  if (count === 2) return "Swap exchanges their numbers from this frame on; merge makes them one.";
  if (count > 2) return "Select two objects to swap or merge them.";
  if (count === 1 && !only)
    return range
      ? "Delete removes it in the marked range."
      : "Shift-click a second object to swap or merge.";
  if (only) return "Move it, or mark a range (i, o) as empty.";
  return "Select an object here or in the picture.";
}

/** What was corrected, and learning from it. @param {App} app */
function historyCard({ store, session, playhead }) {
  const history = h("ol.history", { "aria-label": "Corrections", testid: "history" });
  const none = h(
    "p.note",
    "Corrections are stored beside the run and apply to tables and exports. The original results are never overwritten.",
  );
  const learn = async () => {
    const { id } = store.state.open;
    if (!id) return;
    relearn.disabled = true;
    try {
      const run = await api.act(id, "relearn");
      store.add("runs", run);
      store.set({ tab: "watch" });
      await session.openRun(run.id);
    } catch (error) {
      sayError(error);
    } finally {
      relearn.disabled = false;
    }
  };
  const relearn = button("Learn from the corrections", learn, {
    icon: "learn",
    class: "plain wide",
    testid: "relearn",
  });
  store.follow(["details"], () => {
    const { applied, undone } = store.state.details?.corrections ?? { applied: [], undone: [] };
    relearn.hidden = !applied.length;
    none.hidden = applied.length > 0;
    const entry = (/** @type {Correction} */ correction, /** @type {boolean} */ gone) => {
      const frame = correction.frame ?? correction.first ?? null;
      const disabled = frame === null || gone;
      const go = () => playhead.seek(frame);
      const link = button(correctionSentence(correction), go, { class: "link", disabled });
      return h("li", { class: gone ? "undone" : "" }, link);
    };
    fill(
      history,
      applied.map((correction) => entry(correction, false)),
      undone.toReversed().map((correction) => entry(correction, true)),
    );
  });
  return card("Corrections", null, none, history, relearn);
}
