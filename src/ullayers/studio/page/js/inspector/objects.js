/** Objects of the open sequence, and what can be corrected about them. */

import { api } from "../api.js";
import { identityCss, identityMarker } from "../colours.js";
import { correctionFrame, correctionSentence } from "../corrections.js";
import { fill, h, icon, iconButton, setText } from "../dom.js";
import { counted, percent } from "../format.js";
import { sayError } from "../notices.js";
import { UNSURE } from "../results.js";

/** @typedef {{element: HTMLElement, button: HTMLElement, place: HTMLElement, eye: HTMLElement, meta: HTMLElement}} Row */

export class ObjectsTab {
  /**
   * @param {import("../store.js").Store} store
   * @param {import("../session.js").Session} session
   * @param {import("../corrections.js").Corrector} corrector
   * @param {import("../playhead.js").Playhead} playhead
   */
  constructor(store, session, corrector, playhead) {
    this.store = store;
    this.session = session;
    this.corrector = corrector;
    this.playhead = playhead;
    /** @type {Map<number, Row>} */
    this.rows = new Map();
    this.list = h("ul", { class: "objects", "aria-label": "Objects", testid: "objects-list" });
    this.count = h("span", { class: "value" });
    this.hint = h("p", { class: "note", role: "status", testid: "correct-hint" });
    this.history = h("ol", { class: "history", "aria-label": "Corrections", testid: "history" });
    this.empty = h("div", { class: "empty" });
    this.tools = this.makeTools();
    this.undo = iconButton("undo", "Undo (z)", () => corrector.undo(), { testid: "undo" });
    this.redo = iconButton("redo", "Redo (shift+z)", () => corrector.redo(), { testid: "redo" });
    this.noHistory = h(
      "p",
      { class: "note" },
      "Corrections are stored beside the run and apply to tables and exports. The original results are never overwritten.",
    );
    this.relearn = /** @type {HTMLButtonElement} */ (
      h(
        "button",
        { type: "button", class: "plain wide", onclick: () => this.learn(), testid: "relearn" },
        icon("learn"),
        "Learn from the corrections",
      )
    );
    this.body = h("div", {}, this.objectsCard(), this.correctCard(), this.historyCard());
    this.element = h("div", {}, this.empty, this.body);
    store.follow(["results", "open", "details"], () => this.update());
    store.follow(["picked", "hidden", "moving", "range", "results"], () => this.mark());
    store.follow(["details"], () => this.listHistory());
    store.follow(["tab", "results", "arrived"], () => this.schedulePlaces());
    playhead.addEventListener("frame", () => this.schedulePlaces());
  }

  objectsCard() {
    return h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Objects"), this.count),
      this.list,
    );
  }

  makeTools() {
    const { corrector } = this;
    const tool = (
      /** @type {any} */ name,
      /** @type {string} */ label,
      /** @type {string} */ key,
      /** @type {() => void} */ run,
      /** @type {string} */ title,
    ) =>
      h(
        "button",
        {
          type: "button",
          class: "tool",
          onclick: run,
          title: `${title} (${key})`,
          testid: `correct-${name}`,
        },
        icon(name),
        h("span", {}, label),
      );
    return {
      swap: tool(
        "swap",
        "Swap",
        "s",
        () => corrector.swap(),
        "Swap the numbers of the two selected objects from this frame on",
      ),
      merge: tool(
        "merge",
        "Merge",
        "g",
        () => corrector.merge(),
        "Merge the two selected objects into one",
      ),
      split: tool(
        "split",
        "Split",
        "d",
        () => corrector.split(),
        "Make it a new object from this frame on",
      ),
      move: tool(
        "move",
        "Move",
        "m",
        () => corrector.aim(),
        "Click on the picture where the object is",
      ),
      trash: tool(
        "trash",
        "Delete",
        "Delete",
        () => corrector.remove(),
        "Delete the selected object, in the marked range if there is one",
      ),
      nothing: tool(
        "nothing",
        "Nothing",
        "b",
        () => corrector.nothing(),
        "Mark the range, or this frame, as empty",
      ),
    };
  }

  correctCard() {
    return h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Correct"), h("span", { class: "group" }, this.undo, this.redo)),
      h(
        "div",
        { class: "tools", role: "group", "aria-label": "Corrections" },
        ...Object.values(this.tools),
      ),
      this.hint,
    );
  }

  historyCard() {
    return h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Corrections")),
      this.noHistory,
      this.history,
      this.relearn,
    );
  }

  async learn() {
    const id = this.store.state.open.id;
    if (!id) return;
    this.relearn.disabled = true;
    try {
      const run = await api.relearn(id);
      const { runs } = this.store.state;
      if (!runs.some((entry) => entry.id === run.id)) this.store.set({ runs: [...runs, run] });
      this.store.set({ tab: "watch" });
      await this.session.openRun(run.id);
    } catch (error) {
      sayError(error);
    } finally {
      this.relearn.disabled = false;
    }
  }

  update() {
    const { results, open } = this.store.state;
    const usable = results?.kind === "tracks";
    this.body.hidden = !usable;
    this.empty.hidden = usable;
    if (!usable) {
      const code = results?.kind === "codes";
      fill(
        this.empty,
        h("h2", {}, code ? "A code has no objects" : "No objects yet"),
        h(
          "p",
          {},
          code
            ? "This run describes the whole frame with a few numbers. The time lines show them."
            : open.kind === "run"
              ? "They are listed here when the run is finished."
              : "Open a finished run to see its objects, and to correct them.",
        ),
      );
      return;
    }
    const { objects } = results;
    setText(this.count, counted(objects.length, "object"));
    const numbers = new Set(objects.map(({ object }) => object));
    for (const [object, { element }] of this.rows) {
      if (!numbers.has(object)) {
        element.remove();
        this.rows.delete(object);
      }
    }
    objects.forEach(({ object, first, last, sure }, place) => {
      const row = this.rows.get(object) ?? this.makeRow(object);
      this.rows.set(object, row);
      setText(row.meta, `${first}–${last} · ${percent(sure ?? 0)} sure`);
      if (this.list.children[place] !== row.element)
        this.list.insertBefore(row.element, this.list.children[place] ?? null);
    });
    this.mark();
    this.showPlaces();
  }

  /** @param {number} object @returns {Row} */
  makeRow(object) {
    const swatch = h("span", { class: `swatch ${identityMarker(object)}`, "aria-hidden": "true" });
    swatch.style.background = identityCss(object);
    const place = h("span", { class: "place numeric" });
    const meta = h("span", { class: "item-meta" });
    const button = h(
      "button",
      {
        type: "button",
        class: "object",
        testid: `object-${object}`,
        onclick: (/** @type {MouseEvent} */ event) =>
          this.session.pick(
            object,
            event.shiftKey || event.ctrlKey || event.metaKey || this.touchMore(event),
          ),
      },
      swatch,
      h(
        "span",
        { class: "item-text" },
        h("span", { class: "item-name" }, `Object ${object}`),
        meta,
      ),
      place,
    );
    const eye = iconButton("eye", "", () => this.toggle(object), { class: "tiny" });
    return { element: h("li", {}, button, eye), button, place, eye, meta };
  }

  /** Without a keyboard, a tap adds a second object. @param {MouseEvent} event */
  touchMore(event) {
    return (
      event instanceof PointerEvent &&
      event.pointerType === "touch" &&
      this.store.state.picked.length === 1
    );
  }

  /** @param {number} object */
  toggle(object) {
    const { hidden } = this.store.state;
    this.store.set({
      hidden: hidden.includes(object)
        ? hidden.filter((other) => other !== object)
        : [...hidden, object],
    });
  }

  mark() {
    const { picked, hidden, moving, range, results } = this.store.state;
    for (const [object, row] of this.rows) {
      row.button.setAttribute("aria-pressed", String(picked.includes(object)));
      const away = hidden.includes(object);
      const label = away ? `Show object ${object}` : `Hide object ${object}`;
      if (row.eye.getAttribute("aria-label") !== label) {
        row.eye.replaceChildren(icon(away ? "eyeOff" : "eye"));
        row.eye.setAttribute("aria-label", label);
        row.eye.title = label;
      }
      row.element.classList.toggle("away", away);
    }
    const only = results?.objects.length === 1;
    const one = picked.length === 1 || (only && !picked.length);
    const enable = (/** @type {HTMLElement} */ node, /** @type {boolean} */ on) =>
      node.toggleAttribute("disabled", !on);
    for (const name of /** @type {const} */ (["swap", "merge"]))
      enable(this.tools[name], picked.length === 2);
    for (const name of /** @type {const} */ (["split", "move", "trash"]))
      enable(this.tools[name], one);
    this.tools.move.setAttribute("aria-pressed", String(moving));
    setText(
      /** @type {Element} */ (this.tools.nothing.lastChild),
      range ? "Nothing in range" : "Nothing here",
    );
    setText(this.hint, hintText(picked.length, Boolean(only), moving, range));
  }

  listHistory() {
    const { details } = this.store.state;
    const applied = details?.corrections?.applied ?? [];
    const undone = details?.corrections?.undone ?? [];
    this.undo.toggleAttribute("disabled", !applied.length);
    this.redo.toggleAttribute("disabled", !undone.length);
    this.relearn.hidden = !applied.length;
    this.noHistory.hidden = applied.length > 0;
    const entry = (/** @type {any} */ correction, /** @type {boolean} */ gone) => {
      const frame = correctionFrame(correction);
      return h(
        "li",
        { class: gone ? "undone" : "" },
        h(
          "button",
          {
            type: "button",
            class: "link",
            disabled: frame === null || gone,
            onclick: () => frame !== null && this.playhead.seek(frame),
          },
          correctionSentence(correction),
        ),
      );
    };
    fill(
      this.history,
      ...applied.map((/** @type {any} */ correction) => entry(correction, false)),
      ...[...undone].reverse().map((correction) => entry(correction, true)),
    );
  }

  /** Not for every frame of a playing video, which would be too fast to read. */
  schedulePlaces() {
    this.timer ||= window.setTimeout(() => {
      this.timer = 0;
      this.showPlaces();
    }, 80);
  }

  showPlaces() {
    if (!this.rows.size || !this.element.offsetParent) return;
    const places = new Map(this.session.placesHere().map((place) => [place.object, place]));
    for (const [object, row] of this.rows) {
      const place = places.get(object);
      setText(row.place, place ? `${place.x.toFixed(0)}, ${place.y.toFixed(0)}` : "–");
      row.place.classList.toggle("unsure", Boolean(place && place.confidence < UNSURE));
      row.place.title = place ? `confidence ${place.confidence.toFixed(2)}` : "not in this frame";
    }
  }
}

/**
 * @param {number} count Of selected objects.
 * @param {boolean} only Whether there is one object only.
 * @param {boolean} moving
 * @param {[number, number]|null} range
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
