/** The whole video as one strip: scrub in it, see what is marked, and which part the time lines show. */

import { h } from "./dom.js";
import { clock } from "./format.js";
import { prepare, screenPalette } from "./palette.js";
import { timeOf } from "./results.js";

export class Overview {
  /**
   * @param {Element} root
   * @param {import("./store.js").Store} store
   * @param {import("./playhead.js").Playhead} playhead
   * @param {import("./timeline.js").Timeline} timeline
   */
  constructor(root, store, playhead, timeline) {
    this.store = store;
    this.playhead = playhead;
    this.timeline = timeline;
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { "aria-hidden": "true" }));
    this.knob = h("div", { class: "knob", "aria-hidden": "true" });
    this.element = h(
      "div",
      {
        class: "overview",
        role: "slider",
        tabindex: "0",
        "aria-label": "Frame",
        testid: "scrubber",
      },
      this.canvas,
      this.knob,
    );
    root.append(this.element);
    new ResizeObserver(() => this.schedule()).observe(this.element);
    playhead.addEventListener("frame", () => this.place());
    playhead.addEventListener("range", () => this.schedule());
    store.follow(["results", "range", "open", "follow"], () => this.schedule());
    timeline.onwindow = () => this.schedule();
    this.addPointer();
  }

  schedule() {
    this.scheduled ||= requestAnimationFrame(() => {
      this.scheduled = 0;
      this.draw();
      this.place();
    });
  }

  /** @param {number} frame @param {number} width */
  x(frame, width) {
    const { first, last } = this.playhead;
    return last === first ? 0 : ((frame - first) / (last - first)) * width;
  }

  place() {
    const { frame, first, last, fps } = this.playhead;
    const { results } = this.store.state;
    const usable = last > first;
    this.knob.hidden = !usable;
    this.element.setAttribute("aria-disabled", String(!usable));
    this.element.setAttribute("aria-valuemin", String(first));
    this.element.setAttribute("aria-valuemax", String(last));
    this.element.setAttribute("aria-valuenow", String(frame));
    this.element.setAttribute(
      "aria-valuetext",
      `frame ${frame} of ${last}, ${clock(timeOf(results, frame, fps))}`,
    );
    this.knob.style.transform = `translateX(${this.x(frame, this.element.clientWidth).toFixed(1)}px)`;
  }

  draw() {
    const { context, width, height } = prepare(this.canvas);
    const { results, range } = this.store.state;
    const { first, last } = this.playhead;
    if (last === first) return;
    const palette = screenPalette();
    const middle = height / 2;
    const bar = (
      /** @type {number} */ from,
      /** @type {number} */ to,
      /** @type {number} */ top,
      /** @type {number} */ tall,
    ) => {
      const left = this.x(from, width);
      context.fillRect(left, top, Math.max(1.5, this.x(to, width) - left), tall);
    };
    context.fillStyle = palette.line;
    bar(first, last, middle - 2, 4);
    context.fillStyle = palette.warn;
    for (const [from, to] of results?.unsure ?? []) bar(from, to + 1, middle - 2, 4);
    context.fillStyle = palette.mark;
    for (const crossing of results?.crossings ?? [])
      diamond(context, this.x(crossing.first_frame, width), 5, 3.5);
    if (range) {
      context.fillStyle = palette.ink;
      context.globalAlpha = 0.18;
      bar(range[0], range[1] + 1, 1, height - 2);
      context.globalAlpha = 1;
    }
    const [from, to] = this.timeline.window;
    if (results && to - from < last - first - 1) {
      context.strokeStyle = palette.soft;
      context.lineWidth = 1;
      context.strokeRect(
        this.x(from, width) + 0.5,
        height - 6.5,
        Math.max(3, this.x(to, width) - this.x(from, width)) - 1,
        5,
      );
    }
  }

  addPointer() {
    const { element, playhead } = this;
    let dragging = false;
    const seek = (/** @type {PointerEvent} */ event) => {
      const box = element.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      const frame = Math.round(playhead.first + share * (playhead.last - playhead.first));
      if (frame !== playhead.frame) playhead.seek(frame, { scrubbing: true });
    };
    element.addEventListener("pointerdown", (event) => {
      if (event.button || playhead.last === playhead.first) return;
      element.setPointerCapture(event.pointerId);
      dragging = true;
      playhead.pause();
      seek(event);
    });
    element.addEventListener("pointermove", (event) => dragging && seek(event));
    for (const name of /** @type {const} */ (["pointerup", "pointercancel"])) {
      element.addEventListener(name, () => {
        if (dragging) playhead.seek(playhead.frame);
        dragging = false;
      });
    }
    element.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        playhead.step(Math.sign(event.deltaY || event.deltaX) * (event.shiftKey ? 10 : 1));
      },
      { passive: false },
    );
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} radius */
function diamond(context, x, y, radius) {
  context.beginPath();
  context.moveTo(x, y - radius);
  context.lineTo(x + radius, y);
  context.lineTo(x, y + radius);
  context.lineTo(x - radius, y);
  context.fill();
}
