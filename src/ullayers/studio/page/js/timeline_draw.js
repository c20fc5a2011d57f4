/** The time lines as a drawing, on the screen or in a figure. */

import { chartColour, css } from "./colours.js";
import { curve } from "./decimate.js";
import { clock, short } from "./format.js";
import { ticks } from "./palette.js";
import { UNSURE } from "./results.js";

export const GUTTER = 88; // width of the names of the lanes; the strip above starts there, too
export const MARGIN = 14; // right of the last frame, as beside the strip above
const AXIS = 18; // height of the axis of time
const STEPS = [0.04, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200]; // s

/** @type {Record<string, string>} */
const NAMES = { x_px: "x", y_px: "y", speed: "speed", confidence: "confidence" };
/** @type {Record<string, string>} */
const UNITS = { x_px: "px", y_px: "px", speed: "px/s", confidence: "" };

/**
 * @typedef {Object} TimelineModel
 * @property {import("./results.js").Results} results
 * @property {import("./results.js").Results|null} other To compare with.
 * @property {[number, number]} window First and last frame that are seen.
 * @property {number} fps
 * @property {number[]} picked
 * @property {number[]} hidden
 * @property {[number, number]|null} range
 * @property {number} most Largest number of lanes.
 */

/** @param {string} column */
export function laneName(column) {
  return NAMES[column] ?? column;
}

/** @param {string} column */
export function laneUnit(column) {
  return UNITS[column] ?? "";
}

/**
 * Place of a frame.
 *
 * @param {TimelineModel} model
 * @param {number} width
 * @param {number} frame
 */
export function frameToX(model, width, frame) {
  const [first, last] = model.window;
  return GUTTER + ((frame - first) / Math.max(1e-6, last - first)) * (width - GUTTER - MARGIN);
}

/**
 * Tiles of the curves: those of the window, or coarser ones as long as these are on their way.
 *
 * @param {TimelineModel} model
 * @param {number} width
 */
export function shownTiles({ results, other, window }, width) {
  return [results, other].flatMap((found) => found?.tiles.view(window, pixels(width)).tiles ?? []);
}

/** @param {number} width */
function pixels(width) {
  return Math.ceil(width - GUTTER);
}

/**
 * @param {any} context
 * @param {TimelineModel} model
 * @param {number} width
 * @param {number} height
 * @param {import("./palette.js").Palette} palette
 */
export function drawTimeline(context, model, width, height, palette) {
  const columns = model.results.columns.slice(0, model.most);
  const lane = (height - AXIS) / columns.length;
  const x = (/** @type {number} */ frame) => frameToX(model, width, frame);
  drawTimeAxis(context, model, width, height, palette, x);
  drawMarks(context, model, width, height - AXIS, palette, x);
  columns.forEach((column, index) => {
    drawLane(context, model, column, { top: index * lane, lane, width, palette, x });
  });
}

/** Values that a lane shows; the confidence is always between 0 and 1. */
function laneRange(/** @type {TimelineModel} */ { results, other }, /** @type {string} */ column) {
  if (column === "confidence") return [0, 1];
  const [low, high] = results.ranges[column];
  const [least, most] = other?.ranges[column] ?? [low, high];
  const [from, to] = [Math.min(low, least), Math.max(high, most)];
  return from === to ? [from - 1, to + 1] : [from, to];
}

/**
 * @param {any} context
 * @param {TimelineModel} model
 * @param {string} column
 * @param {{top: number, lane: number, width: number, palette: import("./palette.js").Palette, x: (frame: number) => number}} place
 */
function drawLane(context, model, column, { top, lane, width, palette, x }) {
  const [low, high] = laneRange(model, column);
  const pad = Math.min(6, lane / 6);
  const y = (/** @type {number} */ value) =>
    top + lane - pad - ((value - low) / (high - low)) * (lane - 2 * pad);
  context.strokeStyle = palette.line;
  context.lineWidth = 1;
  line(context, 0, Math.round(top + lane) - 0.5, width, Math.round(top + lane) - 0.5);
  if (column === "confidence") {
    context.setLineDash([3, 4]);
    context.strokeStyle = palette.warn;
    line(context, GUTTER, y(UNSURE), width, y(UNSURE));
    context.setLineDash([]);
  }
  drawLaneName(context, column, [low, high], top, lane, palette);
  context.save();
  context.beginPath();
  context.rect(GUTTER, top, width - GUTTER, lane);
  context.clip();
  const curves = { column, pixels: pixels(width), palette, x, y };
  if (model.other?.columns.includes(column)) {
    context.setLineDash([2, 3]); // another run, to compare with
    drawCurves(context, model, model.other, curves);
    context.setLineDash([]);
  }
  drawCurves(context, model, model.results, curves);
  context.restore();
}

/**
 * @param {any} context
 * @param {TimelineModel} model
 * @param {import("./results.js").Results} results
 * @param {{column: string, pixels: number, palette: import("./palette.js").Palette, x: (frame: number) => number, y: (value: number) => number}} place
 */
function drawCurves(context, model, results, { column, pixels, palette, x, y }) {
  const view = results.tiles.view(model.window, pixels);
  // Selected objects last, so that nothing covers them.
  const order = [...results.objects].sort(
    (a, b) => Number(model.picked.includes(a.object)) - Number(model.picked.includes(b.object)),
  );
  for (const { object } of order) {
    if (model.hidden.includes(object)) continue;
    const dim = model.picked.length > 0 && !model.picked.includes(object);
    const code = results.kind === "codes";
    context.strokeStyle = code ? palette.mark : css(chartColour(object, palette), dim ? 0.35 : 1);
    context.lineWidth = dim ? 1 : 1.5;
    for (const piece of curve(view, object, column, model.window))
      strokePiece(context, piece, x, y);
  }
}

/**
 * @param {any} context
 * @param {number[]} piece
 * @param {(frame: number) => number} x
 * @param {(value: number) => number} y
 */
function strokePiece(context, piece, x, y) {
  context.beginPath();
  context.moveTo(x(piece[0]), y(piece[1]));
  for (let i = 2; i < piece.length; i += 2) context.lineTo(x(piece[i]), y(piece[i + 1]));
  if (piece.length === 2) context.lineTo(x(piece[0]) + 1, y(piece[1])); // a single frame is a dot
  context.stroke();
}

/**
 * @param {any} context
 * @param {string} column
 * @param {number[]} range
 * @param {number} top
 * @param {number} lane
 * @param {import("./palette.js").Palette} palette
 */
function drawLaneName(context, column, [low, high], top, lane, palette) {
  const unit = laneUnit(column);
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = palette.ink;
  context.font = `600 11px ${palette.font}`;
  context.fillText(laneName(column), 10, top + lane / 2 - (lane > 30 ? 6 : 0));
  if (lane <= 30) return;
  context.fillStyle = palette.soft;
  context.font = `10px ${palette.font}`;
  context.fillText(unit || `${short(low)} to ${short(high)}`, 10, top + lane / 2 + 8);
  if (!unit) return;
  context.textAlign = "right";
  context.fillText(short(high), GUTTER - 6, top + 10);
  context.fillText(short(low), GUTTER - 6, top + lane - 8);
}

/**
 * Uncertain stretches, crossings and the marked range.
 *
 * @param {any} context
 * @param {TimelineModel} model
 * @param {number} width
 * @param {number} height
 * @param {import("./palette.js").Palette} palette
 * @param {(frame: number) => number} x
 */
function drawMarks(context, model, width, height, palette, x) {
  const [start, end] = model.window;
  const band = (/** @type {number} */ first, /** @type {number} */ last) => {
    const left = Math.max(GUTTER, x(first - 0.5));
    const right = Math.min(width, Math.max(x(last + 0.5), left + 1));
    if (right > GUTTER) context.fillRect(left, 0, right - left, height);
  };
  const seen = (/** @type {number} */ first, /** @type {number} */ last) =>
    last >= start && first <= end;
  context.save();
  context.globalAlpha = 0.13;
  context.fillStyle = palette.warn;
  for (const [first, last] of model.results.unsure) if (seen(first, last)) band(first, last);
  context.fillStyle = palette.mark;
  for (const { first_frame: first, last_frame: last } of model.results.crossings)
    if (seen(first, last)) band(first, last);
  if (model.range) {
    context.globalAlpha = 0.16;
    context.fillStyle = palette.ink;
    band(...model.range);
  }
  context.restore();
}

/**
 * @param {any} context
 * @param {TimelineModel} model
 * @param {number} width
 * @param {number} height
 * @param {import("./palette.js").Palette} palette
 * @param {(frame: number) => number} x
 */
function drawTimeAxis(context, model, width, height, palette, x) {
  const { fps } = model;
  const { start } = model.results; // time of frame 0
  const [first, last] = model.window.map((frame) => start + frame / fps);
  const most = Math.max(2, Math.floor((width - GUTTER) / 90));
  const step = STEPS.find((size) => (last - first) / size <= most);
  const times = step ? multiples(first, last, step) : ticks(first, last, most);
  context.font = `10px ${palette.font}`;
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.lineWidth = 1;
  for (const time of times) {
    const at = x((time - start) * fps);
    context.strokeStyle = palette.line;
    line(context, Math.round(at) + 0.5, 0, Math.round(at) + 0.5, height - AXIS + 3);
    context.fillStyle = palette.soft;
    if (at > GUTTER + 12 && at < width - 16) {
      context.fillText(clock(time, step && step < 1 ? 2 : 0), at, height - AXIS / 2 + 1);
    }
  }
}

/** @param {number} low @param {number} high @param {number} step */
function multiples(low, high, step) {
  const list = [];
  for (let k = Math.ceil(low / step); k * step <= high; k += 1) list.push(k * step);
  return list;
}

/** @param {any} context @param {number} x0 @param {number} y0 @param {number} x1 @param {number} y1 */
function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}
