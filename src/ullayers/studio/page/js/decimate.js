/** Curves of time lines: values of single frames, or the lowest and highest of several. */

import { lowerBound } from "./tables.js";

/**
 * The curve of an object as pieces of x0, y0, x1, y1, ...; a new piece begins after missing frames.
 *
 * @param {import("./tiles.js").View} view
 * @param {number} object
 * @param {string} column
 * @param {[number, number]} window First and last frame.
 * @returns {number[][]} Frame and value in turn.
 */
export function curve({ level, tiles }, object, column, [first, last]) {
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
