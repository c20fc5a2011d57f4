/**
 * One picture on a canvas, with what was found drawn over it. The picture and what is drawn always
 * belong to the same frame: until the picture of a new frame is here, the old one stays as it was.
 */

import { api } from "./api.js";
import { h, setText } from "./dom.js";
import { drawScene } from "./draw.js";
import { widthFor } from "./frames.js";

const PATIENCE = 150; // ms until a spinner says that a picture is on its way

export class Viewer {
  /**
   * @param {import("./frames.js").Frames} frames
   * @param {import("./viewport.js").Viewport} viewport
   * @param {() => import("./draw.js").Look} look
   */
  constructor(frames, viewport, look) {
    this.frames = frames;
    this.viewport = viewport;
    this.look = look;
    /** @type {import("./scene.js").Scene|null} */
    this.scene = null;
    this.wanted = 0; // frame to show
    /** @type {number[]} */
    this.asked = []; // frames that were to be shown lately
    /** @type {number|null} */
    this.shown = null; // frame on the canvas
    this.outlined = false; // whether its outlines are drawn
    /** @type {{url: string, bitmap: ImageBitmap|null}|null} */
    this.still = null;
    this.scheduled = 0;
    this.timer = 0; // until the spinner
    this.canvas = /** @type {HTMLCanvasElement} */ (
      h("canvas", { class: "picture", role: "img", "aria-label": "Video frame", testid: "picture" })
    );
    this.label = h("div", { class: "pane-label", hidden: true });
    this.spinner = h("div", { class: "spinner", "aria-hidden": "true", hidden: true });
    this.message = h("div", { class: "pane-message", role: "status", hidden: true });
    this.element = h("div", { class: "pane" }, this.canvas, this.label, this.spinner, this.message);
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    frames.listeners.add((wish) => this.arrived(wish));
    viewport.addEventListener("change", () => this.schedule());
    new ResizeObserver(() => this.schedule()).observe(this.element);
  }

  /** @param {import("./scene.js").Scene|null} scene */
  setScene(scene) {
    const another = scene?.source !== this.scene?.source;
    this.scene = scene;
    if (another) {
      this.shown = null;
      this.outlined = false;
    }
    this.schedule();
  }

  /** @param {string|null} text */
  setLabel(text) {
    this.label.hidden = !text;
    setText(this.label, text ?? "");
  }

  /** Width of the pictures to ask for; more when the view is zoomed in. */
  get width() {
    if (!this.scene) return 0;
    const { scale } = this.placement();
    return widthFor(scale * this.scene.width * devicePixelRatio, this.scene.width);
  }

  placement() {
    const { width, height } = this.scene ?? { width: 1, height: 1 };
    return this.viewport.place(
      width,
      height,
      this.canvas.clientWidth || 1,
      this.canvas.clientHeight || 1,
    );
  }

  /** Whether the picture of a frame is at hand. @param {number} frame */
  has(frame) {
    const scene = this.scene;
    if (!scene || scene.source === null || frame > scene.last) return true;
    if (scene.image(frame))
      return this.still?.url === scene.image(frame) && this.still.bitmap !== null;
    return this.frames.get(scene.source, frame, this.width) !== null;
  }

  /**
   * Show a frame as soon as its picture is loaded.
   *
   * @param {number} frame
   */
  show(frame) {
    if (frame !== this.wanted) this.asked = [...this.asked.slice(-8), frame];
    this.wanted = frame;
    this.schedule();
  }

  /**
   * Say which frames to fetch, most urgent first.
   *
   * @param {number[]} list
   * @param {(frame: number) => boolean} [useful]
   * @param {boolean} [near] Whether frames before them will do at first.
   */
  want(list, useful = () => false, near = false) {
    const scene = this.scene;
    if (!scene?.source || scene.image(this.wanted)) {
      this.frames.want(this, []);
      return;
    }
    const source = scene.source;
    const width = this.width;
    const bytes =
      4 * (width || scene.width) * (scene.height / scene.width) * (width || scene.width);
    const wishes = list
      .filter((frame) => frame <= scene.last)
      .slice(0, this.frames.room(bytes))
      .map((frame) => ({ source, frame, width, near }));
    this.frames.want(this, wishes, (wish) => wish.source === source && useful(wish.frame));
  }

  /** @param {import("./frames.js").Wish} wish */
  arrived(wish) {
    if (wish.source !== this.scene?.source) return;
    if (wish.frame === this.wanted) this.schedule();
    else if ((wish.near || this.asked.includes(wish.frame)) && !this.has(this.wanted)) {
      // Of the frames that a drag passes, those that come are shown on the way.
      this.shown = wish.frame;
      this.schedule();
    }
  }

  /** Draw before the next repaint, once however often this is called. */
  schedule() {
    if (this.scheduled) return;
    this.scheduled = requestAnimationFrame(() => {
      this.scheduled = 0;
      this.draw();
    });
  }

  draw() {
    this.resize();
    const scene = this.scene;
    if (!scene) {
      this.clear();
      this.wait(false);
      return;
    }
    const ready = this.has(this.wanted);
    if (ready) this.shown = this.wanted;
    else if (scene.image(this.wanted))
      this.fetchStill(/** @type {string} */ (scene.image(this.wanted)));
    this.wait(!ready);
    if (this.shown === null || (!ready && !this.has(this.shown))) {
      if (this.shown === null) this.clear();
      return; // the canvas keeps the last complete picture
    }
    this.paint(scene, this.shown);
  }

  /** @param {import("./scene.js").Scene} scene @param {number} frame */
  paint(scene, frame) {
    const { context } = this;
    const placement = this.placement();
    const { scale, left, top } = placement;
    this.clear();
    const bitmap = this.bitmap(scene, frame);
    const size = /** @type {const} */ ([left, top, scale * scene.width, scale * scene.height]);
    if (bitmap) {
      // Single pixels are worth seeing from here on.
      context.imageSmoothingEnabled = scale * devicePixelRatio < 6;
      context.imageSmoothingQuality = "high";
      context.drawImage(bitmap, ...size);
    } else {
      context.fillStyle = "rgb(128 128 128 / 0.12)";
      context.fillRect(...size);
    }
    this.outlined = drawScene(context, scene, frame, placement, this.look());
  }

  /** @param {import("./scene.js").Scene} scene @param {number} frame */
  bitmap(scene, frame) {
    if (scene.source === null || frame > scene.last) return null;
    if (scene.image(frame)) return this.still?.bitmap ?? null;
    return this.frames.get(scene.source, frame, this.width);
  }

  /** @param {string} url */
  async fetchStill(url) {
    if (this.still?.url === url) return;
    this.still = { url, bitmap: null };
    try {
      const bitmap = await createImageBitmap(await api.picture(url, new AbortController().signal));
      if (this.still?.url !== url) return bitmap.close();
      this.still = { url, bitmap };
      if (this.scene) [this.scene.width, this.scene.height] = [bitmap.width, bitmap.height];
      this.schedule();
    } catch {
      // The next message of the run names another picture.
    }
  }

  resize() {
    const width = Math.round(this.canvas.clientWidth * devicePixelRatio);
    const height = Math.round(this.canvas.clientHeight * devicePixelRatio);
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    this.context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  }

  clear() {
    this.context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
  }

  /** @param {boolean} waiting */
  wait(waiting) {
    const scene = this.scene;
    const error =
      waiting && scene?.source ? this.frames.error(scene.source, this.wanted, this.width) : null;
    this.message.hidden = !error;
    setText(this.message, error ?? "");
    if (waiting && !error) {
      this.timer ||= window.setTimeout(() => (this.spinner.hidden = false), PATIENCE);
    } else {
      clearTimeout(this.timer);
      this.timer = 0;
      this.spinner.hidden = true;
    }
  }

  /**
   * Pixel of the video under a point of the screen.
   *
   * @param {number} clientX
   * @param {number} clientY
   */
  pixelAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const { scale, left, top } = this.placement();
    return { x: (clientX - box.left - left) / scale, y: (clientY - box.top - top) / scale, scale };
  }

  /** The frame as it is shown, in the size of the video or larger, as a canvas of its own. */
  snapshot() {
    if (!this.scene || this.shown === null) return null;
    const factor = Math.max(1, Math.ceil(960 / this.scene.width));
    const canvas = document.createElement("canvas");
    canvas.width = factor * this.scene.width;
    canvas.height = factor * this.scene.height;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const bitmap = this.bitmap(this.scene, this.shown);
    if (bitmap) context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    drawScene(context, this.scene, this.shown, { scale: factor, left: 0, top: 0 }, this.look());
    return canvas;
  }
}
