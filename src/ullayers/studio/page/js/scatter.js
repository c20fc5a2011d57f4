/** Scatter of the places or of the code. A click on a point shows its frame. */

import { Chart } from "./charts.js";
import { chartColour, css, timeColour } from "./colours.js";
import { short } from "./format.js";
import { rowOf } from "./results.js";

/** @import {Sheet} from "./charts.js" */
/** @import {Playhead} from "./player.js" */
/** @import {Results} from "./results.js" */
/** @typedef {{x: Float32Array, y: Float32Array, frame: Float32Array, object: number}} Points */
/** @typedef {[number, number, number, number]} Box */

/**
 * @typedef {Object} ScatterModel
 * @property {Points[]} series
 * @property {[string, string]} labels
 * @property {Box} bounds Lowest and highest x, then y.
 * @property {boolean} picture Whether y grows downwards and both axes have one scale.
 * @property {[number, number]} frames First and last frame, for the colours of time.
 * @property {(frame: number) => [number, number][]} at Points of a frame, as far as they are here.
 */

const PAD = { left: 2, right: 2, top: 4, bottom: 20 };
const HIGHEST = 260; // CSS pixels
const REACH = 14; // CSS pixels around a point in which a click counts
const SHADES = 32;
const MOST = 20000; // points per object that are drawn

/**
 * @param {Results} results
 * @param {[number, number]} axes Numbers of the code's axes.
 * @param {number[]} hidden
 * @returns {ScatterModel}
 */
export function resultsPoints(results, axes, hidden) {
  const { kind, columns, sample, sequence, tiles, first, last } = results;
  const place = kind === "tracks";
  const across = place ? "x_px" : columns[axes[0]];
  const up = place ? "y_px" : (columns[axes[1]] ?? across);
  const shown = (/** @type {{object: number}} */ { object }) => !hidden.includes(object);
  const series = sample.filter(shown).map(({ object, columns: values }) => {
    return { object, x: values[across], y: values[up], frame: values.frame };
  });
  return {
    series,
    labels: place ? ["x (px)", "y (px)"] : [across, up],
    bounds: place ? [0, sequence.width, 0, sequence.height] : boundsOf(series),
    picture: place,
    frames: [first, last],
    at: (frame) =>
      [...(tiles.at(frame)?.values() ?? [])].filter(shown).map((track) => {
        const row = rowOf(track, frame);
        return [track.columns[across][row] ?? NaN, track.columns[up][row] ?? NaN];
      }),
  };
}

/**
 * @param {Map<number, number[]>} path From the session: values of the frames seen so far.
 * @param {boolean} code
 * @param {number} aspect Height by width of the frame.
 * @returns {ScatterModel|null}
 */
export function livePoints(path, code, aspect) {
  if (!path.size) return null;
  const scale = code ? 1 : aspect; // of y
  const frames = [...path.keys()].sort((a, b) => a - b);
  const pick = (/** @type {number} */ axis, /** @type {number} */ factor) =>
    Float32Array.from(frames, (frame) => factor * (path.get(frame)?.[axis] ?? NaN));
  const points = { object: 1, x: pick(0, 1), y: pick(1, scale), frame: Float32Array.from(frames) };
  return {
    series: [points],
    labels: code ? ["y0", "y1"] : ["x", "y"],
    bounds: code ? boundsOf([points]) : [0, 1, 0, aspect],
    picture: !code,
    frames: [frames[0], Math.max(frames[0] + 1, frames[frames.length - 1])],
    at: (frame) => {
      const [x, y] = path.get(frame) ?? [NaN, NaN];
      return [[x, scale * y]];
    },
  };
}

/** @param {Points[]} series @returns {Box} */
function boundsOf(series) {
  const bounds = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { x, y } of series) {
    for (let i = 0; i < x.length; i += 1) {
      if (x[i] < bounds[0]) bounds[0] = x[i];
      if (x[i] > bounds[1]) bounds[1] = x[i];
      if (y[i] < bounds[2]) bounds[2] = y[i];
      if (y[i] > bounds[3]) bounds[3] = y[i];
    }
  }
  const [x0, x1, y0, y1] = bounds.map((value) => (Number.isFinite(value) ? value : 0));
  const pad = 0.04 * Math.max(x1 - x0, y1 - y0, 1e-6);
  return [x0 - pad, x1 + pad, y0 - pad, y1 + pad];
}

/** Places of points. @param {ScatterModel} model @param {number} width @param {number} height */
function scales({ bounds: [x0, x1, y0, y1], picture }, width, height) {
  const across = width - PAD.left - PAD.right;
  const down = height - PAD.top - PAD.bottom;
  let [kx, ky] = [across / (x1 - x0), down / (y1 - y0)];
  if (picture) kx = ky = Math.min(kx, ky);
  const left = PAD.left + (across - kx * (x1 - x0)) / 2;
  const top = PAD.top + (down - ky * (y1 - y0)) / 2;
  return {
    x: (/** @type {number} */ value) => left + kx * (value - x0),
    y: (/** @type {number} */ value) => top + ky * (picture ? value - y0 : y1 - value),
    box: /** @type {Box} */ ([left, top, kx * (x1 - x0), ky * (y1 - y0)]),
  };
}

/** @param {Sheet} sheet @param {ScatterModel} model */
export function drawScatter(sheet, model) {
  const { context, width, height, palette } = sheet;
  const { x, y, box } = scales(model, width, height);
  const [left, top, wide, tall] = box.map(Math.round);
  context.strokeStyle = palette.line;
  context.lineWidth = 1;
  context.beginPath();
  context.rect(left + 0.5, top + 0.5, wide, tall);
  context.stroke();
  const several = model.series.length > 1;
  for (const points of model.series) {
    const groups = groupsOf(points, model.frames, several ? 1 : SHADES);
    groups.forEach((rows, group) => {
      context.fillStyle = several
        ? css(chartColour(points.object, palette), 0.75)
        : css(timeColour(group / (SHADES - 1)), 0.85);
      // One path for all points of a colour is many times quicker than one each.
      context.beginPath();
      for (const row of rows) {
        if (Number.isFinite(points.x[row]))
          context.rect(x(points.x[row]) - 1.25, y(points.y[row]) - 1.25, 2.5, 2.5);
      }
      context.fill();
    });
  }
  drawLabels(sheet, model, box);
}

/**
 * Rows of points by their time, in groups of one colour each.
 *
 * @param {Points} points
 * @param {[number, number]} frames
 * @param {number} count
 */
function groupsOf({ frame }, [first, last], count) {
  /** @type {number[][]} */
  const groups = Array.from({ length: count }, () => []);
  const stride = Math.max(1, Math.ceil(frame.length / MOST));
  for (let row = 0; row < frame.length; row += stride) {
    const share = (frame[row] - first) / Math.max(1, last - first);
    groups[Math.min(count - 1, Math.max(0, Math.floor(share * count)))].push(row);
  }
  return groups;
}

/** @param {Sheet} sheet @param {ScatterModel} model @param {Box} box */
function drawLabels({ context, height, palette }, model, [left, top, wide, tall]) {
  const [x0, x1] = model.bounds;
  const [across, up] = model.labels;
  const base = Math.min(height - 8, top + tall + 12);
  context.font = `10px ${palette.font}`;
  context.textBaseline = "middle";
  context.fillStyle = palette.soft;
  context.textAlign = "left";
  context.fillText(model.picture ? "0" : short(x0), left, base);
  context.textAlign = "right";
  context.fillText(across.endsWith("(px)") ? `${short(x1)} px` : short(x1), left + wide, base);
  context.textAlign = "center";
  const text = model.picture ? "position in the frame" : `${across} across, ${up} up`;
  context.fillText(text, left + wide / 2, base);
}

export class Scatter {
  /** @param {() => ScatterModel|null} model @param {Playhead} playhead */
  constructor(model, playhead) {
    this.model = model;
    this.playhead = playhead;
    this.drawnFor = ""; // size and theme of the background
    this.background = document.createElement("canvas"); // points, drawn once
    const paint = (/** @type {Sheet} */ sheet) => this.paint(sheet);
    this.chart = new Chart("Scatter: each point is a frame", "scatter", paint, "chart scatter");
    this.canvas = this.chart.canvas;
    playhead.addEventListener("frame", this.chart.schedule);
    this.canvas.addEventListener("click", ({ offsetX, offsetY }) => {
      const frame = this.nearest(offsetX, offsetY);
      if (frame !== null) playhead.jump(frame);
    });
    addEventListener("themechange", () => this.refresh());
  }

  /** Draw the points again, because they have changed. */
  refresh() {
    this.drawnFor = "";
    this.chart.schedule();
  }

  /** Frame of the point nearest to a place, or null. @param {number} px @param {number} py */
  nearest(px, py) {
    const model = this.model();
    if (!model) return null;
    const { x, y } = scales(model, this.canvas.clientWidth, this.canvas.clientHeight);
    let best = null;
    let least = REACH ** 2;
    for (const points of model.series) {
      for (let row = 0; row < points.frame.length; row += 1) {
        const distance = (x(points.x[row]) - px) ** 2 + (y(points.y[row]) - py) ** 2;
        if (distance < least) [least, best] = [distance, points.frame[row]];
      }
    }
    return best;
  }

  /** @param {Sheet} sheet */
  paint(sheet) {
    const { context, width, height, palette } = sheet;
    const model = this.model();
    if (!model || this.fit(model, width, height)) return;
    const size = `${width}x${height}@${devicePixelRatio}${palette.ink}`;
    if (this.drawnFor !== size) {
      this.drawnFor = size;
      this.background.width = Math.round(width * devicePixelRatio);
      this.background.height = Math.round(height * devicePixelRatio);
      const back = /** @type {CanvasRenderingContext2D} */ (this.background.getContext("2d"));
      back.scale(devicePixelRatio, devicePixelRatio);
      drawScatter({ ...sheet, context: back }, model);
    }
    context.drawImage(this.background, 0, 0, width, height);
    this.ring(sheet, model);
  }

  /**
   * Give the canvas the shape of the picture; returns whether it is drawn again for that.
   *
   * @param {ScatterModel} model
   * @param {number} width
   * @param {number} height
   */
  fit({ bounds: [x0, x1, y0, y1], picture }, width, height) {
    const shape = (y1 - y0) / (x1 - x0);
    const needed = PAD.top + PAD.bottom + Math.round((width - PAD.left - PAD.right) * shape);
    const wanted = picture ? Math.min(Math.max(needed, 80), HIGHEST) : HIGHEST;
    if (Math.abs(wanted - height) < 2) return false;
    this.canvas.style.height = `${wanted}px`;
    return true;
  }

  /** Rings around the points of this frame. @param {Sheet} sheet @param {ScatterModel} model */
  ring({ context, width, height, palette }, model) {
    const { x, y } = scales(model, width, height);
    for (const [across, up] of model.at(this.playhead.frame)) {
      if (!Number.isFinite(across)) continue;
      context.beginPath();
      context.arc(x(across), y(up), 6, 0, 2 * Math.PI);
      context.strokeStyle = palette.card;
      context.lineWidth = 4;
      context.stroke();
      context.strokeStyle = palette.ink;
      context.lineWidth = 2;
      context.stroke();
    }
  }
}
