/** The time lines below the picture. Dragging moves the playhead, the wheel zooms into time. */

import { line, prepare, ticks } from "./charts.js";
import { chartColour, css } from "./colours.js";
import { beforeRepaint, h, setText } from "./dom.js";
import { clock, short } from "./format.js";
import { lowerBound, MOST_LANES, rowOf, timeOf, UNSURE } from "./results.js";
import { wheelFactor } from "./viewer.js";

/** @import {Sheet} from "./charts.js" */
/** @import {Results, Tile, View} from "./results.js" */
/** @import {App} from "./store.js" */
/** @typedef {(value: number) => number} Along Place of a frame, or of a value. */
/** @typedef {{column: string, top: number, height: number, low: number, high: number}} Lane */
/** @typedef {{column: string, pixels: number, x: Along, y: Along}} Scale */

/**
 * @typedef {Object} TimelineModel
 * @property {Results} results
 * @property {Results|null} other To compare with.
 * @property {[number, number]} window First and last frame that are seen.
 * @property {number} fps
 * @property {number[]} picked
 * @property {number[]} hidden
 * @property {[number, number]|null} range
 */

const SHORTEST = 20; // frames that are seen at least
const GUTTER = 88; // width of the names of the lanes; the strip above starts there, too
const MARGIN = 14; // right of the last frame, as beside the strip above
const AXIS = 18; // height of the axis of time
const STEPS = [0.04, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200]; // s

/** @type {Record<string, [string, string]>} Names of columns, and their units. */
const NAMES = { x_px: ["x", "px"], y_px: ["y", "px"], speed: ["speed", "px/s"] };

export class Timeline {
  /** @param {Element} root @param {App} app */
  constructor(root, { store, playhead }) {
    this.root = root;
    this.store = store;
    this.playhead = playhead;
    /** @type {[number, number]} */
    this.window = [0, 1];
    const label = { role: "img", "aria-label": "Time lines", testid: "timeline" };
    this.canvas = h("canvas.lanes", { ...label });
    this.needle = h("div.needle", { "aria-hidden": "true" });
    this.tip = h("div.tip", { hidden: true, "aria-hidden": "true" });
    this.hint = h("p.lanes-hint");
    this.onwindow = () => {};
    /** @type {Tile[]} Tiles that are drawn. */
    this.drawn = [];
    /** @type {PointerEvent|null} Where the pointer was last. */
    this.pointed = null;
    this.dragging = false;
    this.schedule = beforeRepaint(() => this.draw());
    root.append(this.canvas, this.needle, this.tip, this.hint);
    new ResizeObserver(this.schedule).observe(this.canvas);
    addEventListener("themechange", this.schedule);
    playhead.addEventListener("range", () => this.fit());
    playhead.addEventListener("frame", () => this.follow());
    const shown = /** @type {const} */ (["results", "other", "picked", "hidden", "range"]);
    store.follow([...shown, "open", "follow"], this.schedule);
    store.follow(["arrived"], () => {
      if (this.outdated) this.schedule();
      if (this.pointed && !this.tip.hidden) this.showTip(this.pointed);
    });
    this.addPointer();
  }

  /** What is drawn, or null if there is nothing. @returns {TimelineModel|null} */
  get model() {
    const { results, other, picked, hidden, range } = this.store.state;
    if (!results?.objects.length) return null;
    const { window } = this;
    const { fps } = this.playhead;
    return { results, other: other?.results ?? null, window, fps, picked, hidden, range };
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
    const before = frame > last ? 0.1 : 0.9; // share of the page that is before the playhead
    const length = last - first;
    if (!this.dragging && (frame > last || frame < first))
      this.setWindow(frame - before * length, frame + (1 - before) * length);
    this.placeNeedle();
  }

  draw() {
    const sheet = prepare(this.canvas);
    const { model } = this;
    this.needle.hidden = !model;
    this.hint.hidden = Boolean(model);
    this.canvas.classList.toggle("ready", Boolean(model));
    this.root.classList.toggle("idle", !model);
    this.drawn = model ? shownTiles(model, sheet.width) : [];
    if (model) drawTimeline(sheet, model);
    else setText(this.hint, this.emptyText());
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
    if (!this.model) return;
    const x = frameToX(this.window, this.canvas.clientWidth, this.playhead.frame);
    this.needle.style.transform = `translateX(${x.toFixed(1)}px)`;
    this.needle.hidden = x < GUTTER - 1 || x > this.canvas.clientWidth + 1;
  }

  /** @param {number} clientX */
  frameAt(clientX) {
    const box = this.canvas.getBoundingClientRect();
    const share = (clientX - box.left - GUTTER) / Math.max(1, box.width - GUTTER - MARGIN);
    return this.window[0] + share * (this.window[1] - this.window[0]);
  }

  /** The same, as the number of a frame that there is. @param {PointerEvent} event */
  frameBelow({ clientX }) {
    const { first, last } = this.playhead;
    return Math.min(last, Math.max(first, Math.round(this.frameAt(clientX))));
  }

  addPointer() {
    const { canvas, playhead } = this;
    /** @type {number|null} Frame where a range begins. */
    let rangeStart = null;
    /** @type {Map<number, number>} Places of the fingers. */
    const fingers = new Map();
    const drag = (/** @type {PointerEvent} */ event) => {
      const frame = this.frameBelow(event);
      if (rangeStart !== null)
        this.store.set({ range: [Math.min(rangeStart, frame), Math.max(rangeStart, frame)] });
      else if (frame !== playhead.frame) playhead.seek(frame, true);
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button || !this.model) return;
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, event.clientX);
      if (fingers.size > 1) return;
      this.dragging = true;
      playhead.pause();
      rangeStart = event.shiftKey ? this.frameBelow(event) : null;
      drag(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (fingers.size === 2) this.pinch(event, fingers);
      else if (this.dragging) drag(event);
      if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event.clientX);
      this.showTip(event);
    });
    const end = (/** @type {PointerEvent} */ event) => {
      fingers.delete(event.pointerId);
      if (!this.dragging || fingers.size) return;
      this.dragging = false;
      if (rangeStart === null) playhead.seek(playhead.frame); // fetches the frames around it
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** Two fingers zoom. @param {PointerEvent} event @param {Map<number, number>} fingers */
  pinch(event, fingers) {
    const before = fingers.get(event.pointerId);
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (before === undefined || other === undefined || Math.abs(before - other) < 8) return;
    this.zoom(Math.abs(event.clientX - other) / Math.abs(before - other), this.frameAt(other));
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    if (!this.model) return;
    event.preventDefault();
    const { deltaX, deltaY, shiftKey } = event;
    if (shiftKey || Math.abs(deltaX) > Math.abs(deltaY)) {
      const [first, last] = this.window;
      const shift = ((deltaX || deltaY) / this.canvas.clientWidth) * (last - first);
      this.setWindow(first + shift, last + shift);
    } else this.zoom(wheelFactor(event), this.frameAt(event.clientX));
  }

  /** Values under the pointer. @param {PointerEvent} event */
  showTip(event) {
    const { model } = this;
    this.pointed = event;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    this.tip.hidden = !model || x < GUTTER || event.pointerType === "touch";
    if (this.tip.hidden || !model) return;
    const { results, hidden, picked } = model;
    const frame = this.frameBelow(event);
    const lanes = results.columns.slice(0, MOST_LANES);
    const place = Math.floor(((event.clientY - box.top) / (box.height - AXIS)) * lanes.length);
    const lane = lanes[Math.min(lanes.length - 1, place)];
    const tile = results.tiles.at(frame);
    const shown = results.objects.filter(
      ({ object }) => !hidden.includes(object) && (!picked.length || picked.includes(object)),
    );
    const values = shown.slice(0, 4).map(({ object }) => {
      const track = tile?.get(object);
      const row = track ? rowOf(track, frame) : -1;
      const none = tile ? "–" : "…"; // of this frame, or as long as its rows are on their way
      const value = track && row >= 0 ? short(track.columns[lane][row]) : none;
      return shown.length > 1 ? `${object}: ${value}` : value;
    });
    const more = shown.length > 4 ? " …" : "";
    const when = clock(timeOf(results, frame, model.fps));
    const [name, unit] = NAMES[lane] ?? [lane, ""];
    const text = `${name} ${values.join("  ")}${more} ${unit}`;
    setText(this.tip, `frame ${frame} · ${when} · ${text}`);
    const left = Math.min(x + 12, box.width - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${Math.max(0, left)}px, 4px)`;
  }
}

/** @param {[number, number]} window @param {number} width @param {number} frame */
function frameToX([first, last], width, frame) {
  return GUTTER + ((frame - first) / Math.max(1e-6, last - first)) * (width - GUTTER - MARGIN);
}

/**
 * Tiles of the curves: those of the window, or coarser ones as long as these are on their way.
 *
 * @param {TimelineModel} model
 * @param {number} width
 */
function shownTiles({ results, other, window }, width) {
  const pixels = Math.ceil(width - GUTTER);
  return [results, other].flatMap((found) => found?.tiles.view(window, pixels).tiles ?? []);
}

/** The time lines, anywhere. @param {Sheet} sheet @param {TimelineModel} model */
export function drawTimeline(sheet, model) {
  const columns = model.results.columns.slice(0, MOST_LANES);
  const height = (sheet.height - AXIS) / columns.length;
  const x = (/** @type {number} */ frame) => frameToX(model.window, sheet.width, frame);
  drawTimeAxis(sheet, model, x);
  drawMarks(sheet, model, x);
  columns.forEach((column, index) => {
    const [low, high] = laneRange(model, column);
    drawLane(sheet, model, { column, top: index * height, height, low, high }, x);
  });
}

/** Values that a lane shows. @param {TimelineModel} model @param {string} column */
function laneRange({ results, other }, column) {
  if (column === "confidence") return [0, 1];
  const [low, high] = results.ranges[column];
  const [least, most] = other?.ranges[column] ?? [low, high];
  const [from, to] = [Math.min(low, least), Math.max(high, most)];
  return from === to ? [from - 1, to + 1] : [from, to];
}

/** @param {Sheet} sheet @param {TimelineModel} model @param {Lane} lane @param {Along} x */
function drawLane(sheet, model, lane, x) {
  const { context, width, palette } = sheet;
  const { column, top, height, low, high } = lane;
  const pad = Math.min(6, height / 6);
  const y = (/** @type {number} */ value) =>
    top + height - pad - ((value - low) / (high - low)) * (height - 2 * pad);
  const bottom = Math.round(top + height) - 0.5;
  context.strokeStyle = palette.line;
  context.lineWidth = 1;
  line(context, [0, bottom], [width, bottom]);
  if (column === "confidence") {
    context.setLineDash([3, 4]);
    context.strokeStyle = palette.warn;
    line(context, [GUTTER, y(UNSURE)], [width, y(UNSURE)]);
    context.setLineDash([]);
  }
  drawLaneName(sheet, lane);
  context.save();
  context.beginPath();
  context.rect(GUTTER, top, width - GUTTER, height);
  context.clip();
  const scale = { column, pixels: Math.ceil(width - GUTTER), x, y };
  if (model.other?.columns.includes(column)) {
    context.setLineDash([2, 3]); // another run, to compare with
    drawCurves(sheet, model, model.other, scale);
    context.setLineDash([]);
  }
  drawCurves(sheet, model, model.results, scale);
  context.restore();
}

/** @param {Sheet} sheet @param {TimelineModel} model @param {Results} found @param {Scale} scale */
function drawCurves({ context, palette }, { window, picked, hidden }, found, scale) {
  const view = found.tiles.view(window, scale.pixels);
  // Selected objects last, so that nothing covers them.
  const order = found.objects
    .map(({ object }) => object)
    .sort((a, b) => Number(picked.includes(a)) - Number(picked.includes(b)));
  for (const object of order) {
    if (hidden.includes(object)) continue;
    const dim = picked.length > 0 && !picked.includes(object);
    const code = found.kind === "codes";
    context.strokeStyle = code ? palette.mark : css(chartColour(object, palette), dim ? 0.35 : 1);
    context.lineWidth = dim ? 1 : 1.5;
    for (const piece of curve(view, object, scale.column, window)) {
      context.beginPath();
      for (let i = 0; i < piece.length; i += 2)
        context.lineTo(scale.x(piece[i]), scale.y(piece[i + 1]));
      // A single frame is a dot.
      if (piece.length === 2) context.lineTo(scale.x(piece[0]) + 1, scale.y(piece[1]));
      context.stroke();
    }
  }
}

/**
 * The curve of an object as pieces of x0, y0, x1, y1, ...: values of single frames, or the lowest
 * and highest of several. A new piece begins after missing frames.
 *
 * @param {View} view
 * @param {number} object
 * @param {string} column
 * @param {[number, number]} window First and last frame.
 * @returns {number[][]} Frame and value in turn.
 */
function curve({ level, tiles }, object, column, [first, last]) {
  const step = 2 ** level;
  /** @type {number[][]} */
  const found = [];
  /** @type {number[]} */
  let piece = [];
  let before = NaN; // frame of the row before
  let usual = Infinity; // distance of frames
  for (const tile of tiles) {
    const track = tile.get(object);
    if (!track) continue;
    const { frame: frames } = track.columns;
    const low = track.columns[level ? `${column}_low` : column];
    const high = track.columns[level ? `${column}_high` : column];
    usual = Math.min(usual, usualGap(frames));
    const to = Math.min(track.rows, lowerBound(frames, last) + 1);
    for (let row = Math.max(0, lowerBound(frames, first) - 1); row < to; row += 1) {
      if (piece.length && (frames[row] - before > 1.5 * usual || !Number.isFinite(low[row]))) {
        found.push(piece);
        piece = [];
      }
      before = frames[row];
      if (!Number.isFinite(low[row])) continue;
      if (!level) {
        piece.push(before, low[row]);
        continue;
      }
      const x = before + 0.5 * (step - 1);
      // The nearer end first, so that a slope stays a line.
      const falling = piece.length > 0 && piece[piece.length - 1] > (low[row] + high[row]) / 2;
      piece.push(x, falling ? high[row] : low[row], x, falling ? low[row] : high[row]);
    }
  }
  if (piece.length) found.push(piece);
  return found;
}

/** Distance from a row to the next. @param {Float32Array} frames */
function usualGap(frames) {
  const end = frames.length - 1;
  return end < 1 ? Infinity : Math.min(frames[1] - frames[0], frames[end] - frames[end - 1]);
}

/** @param {Sheet} sheet @param {Lane} lane */
function drawLaneName({ context, palette }, { column, top, height, low, high }) {
  const [name, unit] = NAMES[column] ?? [column, ""];
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = palette.ink;
  context.font = `600 11px ${palette.font}`;
  context.fillText(name, 10, top + height / 2 - (height > 30 ? 6 : 0));
  if (height <= 30) return;
  context.fillStyle = palette.soft;
  context.font = `10px ${palette.font}`;
  context.fillText(unit || `${short(low)} to ${short(high)}`, 10, top + height / 2 + 8);
  if (!unit) return;
  context.textAlign = "right";
  context.fillText(short(high), GUTTER - 6, top + 10);
  context.fillText(short(low), GUTTER - 6, top + height - 8);
}

/**
 * Uncertain stretches, crossings and the marked range.
 *
 * @param {Sheet} sheet
 * @param {TimelineModel} model
 * @param {Along} x
 */
function drawMarks({ context, width, height, palette }, { results, window, range }, x) {
  const band = (/** @type {number} */ first, /** @type {number} */ last) => {
    const left = Math.max(GUTTER, x(first - 0.5));
    const right = Math.min(width, Math.max(x(last + 0.5), left + 1));
    const seen = last >= window[0] && first <= window[1];
    if (seen && right > GUTTER) context.fillRect(left, 0, right - left, height - AXIS);
  };
  context.save();
  context.globalAlpha = 0.13;
  context.fillStyle = palette.warn;
  for (const [first, last] of results.unsure) band(first, last);
  context.fillStyle = palette.mark;
  for (const { first_frame: first, last_frame: last } of results.crossings) band(first, last);
  context.globalAlpha = 0.16;
  context.fillStyle = palette.ink;
  if (range) band(...range);
  context.restore();
}

/** @param {Sheet} sheet @param {TimelineModel} model @param {Along} x */
function drawTimeAxis({ context, width, height, palette }, { fps, results, window }, x) {
  const { start } = results; // time of frame 0
  const [first, last] = window.map((frame) => start + frame / fps);
  const most = Math.max(2, Math.floor((width - GUTTER) / 90));
  const step = STEPS.find((size) => (last - first) / size <= most);
  const times = step ? multiples(first, last, step) : ticks(first, last, most);
  context.font = `10px ${palette.font}`;
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.lineWidth = 1;
  context.strokeStyle = palette.line;
  context.fillStyle = palette.soft;
  for (const time of times) {
    const at = x((time - start) * fps);
    line(context, [Math.round(at) + 0.5, 0], [Math.round(at) + 0.5, height - AXIS + 3]);
    if (at > GUTTER + 12 && at < width - 16)
      context.fillText(clock(time, step && step < 1 ? 2 : 0), at, height - AXIS / 2 + 1);
  }
}

/** @param {number} low @param {number} high @param {number} step */
function multiples(low, high, step) {
  const list = [];
  for (let k = Math.ceil(low / step); k * step <= high; k += 1) list.push(k * step);
  return list;
}
