/**
 * The centre of the page: one picture, or two to compare. Decides what they show (a video, results,
 * or what a run at work sees) and which frames are fetched.
 */

import { fill, h } from "./dom.js";
import { objectAt } from "./draw.js";
import { addGestures } from "./gestures.js";
import { previewScene, resultsScene, sourceScene } from "./scene.js";
import { isAtWork } from "./store.js";
import { Viewer } from "./viewer.js";
import { Viewport } from "./viewport.js";

const AHEAD = 24; // frames fetched ahead while playing
const LOOP = 90; // ms per frame of what a run at work shows
const REACH = 24; // CSS pixels around a place in which a click picks its object

export class Stage {
  /**
   * @param {Element} root
   * @param {import("./store.js").Store} store
   * @param {import("./playhead.js").Playhead} playhead
   * @param {import("./frames.js").Frames} frames
   * @param {{onpick: (object: number|null, more: boolean) => void, onmove: (x: number, y: number) => void,
   *     empty: () => HTMLElement}} handlers
   */
  constructor(root, store, playhead, frames, handlers) {
    this.store = store;
    this.playhead = playhead;
    this.frames = frames;
    this.handlers = handlers;
    this.viewport = new Viewport();
    this.root = root;
    /** @type {{x: number, y: number}|null} Where the keyboard would move an object. */
    this.aim = null;
    /** @type {HTMLElement|null} Shown instead of pictures, for the camera. */
    this.takenBy = null;
    /** @type {Viewer[]} */
    this.viewers = [this.addViewer(), this.addViewer()];
    this.waiting = false; // for the picture of the playhead
    this.emptyFor = ""; // what the welcome was made for
    /** @type {HTMLElement|null} */
    this.emptyElement = null;
    this.liveFrame = 0; // place in the frames of a run at work
    /** @type {import("./scene.js").Scene & {frames: number[]}|null} */
    this.preview = null;
    playhead.available = (frame) => this.active.every((viewer) => viewer.has(frame));
    playhead.addEventListener("frame", () => this.update());
    store.follow(
      ["open", "results", "other", "details", "sources", "live", "follow", "runs", "loaded"],
      () => this.refresh(),
    );
    store.follow(["picked", "hidden", "layers", "arrived"], () => this.redraw());
    store.follow(["moving"], () => root.classList.toggle("aiming", store.state.moving));
    this.viewport.addEventListener("change", () => this.update());
    frames.listeners.add(() => {
      if (this.waiting && !this.live) this.update();
    });
    setInterval(() => this.loop(), LOOP);
  }

  addViewer() {
    const viewer = new Viewer(this.frames, this.viewport, () => ({
      layers: this.store.state.layers,
      picked: this.store.state.picked,
      hidden: this.store.state.hidden,
      fps: this.playhead.fps,
      aim: this.aim,
    }));
    addGestures(viewer, {
      onclick: (x, y, scale, event) => this.click(viewer, x, y, scale, event),
      onstep: (count) => this.playhead.step(count),
    });
    return viewer;
  }

  /** Viewers that show something. */
  get active() {
    return this.viewers.filter((viewer) => viewer.scene);
  }

  get main() {
    return this.viewers[0];
  }

  /** Whether the pictures are those of a run at work. */
  get live() {
    const run = this.store.openRun;
    return Boolean(this.preview && run && isAtWork(run) && this.store.state.follow);
  }

  refresh() {
    const { open, results, other, sources, live } = this.store.state;
    const preview = open.kind === "run" ? live?.preview : null;
    const from = preview && sources.find((source) => source.id === preview.source);
    this.preview = from && preview.frames?.length ? previewScene(preview, from) : null;
    const [left, right] = this.viewers;
    left.setScene(this.live ? this.preview : this.plainScene());
    right.setScene(results && other ? resultsScene(other.results) : null);
    for (const found of [results, other?.results]) {
      const arrived = () => this.store.set({ arrived: this.store.state.arrived + 1 });
      if (found) found.tiles.chunks.onload = arrived;
      if (found?.outlines) found.outlines.chunks.onload = arrived;
    }
    left.setLabel(other ? (this.store.openRun?.name ?? null) : null);
    right.setLabel(other ? `${other.run.name} (dashed below)` : null);
    this.arrange();
    this.update();
  }

  /** Put the panes into the page, touching it only if they changed. */
  arrange() {
    let elements = this.active.map((viewer) => viewer.element);
    if (this.takenBy) elements = [this.takenBy];
    else if (!elements.length) {
      const { open, loaded, sources, runs } = this.store.state;
      const key = [open.kind, open.id, loaded, sources.length, runs.length].join();
      if (this.emptyFor !== key) {
        this.emptyFor = key;
        this.emptyElement = this.handlers.empty();
      }
      elements = [/** @type {HTMLElement} */ (this.emptyElement)];
    }
    const now = [...this.root.children];
    if (
      now.length !== elements.length ||
      now.some((element, place) => element !== elements[place])
    ) {
      fill(this.root, ...elements);
    }
  }

  /** @returns {import("./scene.js").Scene|null} */
  plainScene() {
    const { open, results } = this.store.state;
    if (open.kind === "run" && results) return resultsScene(results);
    const source = this.store.openSource;
    return source && !source.error && open.kind !== "camera" ? sourceScene(source) : null;
  }

  /** Show the frame of the playhead, and fetch what comes next. */
  update() {
    if (this.live) {
      this.wantPreview();
      return;
    }
    const { playhead } = this;
    // What is to be seen now comes first, and alone: a decoder does one thing at a time.
    const seen = this.active.every((viewer) => viewer.has(playhead.frame));
    const list = playhead.playing || seen ? playhead.ahead(AHEAD) : [playhead.frame];
    this.waiting = !seen;
    // While it plays, a picture later than the one shown is of use even if it comes late.
    const useful = (/** @type {number} */ frame) =>
      playhead.playing &&
      frame > playhead.frame &&
      frame < playhead.due + 2 * AHEAD * playhead.stride;
    for (const viewer of this.active) {
      viewer.show(playhead.frame);
      viewer.want(list, useful, playhead.scrubbing);
    }
  }

  redraw() {
    for (const viewer of this.active) viewer.schedule();
  }

  wantPreview() {
    const { preview } = this;
    if (!preview) return;
    const frames = preview.frames;
    const place = this.liveFrame % frames.length;
    this.main.want([...frames.slice(place), ...frames.slice(0, place)], () => true);
  }

  /** Next frame of a run at work whose picture is at hand. */
  loop() {
    if (!this.live || !this.preview || document.hidden) return;
    const { frames } = this.preview;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) this.liveFrame = frames.length - 1;
    else {
      for (let step = 1; step <= frames.length; step += 1) {
        const next = (this.liveFrame + step) % frames.length;
        if (this.main.has(frames[next])) {
          this.liveFrame = next;
          break;
        }
      }
    }
    this.wantPreview();
    const frame = frames[this.liveFrame % frames.length];
    this.main.show(frame);
    this.playhead.place(frame, false);
  }

  /**
   * @param {Viewer} viewer
   * @param {number} x In pixels of the video.
   * @param {number} y
   * @param {number} scale
   * @param {PointerEvent} event
   */
  click(viewer, x, y, scale, event) {
    if (viewer !== this.main || !viewer.scene || viewer.shown === null || this.live) return;
    const { width, height } = viewer.scene;
    if (this.store.state.moving) {
      if (viewer.shown === this.playhead.frame && x >= 0 && y >= 0 && x < width && y < height) {
        this.handlers.onmove(x, y);
      }
      return;
    }
    const object = objectAt(
      viewer.scene,
      viewer.shown,
      x,
      y,
      REACH / scale,
      this.store.state.hidden,
    );
    this.handlers.onpick(object, event.shiftKey || event.ctrlKey || event.metaKey);
  }
}

/** What the stage says when there is nothing to show. */
export function emptyStage(
  /** @type {string} */ title,
  /** @type {string} */ text,
  /** @type {(Node|null)[]} */ ...rest
) {
  return h("div", { class: "empty-stage" }, h("h2", {}, title), h("p", {}, text), ...rest);
}
