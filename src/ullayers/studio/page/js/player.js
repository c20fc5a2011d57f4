/**
 * The player: where in the video we are, its buttons, and the whole video as one strip. While it
 * plays, the clock decides which frame is due, and the newest picture at hand that is not later is
 * shown: a slow computer drops frames, but never lags.
 */

import { prepare } from "./charts.js";
import { beforeRepaint, button, h, iconButton, setIcon, setText } from "./dom.js";
import { clock, whole } from "./format.js";
import { timeOf } from "./results.js";

/** @import {App, Store} from "./store.js" */
/** @import {Timeline} from "./timeline.js" */

const STARVED = 1000; // ms without a new picture after which the clock waits
export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];

/** @typedef {[number, number, number, number]} Range First, last, frame rate, and where to start. */

export class Playhead extends EventTarget {
  constructor() {
    super();
    this.frame = 0;
    this.first = 0;
    this.last = 0;
    this.fps = 25;
    this.speed = 1;
    this.playing = false;
    /** @type {1|-1} Direction of travel, for what to fetch next. */
    this.direction = 1;
    this.scrubbing = false;
    this.stride = 1; // frames from one picture to the next while playing
    this.due = 0; // frame that the clock is at
    /** @type {(frame: number) => boolean} Whether the pictures of a frame are loaded. */
    this.available = () => true;
    this.anchor = { frame: 0, time: 0 };
    this.shown = 0; // when the last new picture came
    this.balance = 0; // of pictures that were in time and late
  }

  /** Set the range of frames, when another video is opened. @param {Range} range */
  setRange(range) {
    this.assume(range);
    this.dispatchEvent(new Event("range"));
    this.place(range[3], false);
  }

  /**
   * The same without telling anyone, so that those who are told of another video first do not ask
   * for a frame of the one before.
   *
   * @param {Range} range
   */
  assume([first, last, fps, frame]) {
    this.first = first;
    this.last = Math.max(first, last);
    this.fps = fps > 0 ? fps : 25;
    this.frame = this.due = Math.min(this.last, Math.max(first, frame));
  }

  /** The user wants to see a frame. @param {number} frame @param {boolean} [scrubbing] */
  seek(frame, scrubbing = false) {
    this.dispatchEvent(new Event("sought"));
    this.place(frame, scrubbing);
  }

  /** @param {number} frame @param {boolean} scrubbing */
  place(frame, scrubbing) {
    const place = Math.min(this.last, Math.max(this.first, Math.round(frame) || 0));
    this.scrubbing = scrubbing;
    if (place !== this.frame) this.direction = place > this.frame ? 1 : -1;
    this.frame = place;
    this.due = place;
    this.rewind();
    this.dispatchEvent(new Event("frame"));
  }

  /** Go to a frame and stay there. @param {number} frame */
  jump(frame) {
    this.pause();
    this.seek(frame);
  }

  /** @param {number} count */
  step(count) {
    this.jump(this.frame + count);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.playing || this.last === this.first) return;
    this.dispatchEvent(new Event("sought"));
    if (this.frame >= this.last) this.place(this.first, false);
    this.playing = true;
    this.direction = 1;
    this.scrubbing = false;
    this.stride = this.smallestStride;
    this.balance = 0;
    this.rewind();
    this.dispatchEvent(new Event("playing"));
    requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.due = this.frame;
    this.dispatchEvent(new Event("playing"));
    this.dispatchEvent(new Event("frame")); // what is fetched ahead changes
  }

  /** @param {number} speed */
  setSpeed(speed) {
    this.speed = speed;
    this.stride = this.smallestStride;
    this.rewind();
    this.dispatchEvent(new Event("playing"));
  }

  /** No screen shows more than about sixty pictures a second. */
  get smallestStride() {
    return Math.max(1, Math.ceil((this.fps * this.speed) / 60));
  }

  rewind() {
    this.anchor = { frame: this.frame, time: performance.now() };
    this.shown = this.anchor.time;
  }

  /** @param {number} now */
  tick(now) {
    if (!this.playing) return;
    const passed = Math.max(0, now - this.anchor.time);
    this.due = Math.min(
      this.last,
      Math.floor(this.anchor.frame + (passed * this.fps * this.speed) / 1000),
    );
    const ready = this.newestReady();
    if (ready > this.frame) {
      this.adapt(ready);
      this.frame = ready;
      this.shown = now;
    } else if (now - this.shown > STARVED) {
      this.due = this.frame + this.stride;
      this.rewind();
    }
    this.dispatchEvent(new Event("frame"));
    if (this.frame >= this.last) this.pause();
    else requestAnimationFrame((next) => this.tick(next));
  }

  newestReady() {
    const furthest = Math.max(this.frame, this.due - 250);
    for (let frame = this.due; frame > furthest; frame -= 1) {
      if (this.available(frame)) return frame;
    }
    return this.frame;
  }

  /** Ask for fewer frames if pictures come late, else for more again. @param {number} ready */
  adapt(ready) {
    this.balance += this.due - ready >= this.stride ? -2 : 1;
    if (this.balance < -8) {
      this.stride = Math.ceil(1.4 * this.stride);
      this.balance = 0;
    } else if (this.balance > 40) {
      this.stride = Math.max(this.smallestStride, Math.floor(0.75 * this.stride));
      this.balance = 0;
    }
  }

  /** Frames that will be wanted, most urgent first. @param {number} most */
  ahead(most) {
    if (this.scrubbing) return [this.frame];
    const list = [];
    const inside = (/** @type {number} */ frame) => frame >= this.first && frame <= this.last;
    if (this.playing) {
      // Multiples of the stride, so that the same frames are wanted from one tick to the next.
      const next = Math.ceil(Math.max(this.due, this.frame + 1) / this.stride) * this.stride;
      for (let count = 0; count < most; count += 1) list.push(next + count * this.stride);
      if (next + (most - 1) * this.stride > this.last) list.push(this.last);
      return list.filter(inside);
    }
    list.push(this.frame);
    const near = Array.from({ length: Math.min(most, 10) - 1 }, (_, place) => place + 1);
    // Also backwards in the order of time, in which videos are decoded.
    if (this.direction < 0) near.reverse();
    list.push(...near.map((count) => this.frame + count * this.direction));
    list.push(...[1, 2, 3].map((count) => this.frame - count * this.direction));
    return list.filter(inside);
  }
}

/**
 * Play, step, speed, frame number and time; the marked range, and jumps to what needs a look.
 *
 * @param {Element} root
 * @param {App} app
 */
export function buildTransport(root, { store, playhead, session }) {
  const step = (/** @type {1|-1} */ count) => () => playhead.step(count);
  const toggle = () => playhead.toggle();
  const [one, other] = ["One frame back (left arrow)", "One frame forward (right arrow)"];
  const play = iconButton("play", "Play (space)", toggle, { testid: "play", class: "play" });
  const back = iconButton("stepBack", one, step(-1), { testid: "step-back" });
  const forward = iconButton("stepForward", other, step(1), { testid: "step-forward" });
  const input = frameInput(playhead);
  const total = h("span.soft.numeric", { testid: "frame-total" });
  const time = h("span.numeric", { testid: "time" });
  const end = h("span.numeric.roomy");
  const speed = h(
    "select",
    {
      "aria-label": "Speed",
      title: "Speed (, slower, . faster)",
      testid: "speed",
      class: "speed",
      onchange: () => playhead.setSpeed(Number(speed.value)),
    },
    SPEEDS.map((value) => h("option", { value, selected: value === 1 }, `${value}×`)),
  );
  const doubts = jumpButton("doubt", "uncertain stretch", "u", (way) => session.jumpUnsure(way));
  const crossings = jumpButton("crossing", "crossing", "c", (way) => session.jumpCrossing(way));
  const label = h("span.soft.roomy", "Frame");
  root.append(
    h("div.group", back, play, forward),
    h("label.group.frame-field", label, input, total),
    h("span.time.soft", time, " ", end),
    h("span.spacer"),
    rangeChip(store),
    h("div.group", doubts.element, crossings.element),
    speed,
  );

  const place = () => {
    if (document.activeElement !== input) input.value = String(playhead.frame);
    const { frame, first, last, fps } = playhead;
    const { results } = store.state;
    setText(time, last > first ? clock(timeOf(results, frame, fps)) : "");
    setText(end, last > first ? `/ ${clock(timeOf(results, last, fps))}` : "");
  };
  const rangeChanged = () => {
    const { first, last } = playhead;
    input.min = String(first);
    input.max = String(last);
    setText(total, last > first ? `/ ${whole(last)}` : "");
    for (const node of [play, back, forward, input, speed]) node.disabled = last <= first;
    place();
  };
  playhead.addEventListener("frame", place);
  playhead.addEventListener("range", rangeChanged);
  playhead.addEventListener("playing", () => {
    if (playhead.playing) setIcon(play, "pause", "Pause (space)");
    else setIcon(play, "play", "Play (space)");
    speed.value = String(playhead.speed);
  });
  store.follow(["arrived"], place);
  store.follow(["results"], () => {
    const { results } = store.state;
    const tracks = results?.kind === "tracks" ? results : null;
    doubts.show(tracks?.unsure.length);
    crossings.show(tracks && tracks.objects.length > 1 ? tracks.crossings.length : undefined);
    rangeChanged();
  });
}

/** @param {Playhead} playhead */
function frameInput(playhead) {
  const reset = () => (input.value = String(playhead.frame));
  const go = () => {
    if (input.value !== "" && Number.isFinite(input.valueAsNumber))
      playhead.jump(input.valueAsNumber);
    reset();
  };
  const input = h("input", {
    type: "number",
    inputmode: "numeric",
    step: "1",
    "aria-label": "Frame number",
    testid: "frame-input",
    onchange: go,
    onkeydown: (/** @type {KeyboardEvent} */ { key }) => {
      if (key === "Enter") go();
      if (key === "Escape") reset();
      if (key === "Enter" || key === "Escape") input.blur();
    },
  });
  return input;
}

/**
 * @param {"doubt"|"crossing"} name
 * @param {string} what
 * @param {string} key
 * @param {(direction: 1|-1) => void} jump
 */
function jumpButton(name, what, key, jump) {
  const count = h("span.count.numeric");
  const element = button(count, (event) => jump(event.shiftKey ? -1 : 1), {
    icon: name,
    class: `quiet jump ${name}`,
    title: `Next ${what} (${key}); with shift, the previous one`,
    testid: `next-${name}`,
  });
  return {
    element,
    /** @param {number|undefined} number */
    show(number) {
      element.hidden = number === undefined;
      element.disabled = !number;
      setText(count, number === undefined ? "" : whole(number));
      element.setAttribute("aria-label", `${count.textContent}: go to the next ${what} (${key})`);
    },
  };
}

/** @param {Store} store */
function rangeChip(store) {
  const text = h("span.numeric");
  const clear = () => store.set({ range: null });
  const remove = iconButton("close", "Clear the marked range (x)", clear, { class: "tiny" });
  const chip = h("span.chip", { hidden: true, testid: "range" }, text, remove);
  store.follow(["range"], () => {
    const { range } = store.state;
    chip.hidden = !range;
    setText(text, range ? `${range[0]}–${range[1]}` : "");
  });
  return chip;
}

/**
 * The whole video as one strip: scrub in it, see what is marked, and what the time lines show.
 *
 * @param {Element} root
 * @param {App} app
 * @param {Timeline} timeline
 */
export function buildOverview(root, { store, playhead }, timeline) {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const knob = h("div.knob", { "aria-hidden": "true" });
  const slider = { role: "slider", tabindex: "0", "aria-label": "Frame", testid: "scrubber" };
  const element = h("div.overview", { ...slider }, canvas, knob);
  root.append(element);

  /** @param {number} frame @param {number} width */
  const x = (frame, width) => {
    const { first, last } = playhead;
    return last === first ? 0 : ((frame - first) / (last - first)) * width;
  };
  const place = () => {
    const { frame, first, last, fps } = playhead;
    const time = clock(timeOf(store.state.results, frame, fps));
    knob.hidden = last <= first;
    element.setAttribute("aria-disabled", String(last <= first));
    element.setAttribute("aria-valuemin", String(first));
    element.setAttribute("aria-valuemax", String(last));
    element.setAttribute("aria-valuenow", String(frame));
    element.setAttribute("aria-valuetext", `frame ${frame} of ${last}, ${time}`);
    knob.style.transform = `translateX(${x(frame, element.clientWidth).toFixed(1)}px)`;
  };
  const draw = () => {
    const { context, width, height, palette } = prepare(canvas);
    const { results, range } = store.state;
    const { first, last } = playhead;
    if (last === first) return;
    const bar = (/** @type {number[]} */ [from, to], /** @type {number} */ tall) => {
      const left = x(from, width);
      context.fillRect(left, (height - tall) / 2, Math.max(1.5, x(to, width) - left), tall);
    };
    context.fillStyle = palette.line;
    bar([first, last], 4);
    context.fillStyle = palette.warn;
    for (const [from, to] of results?.unsure ?? []) bar([from, to + 1], 4);
    context.fillStyle = palette.mark;
    for (const { first_frame } of results?.crossings ?? [])
      diamond(context, x(first_frame, width), 5);
    if (range) {
      context.fillStyle = palette.ink;
      context.globalAlpha = 0.18;
      bar([range[0], range[1] + 1], height - 2);
      context.globalAlpha = 1;
    }
    const [from, to] = timeline.window;
    if (results && to - from < last - first - 1) {
      const [left, right] = [x(from, width), x(to, width)];
      context.strokeStyle = palette.soft;
      context.lineWidth = 1;
      context.strokeRect(left + 0.5, height - 6.5, Math.max(3, right - left) - 1, 5);
    }
  };
  const schedule = beforeRepaint(() => {
    draw();
    place();
  });
  new ResizeObserver(schedule).observe(element);
  playhead.addEventListener("frame", place);
  playhead.addEventListener("range", schedule);
  addEventListener("themechange", schedule);
  store.follow(["results", "range", "open", "follow"], schedule);
  timeline.onwindow = schedule;

  let dragging = false;
  const seek = (/** @type {PointerEvent} */ event) => {
    const box = element.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const frame = Math.round(playhead.first + share * (playhead.last - playhead.first));
    if (frame !== playhead.frame) playhead.seek(frame, true);
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button || playhead.last === playhead.first) return;
    element.setPointerCapture(event.pointerId);
    dragging = true;
    playhead.pause();
    seek(event);
  });
  element.addEventListener("pointermove", (event) => dragging && seek(event));
  const end = () => {
    if (dragging) playhead.seek(playhead.frame);
    dragging = false;
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
  const wheel = (/** @type {WheelEvent} */ event) => {
    event.preventDefault();
    playhead.step(Math.sign(event.deltaY || event.deltaX) * (event.shiftKey ? 10 : 1));
  };
  element.addEventListener("wheel", wheel, { passive: false });
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y */
function diamond(context, x, y, radius = 3.5) {
  context.beginPath();
  context.moveTo(x, y - radius);
  context.lineTo(x + radius, y);
  context.lineTo(x, y + radius);
  context.lineTo(x - radius, y);
  context.fill();
}
