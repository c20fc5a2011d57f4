/** What a run found in one sequence: tracks or codes, their outlines, and where to look twice. */

import { api } from "./api.js";
import { extent } from "./decimate.js";
import { Outlines } from "./outlines.js";
import { readTable, rowOf } from "./tables.js";

export const UNSURE = 0.5; // below this confidence a place is not to be relied on
const LANES = ["x_px", "y_px", "speed", "confidence"];
const TRACK_COLUMNS = ["frame", "time", "x_px", "y_px", "confidence", "speed"];

/** @typedef {import("./tables.js").Track} Track */
/** @typedef {{object: number, x: number, y: number, confidence: number}} Place In pixels of the video. */
/** @typedef {[number, number]} Stretch First and last frame. */

/**
 * @typedef {Object} Results
 * @property {"tracks"|"codes"} kind
 * @property {import("./store.js").Sequence} sequence
 * @property {Track[]} tracks
 * @property {string[]} columns Of the time lines.
 * @property {Outlines|null} outlines
 * @property {Stretch[]} unsure
 * @property {import("./store.js").Crossing[]} crossings
 * @property {number} first First frame.
 * @property {number} last Last frame.
 * @property {number} fps
 */

/**
 * @param {import("./store.js").Details} details
 * @param {import("./store.js").Sequence} given
 * @param {import("./store.js").Source[]} sources
 * @returns {Promise<Results>}
 */
export async function loadResults(details, given, sources) {
  const kind = details.task === "locate" ? "tracks" : "codes";
  const buffer =
    kind === "tracks"
      ? await api.tracks(details.id, given.name, TRACK_COLUMNS)
      : await api.codes(details.id, given.name);
  const table = readTable(buffer);
  const tracks = table.tracks.filter((track) => track.rows);
  const sequence = complete(given, sources);
  const start = sequence.first ?? 0;
  const ends = tracks.map((track) => track.columns.frame[track.rows - 1]);
  const names = kind === "tracks" ? LANES : table.columns.filter((name) => /^y\d+$/.test(name));
  return {
    kind,
    sequence,
    tracks,
    columns: names.filter((name) =>
      tracks.some(({ columns }) => extent(columns[name])[0] < Infinity),
    ),
    outlines: kind === "tracks" ? new Outlines(details.id, sequence.name) : null,
    unsure: kind === "tracks" ? unsureStretches(tracks) : [],
    crossings: details.crossings.filter((crossing) => crossing.sequence === sequence.name),
    first: start,
    last: Math.max(start, start + (sequence.frames ?? 1) - 1, ...ends),
    fps: rateOf(tracks) ?? sequence.fps,
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
 * Frames per second by the times of the table, which a camera does not keep quite evenly.
 *
 * @param {Track[]} tracks
 * @returns {number|null}
 */
function rateOf(tracks) {
  const [longest] = [...tracks].sort((a, b) => b.rows - a.rows);
  if (!longest || longest.rows < 2) return null;
  const { frame, time } = longest.columns;
  const last = longest.rows - 1;
  const rate = (frame[last] - frame[0]) / (time[last] - time[0]);
  return Number.isFinite(rate) && rate > 0 ? rate : null;
}

/**
 * Stretches of frames in which the confidence of any object is low.
 *
 * @param {Track[]} tracks
 * @returns {Stretch[]}
 */
export function unsureStretches(tracks) {
  /** @type {Stretch[]} */
  const found = [];
  for (const { rows, columns } of tracks) {
    let start = -1;
    for (let row = 0; row <= rows; row += 1) {
      const low = row < rows && columns.confidence[row] < UNSURE;
      if (low && start < 0) start = row;
      if (!low && start >= 0) {
        found.push([columns.frame[start], columns.frame[row - 1]]);
        start = -1;
      }
    }
  }
  return union(found);
}

/** @param {Stretch[]} stretches @returns {Stretch[]} */
function union(stretches) {
  stretches.sort((a, b) => a[0] - b[0]);
  /** @type {Stretch[]} */
  const merged = [];
  for (const [first, last] of stretches) {
    const latest = merged.at(-1);
    if (latest && first <= latest[1] + 1) latest[1] = Math.max(latest[1], last);
    else merged.push([first, last]);
  }
  return merged;
}

/**
 * Places of all objects in a frame.
 *
 * @param {Results} results
 * @param {number} frame
 * @returns {Place[]}
 */
export function placesAt(results, frame) {
  if (results.kind !== "tracks") return [];
  /** @type {Place[]} */
  const places = [];
  for (const track of results.tracks) {
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
 * Time of a frame in seconds: what the table says, else by the frame rate.
 *
 * @param {Results|null} results
 * @param {number} frame
 * @param {number} fps
 */
export function timeOf(results, frame, fps) {
  for (const track of results?.tracks ?? []) {
    const row = rowOf(track, frame);
    if (row >= 0) return track.columns.time[row];
  }
  return fps ? frame / fps : NaN;
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
