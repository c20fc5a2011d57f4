/** The binary tables in which tracks and codes travel (float32, one block per object). */

/**
 * @typedef {Object} Track One object, its rows sorted by frame.
 * @property {number} object
 * @property {number} rows
 * @property {Record<string, Float32Array>} columns
 */

/**
 * @param {ArrayBuffer} buffer
 * @returns {{columns: string[], tracks: Track[]}}
 */
export function readTable(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 8 * Math.ceil((4 + length) / 8);
  const tracks = head.objects.map(
    (/** @type {{object: number, rows: number}} */ { object, rows }) => {
      /** @type {Record<string, Float32Array>} */
      const columns = {};
      for (const name of head.columns) {
        columns[name] = new Float32Array(buffer, offset, rows);
        offset += 4 * rows;
      }
      return { object, rows, columns };
    },
  );
  return { columns: head.columns, tracks };
}

/**
 * Index of the first row whose value is at least `value`.
 *
 * @param {Float32Array} sorted
 * @param {number} value
 */
export function lowerBound(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Row of a frame, or -1. Tables mostly have a row for every frame, so that place is tried first.
 *
 * @param {Track} track
 * @param {number} frame
 */
export function rowOf(track, frame) {
  const frames = track.columns.frame;
  const guess = frame - frames[0];
  if (frames[guess] === frame) return guess;
  const row = lowerBound(frames, frame);
  return frames[row] === frame ? row : -1;
}
