/** Long curves in few pixels: the lowest and the highest value of each pixel column. */

import { lowerBound } from "./tables.js";

const BLOCK = 64; // values summed up ahead of time, so that a million rows are drawn at once

/** @type {WeakMap<Float32Array, {low: Float32Array, high: Float32Array}>} */
const BLOCKS = new WeakMap();

/** @param {Float32Array} values */
function blocksOf(values) {
  const known = BLOCKS.get(values);
  if (known) return known;
  const count = Math.ceil(values.length / BLOCK);
  const low = new Float32Array(count).fill(Infinity);
  const high = new Float32Array(count).fill(-Infinity);
  for (let i = 0; i < values.length; i += 1) {
    const block = (i / BLOCK) | 0;
    // Comparisons with NaN are false, so frames without a value do not count.
    if (values[i] < low[block]) low[block] = values[i];
    if (values[i] > high[block]) high[block] = values[i];
  }
  BLOCKS.set(values, { low, high });
  return { low, high };
}

/**
 * Lowest and highest value of rows; infinite the wrong way round if there is none.
 *
 * @param {Float32Array} values
 * @param {number} from First row.
 * @param {number} to Row after the last.
 * @returns {[number, number]}
 */
export function extent(values, from = 0, to = values.length) {
  const { low, high } = blocksOf(values);
  let least = Infinity;
  let most = -Infinity;
  let row = from;
  while (row < to) {
    if (row % BLOCK === 0 && row + BLOCK <= to) {
      least = Math.min(least, low[row / BLOCK]);
      most = Math.max(most, high[row / BLOCK]);
      row += BLOCK;
    } else {
      if (values[row] < least) least = values[row];
      if (values[row] > most) most = values[row];
      row += 1;
    }
  }
  return [least, most];
}

/**
 * A curve as pieces of x0, y0, x1, y1, ...; a new piece begins after missing frames.
 *
 * @param {import("./tables.js").Track} track
 * @param {string} column
 * @param {[number, number]} window First and last frame.
 * @param {number} pixels Width of the window.
 * @returns {number[][]} Frame and value in turn.
 */
export function curve(track, column, [first, last], pixels) {
  const { frame: frames, [column]: values } = track.columns;
  const from = Math.max(0, lowerBound(frames, first) - 1);
  const to = Math.min(track.rows, lowerBound(frames, last) + 1);
  if (to - from <= 2 * pixels) return pieces(frames, values, from, to);
  const found = [];
  /** @type {number[]} */
  let piece = [];
  const step = (last - first) / pixels;
  let row = from;
  for (let pixel = 0; pixel < pixels; pixel += 1) {
    const end = Math.min(to, lowerBound(frames, first + (pixel + 1) * step));
    const [least, most] = extent(values, row, end);
    if (least <= most) {
      const x = first + (pixel + 0.5) * step;
      // The nearer end first, so that a slope stays a line.
      const falling = piece.length > 0 && piece[piece.length - 1] > (least + most) / 2;
      piece.push(x, falling ? most : least, x, falling ? least : most);
    } else if (piece.length) {
      found.push(piece);
      piece = [];
    }
    row = Math.max(row, end);
  }
  if (piece.length) found.push(piece);
  return found;
}

/**
 * @param {Float32Array} frames
 * @param {Float32Array} values
 * @param {number} from
 * @param {number} to
 */
function pieces(frames, values, from, to) {
  const found = [];
  /** @type {number[]} */
  let piece = [];
  const usual =
    to - from > 1 ? Math.min(frames[from + 1] - frames[from], frames[to - 1] - frames[to - 2]) : 1;
  for (let row = from; row < to; row += 1) {
    const gap = row > from && frames[row] - frames[row - 1] > 1.5 * usual;
    if ((gap || !Number.isFinite(values[row])) && piece.length) {
      found.push(piece);
      piece = [];
    }
    if (Number.isFinite(values[row])) piece.push(frames[row], values[row]);
  }
  if (piece.length) found.push(piece);
  return found;
}
