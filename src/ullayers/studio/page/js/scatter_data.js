/** Points of the scatter: places or codes of frames, of results or of a run at work. */

import { rowOf } from "./tables.js";

/**
 * @typedef {Object} Points
 * @property {Float32Array} x
 * @property {Float32Array} y
 * @property {Float32Array} frame
 * @property {number} object
 */

/**
 * @typedef {Object} ScatterModel
 * @property {Points[]} series
 * @property {[string, string]} labels
 * @property {[number, number, number, number]} bounds Lowest and highest x, then y.
 * @property {boolean} picture Whether y grows downwards and both axes have one scale.
 * @property {[number, number]} frames First and last frame, for the colours of time.
 * @property {(frame: number) => [number, number][]} at Points of a frame, as far as they are here.
 */

/**
 * @param {import("./results.js").Results} results
 * @param {[number, number]} axes Numbers of the code's axes.
 * @param {number[]} hidden
 * @returns {ScatterModel}
 */
export function resultsPoints(results, [across, up], hidden) {
  const place = results.kind === "tracks";
  const names = place
    ? ["x_px", "y_px"]
    : [results.columns[across], results.columns[up] ?? results.columns[across]];
  const series = results.sample
    .filter(({ object }) => !hidden.includes(object))
    .map(({ object, columns }) => ({
      object,
      x: columns[names[0]],
      y: columns[names[1]],
      frame: columns.frame,
    }));
  const { width, height } = results.sequence;
  return {
    series,
    labels: place ? ["x (px)", "y (px)"] : [names[0], names[1]],
    bounds: place ? [0, width, 0, height] : boundsOf(series),
    picture: place,
    frames: [results.first, results.last],
    at: (frame) =>
      [...(results.tiles.at(frame)?.values() ?? [])]
        .filter(({ object }) => !hidden.includes(object))
        .map((track) => pointOf(track, names, rowOf(track, frame))),
  };
}

/**
 * @param {import("./tables.js").Track} track
 * @param {string[]} names
 * @param {number} row
 * @returns {[number, number]} Not numbers if there is no such row.
 */
function pointOf({ columns }, names, row) {
  return [columns[names[0]][row] ?? NaN, columns[names[1]][row] ?? NaN];
}

/**
 * @param {Map<number, number[]>} path From the session: values of the frames seen so far.
 * @param {boolean} code
 * @param {number} aspect Height by width of the frame.
 * @returns {ScatterModel|null}
 */
export function livePoints(path, code, aspect) {
  if (!path.size) return null;
  const frames = [...path.keys()].sort((a, b) => a - b);
  const pick = (/** @type {number} */ axis, /** @type {number} */ factor) =>
    Float32Array.from(frames, (frame) => factor * (path.get(frame)?.[axis] ?? NaN));
  const points = {
    object: 1,
    x: pick(0, 1),
    y: pick(1, code ? 1 : aspect),
    frame: Float32Array.from(frames),
  };
  return {
    series: [points],
    labels: code ? ["y0", "y1"] : ["x", "y"],
    bounds: code ? boundsOf([points]) : [0, 1, 0, aspect],
    picture: !code,
    frames: [frames[0], Math.max(frames[0] + 1, frames.at(-1) ?? 0)],
    at: (frame) => {
      const [x, y] = path.get(frame) ?? [NaN, NaN];
      return [[x, (code ? 1 : aspect) * y]];
    },
  };
}

/** @param {Points[]} series @returns {[number, number, number, number]} */
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
