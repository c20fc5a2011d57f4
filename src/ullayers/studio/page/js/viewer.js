/**
 * One picture on a canvas, with what was found drawn over it. The picture and what is drawn always
 * belong to the same frame: until the picture of a new frame is here, the old one stays as it was.
 */

import { api } from "./api.js";
import { sharpen } from "./charts.js";
import { beforeRepaint, h, setText } from "./dom.js";
import { widthFor } from "./frames.js";
import { drawScene } from "./scene.js";

/** @import {Frames, Wish} from "./frames.js" */
/** @import {Look, Placement, Scene} from "./scene.js" */

const PATIENCE = 150; // ms until a spinner says that a picture is on its way
const CLICK = 5; // CSS pixels that a pointer may move in a click
const LARGEST = 32; // zoom

/** Which part of the picture is seen: shared by all viewers, so compared runs move together. */
export class Viewport extends EventTarget {
  constructor() {
    super();
    this.zoom = 1; // 1 shows the whole picture
    this.x = 0.5; // centre of the view, in 0..1 of the picture
    this.y = 0.5;
  }

  fit() {
    this.set(1, 0.5, 0.5);
  }

  /** @param {number} zoom @param {number} x @param {number} y */
  set(zoom, x, y) {
    this.zoom = Math.min(LARGEST, Math.max(1, zoom));
    // The view never leaves the picture.
    const margin = 0.5 / this.zoom;
    this.x = Math.min(1 - margin, Math.max(margin, x));
    this.y = Math.min(1 - margin, Math.max(margin, y));
    this.dispatchEvent(new Event("change"));
  }

  /**
   * Zoom so that a point of the picture stays where it is on the screen.
   *
   * @param {number} factor
   * @param {number} x In 0..1 of the picture.
   * @param {number} y
   */
  zoomAt(factor, x = this.x, y = this.y) {
    const zoom = Math.min(LARGEST, Math.max(1, this.zoom * factor));
    const share = this.zoom / zoom;
    this.set(zoom, x + (this.x - x) * share, y + (this.y - y) * share);
  }

  /**
   * How pixels of a video are placed on a canvas.
   *
   * @param {{width: number, height: number}} video
   * @param {number} width Of the canvas.
   * @param {number} height
   * @returns {Placement}
   */
  place(video, width, height) {
    const scale = this.zoom * Math.min(width / video.width, height / video.height);
    return {
      scale,
      left: width / 2 - scale * video.width * this.x,
      top: height / 2 - scale * video.height * this.y,
    };
  }
}

export class Viewer {
  /**
   * @param {Frames} frames
   * @param {Viewport} viewport
   * @param {() => Look} look
   * @param {(x: number, y: number, scale: number, event: PointerEvent) => void} onclick
   * @param {(count: number) => void} onstep
   */
  constructor(frames, viewport, look, onclick, onstep) {
    this.frames = frames;
    this.viewport = viewport;
    this.look = look;
    /** @type {Scene|null} */
    this.scene = null;
    this.wanted = 0; // frame to show
    /** @type {number[]} */
    this.asked = []; // frames that were to be shown lately
    /** @type {number|null} */
    this.shown = null; // frame on the canvas
    this.outlined = false; // whether its outlines are drawn
    /** @type {{url: string, bitmap: ImageBitmap|null}|null} */
    this.still = null;
    this.timer = 0; // until the spinner
    this.canvas = pictureCanvas("Video frame", "picture");
    this.label = h("div.pane-label", { hidden: true });
    this.spinner = h("div.spinner", { "aria-hidden": "true", hidden: true });
    this.message = h("div.pane-message", { role: "status", hidden: true });
    this.element = h("div.pane", this.canvas, this.label, this.spinner, this.message);
    this.schedule = beforeRepaint(() => this.draw());
    frames.listeners.add((wish) => this.arrived(wish));
    viewport.addEventListener("change", this.schedule);
    new ResizeObserver(this.schedule).observe(this.element);
    addGestures(this, onclick, onstep);
  }

  /** @param {Scene|null} scene @param {string|null} label */
  setScene(scene, label) {
    if (scene?.source !== this.scene?.source) {
      this.shown = null;
      this.outlined = false;
    }
    this.scene = scene;
    this.label.hidden = !label;
    setText(this.label, label ?? "");
    this.schedule();
  }

  /** Width of the pictures to ask for; more when the view is zoomed in. */
  get width() {
    if (!this.scene) return 0;
    const { scale } = this.placement();
    return widthFor(scale * this.scene.width * devicePixelRatio, this.scene.width);
  }

  placement() {
    const { clientWidth, clientHeight } = this.canvas;
    const video = this.scene ?? { width: 1, height: 1 };
    return this.viewport.place(video, clientWidth || 1, clientHeight || 1);
  }

  /** Whether the picture of a frame is at hand. @param {number} frame */
  has(frame) {
    const { scene } = this;
    if (!scene || scene.source === null || frame > scene.last) return true;
    return this.bitmap(scene, frame) !== null;
  }

  /** Show a frame as soon as its picture is loaded. @param {number} frame */
  show(frame) {
    if (frame !== this.wanted) this.asked = [...this.asked.slice(-8), frame];
    this.wanted = frame;
    this.schedule();
  }

  /**
   * Say which frames to fetch, most urgent first.
   *
   * @param {number[]} list
   * @param {(frame: number) => boolean} useful
   * @param {boolean} [near] Whether frames before them will do at first.
   */
  want(list, useful, near = false) {
    const { scene, width } = this;
    if (!scene?.source || scene.image()) {
      this.frames.want(this, []);
      return;
    }
    const { source } = scene;
    const across = width || scene.width;
    const bytes = 4 * across * (scene.height / scene.width) * across;
    const wishes = list
      .filter((frame) => frame <= scene.last)
      .slice(0, this.frames.room(bytes))
      .map((frame) => ({ source, frame, width, near }));
    this.frames.want(this, wishes, (wish) => wish.source === source && useful(wish.frame));
  }

  /** @param {Wish} wish */
  arrived(wish) {
    if (wish.source !== this.scene?.source) return;
    if (wish.frame === this.wanted) this.schedule();
    else if ((wish.near || this.asked.includes(wish.frame)) && !this.has(this.wanted)) {
      // Of the frames that a drag passes, those that come are shown on the way.
      this.shown = wish.frame;
      this.schedule();
    }
  }

  draw() {
    const sheet = sharpen(this.canvas);
    const clear = () => sheet.context.clearRect(0, 0, sheet.width, sheet.height);
    const { scene } = this;
    if (!scene) {
      clear();
      this.wait(false);
      return;
    }
    const ready = this.has(this.wanted);
    const still = scene.image();
    if (ready) this.shown = this.wanted;
    else if (still) this.fetchStill(still);
    this.wait(!ready);
    if (this.shown === null) clear();
    else if (ready || this.has(this.shown)) {
      clear();
      this.paint(sheet.context, scene, this.shown);
    } // else the canvas keeps the last complete picture
  }

  /** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} frame */
  paint(context, scene, frame) {
    const placement = this.placement();
    const { scale, left, top } = placement;
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

  /** @param {Scene} scene @param {number} frame */
  bitmap(scene, frame) {
    if (scene.source === null || frame > scene.last) return null;
    const still = scene.image();
    if (still) return this.still?.url === still ? this.still.bitmap : null;
    return this.frames.get({ source: scene.source, frame, width: this.width });
  }

  /** @param {string} url */
  async fetchStill(url) {
    if (this.still?.url === url) return;
    this.still = { url, bitmap: null };
    try {
      const bitmap = await createImageBitmap(await api.picture(url));
      if (this.still?.url !== url) return bitmap.close();
      this.still = { url, bitmap };
      if (this.scene) [this.scene.width, this.scene.height] = [bitmap.width, bitmap.height];
      this.schedule();
    } catch {
      // The next message of the run names another picture.
    }
  }

  /** @param {boolean} waiting */
  wait(waiting) {
    const source = waiting ? this.scene?.source : null;
    const { wanted: frame, width } = this;
    const error = source ? this.frames.error({ source, frame, width }) : null;
    this.message.hidden = !error;
    setText(this.message, error ?? "");
    if (waiting && !error) {
      this.timer ||= setTimeout(() => (this.spinner.hidden = false), PATIENCE);
    } else {
      clearTimeout(this.timer);
      this.timer = 0;
      this.spinner.hidden = true;
    }
  }

  /** Pixel of the video under a point. @param {number} clientX @param {number} clientY */
  pixelAt(clientX, clientY) {
    const box = this.canvas.getBoundingClientRect();
    const { scale, left, top } = this.placement();
    return { x: (clientX - box.left - left) / scale, y: (clientY - box.top - top) / scale, scale };
  }

  /** The frame as it is shown, in the size of the video or larger, as a canvas of its own. */
  snapshot() {
    if (!this.scene || this.shown === null) return null;
    const factor = Math.max(1, Math.ceil(960 / this.scene.width));
    const [width, height] = [factor * this.scene.width, factor * this.scene.height];
    const canvas = h("canvas", { width, height });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const bitmap = this.bitmap(this.scene, this.shown);
    if (bitmap) context.drawImage(bitmap, 0, 0, width, height);
    drawScene(context, this.scene, this.shown, { scale: factor, left: 0, top: 0 }, this.look());
    return canvas;
  }
}

/** @param {string} label @param {string} testid */
export function pictureCanvas(label, testid) {
  return h("canvas.picture", { role: "img", "aria-label": label, testid });
}

/** How much a wheel, or a pinch on a touchpad, zooms. @param {WheelEvent} event */
export function wheelFactor(event) {
  return Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002));
}

/**
 * Pointer and wheel on a picture: drag to pan, wheel or pinch to zoom, click to pick.
 *
 * @param {Viewer} viewer
 * @param {(x: number, y: number, scale: number, event: PointerEvent) => void} onclick
 * @param {(count: number) => void} onstep
 */
function addGestures(viewer, onclick, onstep) {
  const { canvas, viewport } = viewer;
  /** @type {Map<number, PointerEvent>} */
  const pointers = new Map();
  let travelled = 0;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    canvas.setPointerCapture(event.pointerId);
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, event);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const dx = event.clientX - before.clientX;
    const dy = event.clientY - before.clientY;
    travelled += Math.hypot(dx, dy);
    const other = [...pointers.values()].find(({ pointerId }) => pointerId !== event.pointerId);
    if (other && pointers.size === 2) {
      const old = Math.hypot(before.clientX - other.clientX, before.clientY - other.clientY);
      const now = Math.hypot(event.clientX - other.clientX, event.clientY - other.clientY);
      const middle = [event.clientX + other.clientX, event.clientY + other.clientY];
      if (old > 0) zoomUnder(middle[0] / 2, middle[1] / 2, now / old);
      pan(dx / 2, dy / 2);
    } else if (travelled > CLICK) pan(dx, dy);
    pointers.set(event.pointerId, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    const alone = pointers.size === 1;
    if (!pointers.delete(event.pointerId) || !alone || travelled > CLICK) return;
    const { x, y, scale } = viewer.pixelAt(event.clientX, event.clientY);
    onclick(x, y, scale, event);
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("dblclick", () => viewport.fit());
  const wheel = (/** @type {WheelEvent} */ event) => {
    event.preventDefault();
    // With shift, browsers report a wheel as moving sideways.
    if (event.shiftKey) onstep(Math.sign(event.deltaY || event.deltaX));
    else zoomUnder(event.clientX, event.clientY, wheelFactor(event));
  };
  canvas.addEventListener("wheel", wheel, { passive: false });

  /** @param {number} dx @param {number} dy */
  function pan(dx, dy) {
    if (!viewer.scene || viewport.zoom === 1) return;
    const { scale } = viewer.placement();
    const { width, height } = viewer.scene;
    const { zoom, x, y } = viewport;
    viewport.set(zoom, x - dx / (scale * width), y - dy / (scale * height));
  }

  /** @param {number} clientX @param {number} clientY @param {number} factor */
  function zoomUnder(clientX, clientY, factor) {
    if (!viewer.scene) return;
    const { x, y } = viewer.pixelAt(clientX, clientY);
    viewport.zoomAt(factor, x / viewer.scene.width, y / viewer.scene.height);
  }
}
