/** Outlines of objects, fetched in chunks of frames around the playhead and kept in bounded memory. */

import { ApiError, api } from "./api.js";
import { Chunks } from "./chunks.js";

const CHUNK = 100; // frames
const BUDGET = 24e6; // bytes, estimated

/** @typedef {[number, number[]]} Outline Object and its points x0, y0, x1, y1, ... in pixels of the video. */
/** @typedef {Record<string, Outline[]>} Outlined Outlines by frame. */

export class Outlines {
  /**
   * @param {string} run
   * @param {string} sequence
   */
  constructor(run, sequence) {
    this.run = run;
    this.sequence = sequence;
    /** @type {Chunks<Outlined>} */
    this.chunks = new Chunks(BUDGET, (key) => this.fetch(Number(key)));
  }

  /**
   * Outlines of a frame; null if they are not here yet, in which case they are fetched.
   *
   * @param {number} frame
   * @returns {Outline[]|null}
   */
  at(frame) {
    const number = Math.floor(frame / CHUNK);
    const chunk = this.chunks.get(String(number));
    if (!chunk) {
      this.chunks.load(String(number));
      return null;
    }
    const place = frame % CHUNK;
    if (place > 0.6 * CHUNK) this.chunks.load(String(number + 1));
    else if (place < 0.2 * CHUNK && number) this.chunks.load(String(number - 1));
    return chunk[frame] ?? [];
  }

  /** @param {number} frame */
  ready(frame) {
    return this.chunks.load(String(Math.floor(frame / CHUNK)));
  }

  /** @param {number} number @returns {Promise<{part: Outlined, bytes: number}>} */
  async fetch(number) {
    const first = number * CHUNK;
    /** @type {Outlined} */
    let part = {};
    try {
      part = (await api.outlines(this.run, this.sequence, first, first + CHUNK - 1)).frames;
    } catch (error) {
      // A run that was made without outlines answers 404.
      if (!(error instanceof ApiError && error.status === 404)) throw error;
    }
    let numbers = 0;
    for (const list of Object.values(part)) {
      for (const [, points] of list) numbers += points.length + 8;
    }
    return { part, bytes: 8 * numbers };
  }
}
