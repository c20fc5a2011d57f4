/**
 * The table of a sequence in tiles, as maps have them. Tiles of level 0 have the rows of some frames.
 * Those of level n have the lowest and highest values of every 2^n frames, for time lines. What is
 * kept does not grow with the length of the video.
 */

import { api } from "./api.js";
import { Chunks } from "./chunks.js";
import { readTable } from "./tables.js";

const SIDE = 1024; // rows of an object in a tile
const BUDGET = 16e6; // bytes

/** @typedef {import("./tables.js").Track} Track */
/** @typedef {Map<number, Track>} Tile Rows of each object. */
/** @typedef {{level: number, tiles: Tile[]}} View Consecutive tiles that cover some frames. */

export class Tiles {
  /**
   * @param {string} run
   * @param {string} sequence
   * @param {string[]} columns Of the rows.
   * @param {string[]} lanes Columns that time lines show.
   * @param {number} last Last frame.
   */
  constructor(run, sequence, columns, lanes, last) {
    this.run = run;
    this.sequence = sequence;
    this.columns = columns;
    this.lanes = lanes;
    this.last = last;
    this.top = Math.max(0, Math.ceil(Math.log2((last + 1) / SIDE))); // level with a single tile
    /** @type {Chunks<Tile>} */
    this.chunks = new Chunks(BUDGET, (key) => this.fetch(key));
  }

  /** Fetch what is shown first. @param {number} frame */
  async ready(frame) {
    await Promise.all([this.chunks.load(`${this.top}/0`), this.chunks.load(this.keyOf(frame))]);
  }

  /** @param {number} frame */
  keyOf(frame) {
    return `0/${Math.floor(frame / SIDE)}`;
  }

  /** Whether the rows of a frame are here. @param {number} frame */
  has(frame) {
    return this.chunks.has(this.keyOf(frame));
  }

  /**
   * The rows around a frame; null if they are not here yet, in which case they are fetched.
   *
   * @param {number} frame
   * @returns {Tile|null}
   */
  at(frame) {
    const number = Math.floor(frame / SIDE);
    const tile = this.tile(0, number);
    const place = frame - number * SIDE;
    if (place > 0.6 * SIDE && (number + 1) * SIDE <= this.last) this.tile(0, number + 1);
    else if (place < 0.2 * SIDE && number) this.tile(0, number - 1);
    return tile;
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
      // Finer tiles than needed would be fetched for nothing, so only the wanted ones are asked for.
      const tiles = this.cover(level, window, level === Math.min(wanted, this.top));
      if (tiles.every((tile) => tile)) return { level, tiles: /** @type {Tile[]} */ (tiles) };
    }
    this.chunks.load(`${this.top}/0`);
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
      fetch ? this.tile(level, from + place) : this.chunks.get(`${level}/${from + place}`),
    );
  }

  /** @param {number} level @param {number} number */
  tile(level, number) {
    const key = `${level}/${number}`;
    const tile = this.chunks.get(key);
    if (!tile) this.chunks.load(key);
    return tile;
  }

  /** @param {string} key @returns {Promise<{part: Tile, bytes: number}>} */
  async fetch(key) {
    const [level, number] = key.split("/").map(Number);
    const step = 2 ** level;
    const first = number * SIDE * step;
    const last = first + SIDE * step - 1;
    const buffer = level
      ? await api.extremes(this.run, this.sequence, first, last, step, this.lanes)
      : await api.rows(this.run, this.sequence, first, last, this.columns);
    const { tracks } = readTable(buffer);
    const part = new Map(tracks.filter(({ rows }) => rows).map((track) => [track.object, track]));
    return { part, bytes: buffer.byteLength };
  }
}
