/** What a run found in one sequence: tracks or codes, their outlines, and where to look twice. */

import { api } from "./api.js";
import { Outlines } from "./outlines.js";
import { readTable, rowOf } from "./tables.js";
import { Tiles } from "./tiles.js";

export const UNSURE = 0.5; // below this confidence a place is not to be relied on
export const MOST_LANES = 6;
const LANES = ["x_px", "y_px", "speed", "confidence"];
const TRACK_COLUMNS = ["frame", "time", ...LANES];

/** @typedef {import("./tables.js").Track} Track */
/** @typedef {{object: number, x: number, y: number, confidence: number}} Place In pixels of the video. */
/** @typedef {[number, number]} Stretch First and last frame. */
/** @typedef {{object: number, first: number, last: number, sure: number|null}} Found One object. */

/**
 * @typedef {Object} Results
 * @property {"tracks"|"codes"} kind
 * @property {import("./store.js").Sequence} sequence
 * @property {Found[]} objects
 * @property {string[]} columns Of the time lines.
 * @property {Record<string, [number, number]>} ranges Lowest and highest value of each column.
 * @property {Tiles} tiles Rows of the frames that are looked at.
 * @property {Track[]} sample Every n-th row, for the scatter.
 * @property {Outlines|null} outlines
 * @property {Stretch[]} unsure
 * @property {import("./store.js").Crossing[]} crossings
 * @property {number} first First frame.
 * @property {number} last Last frame.
 * @property {number} fps
 * @property {number} start Time of frame 0 in seconds.
 */

/**
 * @param {import("./store.js").Details} details
 * @param {import("./store.js").Sequence} given
 * @param {import("./store.js").Source[]} sources
 * @param {number|null} frame That is shown first; null for the first one.
 * @returns {Promise<Results>}
 */
export async function loadResults(details, given, sources, frame) {
  const kind = details.task === "locate" ? "tracks" : "codes";
  const sequence = complete(given, sources);
  const [overview, points] = await Promise.all([
    api.overview(details.id, sequence.name),
    api.sample(details.id, sequence.name, kind === "tracks" ? ["frame", "x_px", "y_px"] : []),
  ]);
  const names = Object.keys(overview.ranges);
  const columns = kind === "tracks" ? LANES.filter((name) => names.includes(name)) : names;
  const first = sequence.first ?? 0;
  const ends = overview.objects.map((/** @type {Found} */ found) => found.last);
  const last = Math.max(first, sequence.last ?? 0, ...ends);
  const lanes = columns.slice(0, MOST_LANES);
  const rows = kind === "tracks" ? TRACK_COLUMNS : []; // of codes, all columns
  const tiles = new Tiles(details.id, sequence.name, rows, lanes, last);
  const outlines = kind === "tracks" ? new Outlines(details.id, sequence.name) : null;
  await Promise.all([tiles.ready(frame ?? first), outlines?.ready(frame ?? first)]);
  return {
    kind,
    sequence,
    objects: overview.objects,
    columns,
    ranges: overview.ranges,
    tiles,
    sample: readTable(points).tracks,
    outlines,
    unsure: overview.unsure,
    crossings: details.crossings.filter((crossing) => crossing.sequence === sequence.name),
    first,
    last,
    fps: overview.fps ?? sequence.fps,
    start: overview.start,
  };
}

/**
 * A sequence with what its run does not say, but its video does.
 *
 * @param {import("./store.js").Sequence} sequence
 * @param {import("./store.js").Source[]} sources
 * @returns {import("./store.js").Sequence}
 */
function complete(sequence, sources) {
  const source = sources.find(({ id }) => id === sequence.source);
  return {
    ...sequence,
    width: sequence.width ?? source?.width ?? 640,
    height: sequence.height ?? source?.height ?? 480,
    fps: sequence.fps ?? source?.fps ?? 25,
  };
}

/**
 * Places of all objects in a frame; none as long as its rows are on their way.
 *
 * @param {Results} results
 * @param {number} frame
 * @returns {Place[]}
 */
export function placesAt(results, frame) {
  if (results.kind !== "tracks") return [];
  /** @type {Place[]} */
  const places = [];
  for (const track of results.tiles.at(frame)?.values() ?? []) {
    const row = rowOf(track, frame);
    if (row < 0) continue;
    const { x_px: x, y_px: y, confidence } = track.columns;
    if (Number.isFinite(x[row])) {
      places.push({ object: track.object, x: x[row], y: y[row], confidence: confidence[row] });
    }
  }
  return places;
}

/**
 * Time of a frame in seconds: what the table says if its row is here, else by the frame rate.
 *
 * @param {Results|null} results
 * @param {number} frame
 * @param {number} fps
 */
export function timeOf(results, frame, fps) {
  const here = results?.tiles.has(frame) ? results.tiles.at(frame) : null;
  for (const track of here?.values() ?? []) {
    const row = rowOf(track, frame);
    if (row >= 0) return track.columns.time[row];
  }
  return fps ? (results?.start ?? 0) + frame / fps : NaN;
}

/**
 * First entry after (or last before) a frame, by its first frame.
 *
 * @param {number[]} starts Sorted.
 * @param {number} frame
 * @param {1|-1} direction
 * @returns {number|null}
 */
export function nextStart(starts, frame, direction) {
  const list = direction > 0 ? starts : [...starts].reverse();
  return list.find((start) => (direction > 0 ? start > frame : start < frame)) ?? null;
}
