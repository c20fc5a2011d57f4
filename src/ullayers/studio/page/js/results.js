/**
 * What a run found in one sequence: tracks or codes, their outlines, and where to look twice. Parts
 * of long tables are fetched when they are needed and kept in bounded memory.
 */

import { ApiError, api } from "./api.js";

/** @import {Crossing, Details, Sequence, Source} from "./store.js" */
/** @typedef {Record<string, Float32Array>} Columns Of one object, sorted by frame. */
/** @typedef {{object: number, rows: number, columns: Columns}} Track */
/** @typedef {{object: number, x: number, y: number, confidence: number}} Place In pixels. */
/** @typedef {{object: number, first: number, last: number, sure: number|null}} Found One object. */
/** @typedef {[number, number[]]} Outline Object and its x0, y0, x1, y1, ... in pixels. */
/** @typedef {Record<string, Outline[]>} Outlined Outlines by frame. */
/** @typedef {Map<number, Track>} Tile Rows of each object. */
/** @typedef {{level: number, tiles: Tile[]}} View Consecutive tiles that cover some frames. */

/**
 * @typedef {Object} Results
 * @property {"tracks"|"codes"} kind
 * @property {Sequence} sequence
 * @property {Found[]} objects
 * @property {string[]} columns Of the time lines.
 * @property {Record<string, [number, number]>} ranges Lowest and highest value of each column.
 * @property {Tiles} tiles Rows of the frames that are looked at.
 * @property {Track[]} sample Every n-th row, for the scatter.
 * @property {Chunks<Outlined>|null} outlines
 * @property {[number, number][]} unsure First and last frames of stretches.
 * @property {Crossing[]} crossings
 * @property {number} first First frame.
 * @property {number} last Last frame.
 * @property {number} fps
 * @property {number} start Time of frame 0 in seconds.
 */

export const UNSURE = 0.5; // below this confidence a place is not to be relied on
export const MOST_LANES = 6;
const LANES = ["x_px", "y_px", "speed", "confidence"];
const TRACK_COLUMNS = ["frame", "time", ...LANES];

const SIDE = 1024; // rows of an object in a tile
const TABLE_BUDGET = 16e6; // bytes
const OUTLINES_SIDE = 100; // frames
const OUTLINES_BUDGET = 24e6; // bytes, estimated

const RETRY = 2000; // ms after which a part that failed is asked for again
const AT_ONCE = 3; // requests; what is not asked for now is asked for at the next draw
const KEPT = 12; // parts that are kept even if they are large: those of one view

/**
 * @param {Details} details
 * @param {Sequence} given
 * @param {Source[]} sources
 * @param {number|null} frame That is shown first; null for the first one.
 * @returns {Promise<Results>}
 */
export async function loadResults(details, given, sources, frame) {
  const kind = details.task === "locate" ? "tracks" : "codes";
  const places = kind === "tracks";
  const sequence = complete(given, sources);
  const { id } = details;
  const sampled = { columns: places ? ["frame", "x_px", "y_px"] : [] };
  const [overview, points] = await Promise.all([
    api.overview(id, sequence.name),
    api.table(id, "sample", sequence.name, sampled),
  ]);
  const names = Object.keys(overview.ranges);
  const columns = places ? LANES.filter((name) => names.includes(name)) : names;
  const first = sequence.first ?? 0;
  const ends = overview.objects.map((/** @type {Found} */ found) => found.last);
  const last = Math.max(first, sequence.last ?? 0, ...ends);
  const lanes = columns.slice(0, MOST_LANES);
  const tiles = new Tiles(id, sequence.name, places ? TRACK_COLUMNS : [], lanes, last);
  const outlines = places ? outlinesOf(id, sequence.name, last) : null;
  await Promise.all([tiles.ready(frame ?? first), outlines?.ready(frame ?? first)]);
  return {
    kind,
    sequence,
    objects: overview.objects,
    columns,
    ranges: overview.ranges,
    tiles,
    sample: readTable(points),
    outlines,
    unsure: overview.unsure,
    crossings: details.crossings.filter((crossing) => crossing.sequence === sequence.name),
    first,
    last,
    fps: overview.fps ?? sequence.fps,
    start: overview.start,
  };
}

/** What a run does not say, its video does. @param {Sequence} sequence @param {Source[]} sources */
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
 */
export function placesAt(results, frame) {
  /** @type {Place[]} */
  const places = [];
  if (results.kind !== "tracks") return places;
  for (const track of results.tiles.at(frame)?.values() ?? []) {
    const row = rowOf(track, frame);
    const { x_px: x, y_px: y, confidence } = track.columns;
    if (row >= 0 && Number.isFinite(x[row]))
      places.push({ object: track.object, x: x[row], y: y[row], confidence: confidence[row] });
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
 * The binary tables in which tracks and codes travel (float32, one block per object).
 *
 * @param {ArrayBuffer} buffer
 * @returns {Track[]}
 */
function readTable(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 8 * Math.ceil((4 + length) / 8);
  return head.objects.map((/** @type {{object: number, rows: number}} */ { object, rows }) => {
    /** @type {Columns} */
    const columns = {};
    for (const name of head.columns) {
      columns[name] = new Float32Array(buffer, offset, rows);
      offset += 4 * rows;
    }
    return { object, rows, columns };
  });
}

/** Index of the first value that is not less. @param {Float32Array} sorted @param {number} value */
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

/** Row of a frame, or -1. @param {Track} track @param {number} frame */
export function rowOf(track, frame) {
  const frames = track.columns.frame;
  const guess = frame - frames[0]; // tables mostly have a row for every frame
  if (frames[guess] === frame) return guess;
  const row = lowerBound(frames, frame);
  return frames[row] === frame ? row : -1;
}

/**
 * Parts of something long, by keys "level/number". Those of level 0 have `side` frames each.
 *
 * @template Part
 */
class Chunks {
  /**
   * @param {number} side
   * @param {number} last Last frame.
   * @param {number} budget Bytes to keep.
   * @param {(level: number, number: number) => Promise<{part: Part, bytes: number}>} fetch
   */
  constructor(side, last, budget, fetch) {
    this.side = side;
    this.last = last;
    this.budget = budget;
    this.fetch = fetch;
    /** @type {Map<string, {part: Part, bytes: number}>} Least recently used first. */
    this.kept = new Map();
    /** @type {Map<string, Promise<void>>} */
    this.coming = new Map();
    /** @type {Map<string, number>} When a part failed. */
    this.failed = new Map();
    this.bytes = 0;
    this.onload = () => {};
  }

  /** Whether the part of a frame is here. @param {number} frame */
  has(frame) {
    return this.kept.has(`0/${Math.floor(frame / this.side)}`);
  }

  /** Fetch what is shown first. @param {number} frame @returns {Promise<any>} */
  ready(frame) {
    return this.load(`0/${Math.floor(frame / this.side)}`);
  }

  /**
   * The part of a frame; null if it is not here yet, in which case it is fetched. If the frame is
   * close to another part, that is fetched, too.
   *
   * @param {number} frame
   */
  at(frame) {
    const number = Math.floor(frame / this.side);
    const part = this.get(0, number);
    const place = frame / this.side - number;
    if (place > 0.6 && (number + 1) * this.side <= this.last) this.get(0, number + 1);
    else if (place < 0.2 && number) this.get(0, number - 1);
    return part;
  }

  /**
   * A part; null if it is not here yet.
   *
   * @param {number} level
   * @param {number} number
   * @param {boolean} [fetch] Whether to fetch it then.
   * @returns {Part|null}
   */
  get(level, number, fetch = true) {
    const key = `${level}/${number}`;
    const entry = this.kept.get(key);
    if (!entry) {
      if (fetch) this.load(key);
      return null;
    }
    this.kept.delete(key);
    this.kept.set(key, entry);
    return entry.part;
  }

  /** Fetch a part unless it is here or on its way. @param {string} key @returns {Promise<void>} */
  load(key) {
    const running = this.coming.get(key);
    if (running) return running;
    if (this.kept.has(key) || this.coming.size >= AT_ONCE) return Promise.resolve();
    if (performance.now() - (this.failed.get(key) ?? -Infinity) < RETRY) return Promise.resolve();
    const [level, number] = key.split("/").map(Number);
    const coming = this.fetch(level, number)
      .then(({ part, bytes }) => {
        this.failed.delete(key);
        this.keep(key, part, bytes);
      })
      .catch(() => {
        // The page is useful without it; it is asked for again at the next draw.
        this.failed.set(key, performance.now());
        setTimeout(() => this.onload(), RETRY);
      })
      .finally(() => {
        this.coming.delete(key);
        this.onload();
      });
    this.coming.set(key, coming);
    return coming;
  }

  /** @param {string} key @param {Part} part @param {number} bytes */
  keep(key, part, bytes) {
    this.kept.set(key, { part, bytes });
    this.bytes += bytes;
    for (const [oldest, entry] of this.kept) {
      if (this.bytes <= this.budget || this.kept.size <= KEPT) break;
      this.kept.delete(oldest);
      this.bytes -= entry.bytes;
    }
  }
}

/** @param {string} run @param {string} sequence @param {number} last Last frame. */
function outlinesOf(run, sequence, last) {
  return new Chunks(OUTLINES_SIDE, last, OUTLINES_BUDGET, async (_, number) => {
    const first = number * OUTLINES_SIDE;
    /** @type {Outlined} */
    let part = {};
    try {
      part = (await api.outlines(run, sequence, first, first + OUTLINES_SIDE - 1)).frames;
    } catch (error) {
      // A run that was made without outlines answers 404.
      if (!(error instanceof ApiError && error.status === 404)) throw error;
    }
    let numbers = 0;
    for (const [, points] of Object.values(part).flat()) numbers += points.length + 8;
    return { part, bytes: 8 * numbers };
  });
}

/**
 * The table of a sequence in tiles, as maps have them. Tiles of level 0 have the rows of some
 * frames. Those of level n have the lowest and highest values of every 2^n frames, for time lines.
 * What is kept does not grow with the length of the video.
 *
 * @extends {Chunks<Tile>}
 */
class Tiles extends Chunks {
  /**
   * @param {string} run
   * @param {string} sequence
   * @param {string[]} columns Of the rows; none for all.
   * @param {string[]} lanes Columns that time lines show.
   * @param {number} last Last frame.
   */
  constructor(run, sequence, columns, lanes, last) {
    super(SIDE, last, TABLE_BUDGET, async (level, number) => {
      const step = 2 ** level;
      const first = number * SIDE * step;
      const span = { first, last: first + SIDE * step - 1 };
      const buffer = level
        ? await api.table(run, "extremes", sequence, { ...span, step, columns: lanes })
        : await api.table(run, "rows", sequence, { ...span, columns });
      const tracks = readTable(buffer).filter(({ rows }) => rows);
      return {
        part: new Map(tracks.map((track) => [track.object, track])),
        bytes: buffer.byteLength,
      };
    });
    this.top = Math.max(0, Math.ceil(Math.log2((last + 1) / SIDE))); // level with a single tile
  }

  /** @param {number} frame */
  async ready(frame) {
    await Promise.all([this.load(`${this.top}/0`), super.ready(frame)]);
  }

  /**
   * Tiles for time lines: as fine as is of use, or as fine as they are here by now.
   *
   * @param {[number, number]} window First and last frame.
   * @param {number} pixels Width of the window.
   * @returns {View}
   */
  view(window, pixels) {
    const frames = window[1] - window[0];
    const wanted = Math.ceil(Math.log2(Math.max(1, frames / (2 * pixels))));
    for (let level = Math.min(wanted, this.top); level <= this.top; level += 1) {
      // Coarser tiles will do if they are here, but only the wanted ones are asked for.
      const tiles = this.cover(level, window, level === Math.min(wanted, this.top));
      if (tiles.every((tile) => tile)) return { level, tiles: /** @type {Tile[]} */ (tiles) };
    }
    this.load(`${this.top}/0`);
    return { level: this.top, tiles: [] };
  }

  /**
   * @param {number} level
   * @param {[number, number]} window
   * @param {boolean} fetch Whether to fetch what is missing.
   * @returns {(Tile|null)[]}
   */
  cover(level, [first, last], fetch) {
    const side = SIDE * 2 ** level;
    const from = Math.max(0, Math.floor((first - 2 ** level) / side)); // a line comes from before
    const to = Math.floor(Math.min(this.last, last + 2 ** level) / side);
    return Array.from({ length: to - from + 1 }, (_, place) =>
      this.get(level, from + place, fetch),
    );
  }
}
