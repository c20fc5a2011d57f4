/** The time lines below the picture. Dragging moves the playhead, the wheel zooms into time. */

import { h, setText } from "./dom.js";
import { clock, short } from "./format.js";
import { prepare, screenPalette } from "./palette.js";
import { MOST_LANES, timeOf } from "./results.js";
import { rowOf } from "./tables.js";
import {
  GUTTER,
  MARGIN,
  drawTimeline,
  frameToX,
  laneName,
  laneUnit,
  shownTiles,
} from "./timeline_draw.js";

const SHORTEST = 20; // frames that are seen at least

export class Timeline {
  /**
   * @param {Element} root
   * @param {import("./store.js").Store} store
   * @param {import("./playhead.js").Playhead} playhead
   */
  constructor(root, store, playhead) {
    this.root = root;
    this.store = store;
    this.playhead = playhead;
    /** @type {[number, number]} */
    this.window = [0, 1];
    this.canvas = /** @type {HTMLCanvasElement} */ (
      h("canvas", { class: "lanes", role: "img", "aria-label": "Time lines", testid: "timeline" })
    );
    this.needle = h("div", { class: "needle", "aria-hidden": "true" });
    this.tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.hint = h("p", { class: "lanes-hint" });
    this.onwindow = () => {};
    /** @type {import("./tiles.js").Tile[]} Tiles that are drawn. */
    this.drawn = [];
    /** @type {PointerEvent|null} Where the pointer was last. */
    this.pointed = null;
    root.append(this.canvas, this.needle, this.tip, this.hint);
    new ResizeObserver(() => this.schedule()).observe(this.canvas);
    playhead.addEventListener("range", () => this.fit());
    playhead.addEventListener("frame", () => this.follow());
    const shown = /** @type {const} */ (["results", "other", "picked", "hidden", "range"]);
    store.follow([...shown, "open", "follow"], () => this.schedule());
    store.follow(["arrived"], () => {
      if (this.outdated) this.schedule();
      if (this.pointed && !this.tip.hidden) this.showTip(this.pointed);
    });
    this.addPointer();
  }

  /** What is drawn, or null if there is nothing. @returns {import("./timeline_draw.js").TimelineModel|null} */
  get model() {
    const { results, other, picked, hidden, range } = this.store.state;
    if (!results || !results.objects.length) return null;
    return {
      results,
      other: other?.results ?? null,
      window: this.window,
      fps: this.playhead.fps,
      picked,
      hidden,
      range,
      most: MOST_LANES,
    };
  }

  /** Whether other tiles are here than those that are drawn; missing ones are asked for again. */
  get outdated() {
    const { model, drawn } = this;
    const tiles = model ? shownTiles(model, this.canvas.clientWidth) : [];
    return tiles.length !== drawn.length || tiles.some((tile, place) => tile !== drawn[place]);
  }

  fit() {
    this.setWindow(this.playhead.first, this.playhead.last);
  }

  /** @param {number} first @param {number} last */
  setWindow(first, last) {
    const whole = this.playhead.last - this.playhead.first;
    const length = Math.min(Math.max(last - first, Math.min(SHORTEST, whole)), whole);
    const start = Math.min(Math.max(first, this.playhead.first), this.playhead.last - length);
    this.window = [start, Math.max(start + length, start + 1)];
    this.schedule();
    this.onwindow();
  }

  /** @param {number} factor @param {number} frame That stays where it is. */
  zoom(factor, frame = this.playhead.frame) {
    const [first, last] = this.window;
    const length = Math.max(SHORTEST, (last - first) / factor);
    const share = (frame - first) / (last - first);
    this.setWindow(frame - share * length, frame + (1 - share) * length);
  }

  /** Keep the playhead in view: a new page when it leaves. */
  follow() {
    const { frame } = this.playhead;
    const [first, last] = this.window;
    const length = last - first;
    if (!this.dragging && frame > last) this.setWindow(frame - 0.1 * length, frame + 0.9 * length);
    else if (!this.dragging && frame < first)
      this.setWindow(frame - 0.9 * length, frame + 0.1 * length);
    this.placeNeedle();
  }

  schedule() {
    this.scheduled ||= requestAnimationFrame(() => {
      this.scheduled = 0;
      this.draw();
    });
  }

  draw() {
    const { context, width, height } = prepare(this.canvas);
    const { model } = this;
    this.needle.hidden = !model;
    this.hint.hidden = Boolean(model);
    this.canvas.classList.toggle("ready", Boolean(model));
    this.root.classList.toggle("idle", !model);
    this.drawn = model ? shownTiles(model, width) : [];
    if (!model) {
      setText(this.hint, this.emptyText());
      return;
    }
    drawTimeline(context, model, width, height, screenPalette());
    this.placeNeedle();
  }

  emptyText() {
    const { open, results } = this.store.state;
    if (results) return "Every object of this sequence has been deleted. Undo brings them back.";
    if (this.store.openRun?.state === "done") return "Reading the results…";
    if (open.kind === "run") return "Time lines appear here when the run is finished.";
    if (open.kind === "source") return "Learn from this video to see its time lines here.";
    return "Time lines of position, speed and confidence appear here.";
  }

  placeNeedle() {
    const { model } = this;
    if (!model) return;
    const x = frameToX(model, this.canvas.clientWidth, this.playhead.frame);
    this.needle.style.transform = `translateX(${x.toFixed(1)}px)`;
    this.needle.hidden = x < GUTTER - 1 || x > this.canvas.clientWidth + 1;
  }

  /** @param {number} clientX */
  frameAt(clientX) {
    const box = this.canvas.getBoundingClientRect();
    const share = (clientX - box.left - GUTTER) / Math.max(1, box.width - GUTTER - MARGIN);
    return this.window[0] + share * (this.window[1] - this.window[0]);
  }

  addPointer() {
    const { canvas, playhead } = this;
    /** @type {number|null} Frame where a range begins. */
    let rangeStart = null;
    /** @type {Map<number, number>} Places of the fingers. */
    const fingers = new Map();
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button || !this.model) return;
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, event.clientX);
      if (fingers.size > 1) return;
      this.dragging = true;
      playhead.pause();
      rangeStart = event.shiftKey ? this.clamp(this.frameAt(event.clientX)) : null;
      this.drag(event, rangeStart);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (fingers.size === 2) this.pinch(event, fingers);
      else if (this.dragging) this.drag(event, rangeStart);
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event.clientX);
      this.showTip(event);
    });
    const end = (/** @type {PointerEvent} */ event) => {
      fingers.delete(event.pointerId);
      if (!this.dragging || fingers.size) return;
      this.dragging = false;
      if (rangeStart === null) playhead.seek(playhead.frame); // now the frames around it are fetched
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** Two fingers zoom into time. @param {PointerEvent} event @param {Map<number, number>} fingers */
  pinch(event, fingers) {
    const before = fingers.get(event.pointerId);
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (before === undefined || other === undefined || Math.abs(before - other) < 8) return;
    this.zoom(Math.abs(event.clientX - other) / Math.abs(before - other), this.frameAt(other));
  }

  /** @param {number} frame */
  clamp(frame) {
    return Math.min(this.playhead.last, Math.max(this.playhead.first, Math.round(frame)));
  }

  /** @param {PointerEvent} event @param {number|null} rangeStart */
  drag(event, rangeStart) {
    const frame = this.clamp(this.frameAt(event.clientX));
    if (rangeStart === null) {
      if (frame !== this.playhead.frame) this.playhead.seek(frame, { scrubbing: true });
    } else {
      this.store.set({ range: [Math.min(rangeStart, frame), Math.max(rangeStart, frame)] });
    }
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!this.model) return;
    event.preventDefault();
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) {
      const [first, last] = this.window;
      const shift = ((event.deltaX || event.deltaY) / this.canvas.clientWidth) * (last - first);
      this.setWindow(first + shift, last + shift);
    } else {
      this.zoom(
        Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)),
        this.frameAt(event.clientX),
      );
    }
  }

  /** Values under the pointer. @param {PointerEvent} event */
  showTip(event) {
    const { model } = this;
    this.pointed = event;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.tip.hidden = !model || x < GUTTER || event.pointerType === "touch";
    if (this.tip.hidden || !model) return;
    const frame = this.clamp(this.frameAt(event.clientX));
    const lanes = model.results.columns.slice(0, model.most);
    const lane =
      lanes[
        Math.min(
          lanes.length - 1,
          Math.floor(((event.clientY - box.top) / (box.height - 18)) * lanes.length),
        )
      ];
    const tile = model.results.tiles.at(frame);
    const shown = model.results.objects.filter(
      ({ object }) =>
        !model.hidden.includes(object) && (!model.picked.length || model.picked.includes(object)),
    );
    const values = shown.slice(0, 4).map(({ object }) => {
      const track = tile?.get(object);
      const row = track ? rowOf(track, frame) : -1;
      const none = tile ? "–" : "…"; // of this frame, or as long as its rows are on their way
      const value = track && row >= 0 ? short(track.columns[lane][row]) : none;
      return shown.length > 1 ? `${object}: ${value}` : value;
    });
    const more = shown.length > 4 ? " …" : "";
    const when = clock(timeOf(model.results, frame, model.fps));
    setText(
      this.tip,
      `frame ${frame} · ${when} · ${laneName(lane)} ${values.join("  ")}${more} ${laneUnit(lane)}`,
    );
    const left = Math.min(x + 12, box.width - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${Math.max(0, left)}px, 4px)`;
  }
}
