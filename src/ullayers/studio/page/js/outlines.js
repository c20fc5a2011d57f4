/** Outlines of objects, fetched in chunks of frames around the playhead and kept in bounded memory. */

import { ApiError, api } from "./api.js";

const CHUNK = 100; // frames
const BUDGET = 24e6; // bytes, estimated
const RETRY = 2000; // ms after which a chunk that failed is asked for again

/** @typedef {[number, number[]]} Outline Object and its points x0, y0, x1, y1, ... in pixels of the video. */

export class Outlines {
  /**
   * @param {string} run
   * @param {string} sequence
   */
  constructor(run, sequence) {
    this.run = run;
    this.sequence = sequence;
    /** @type {Map<number, {frames: Record<string, Outline[]>, bytes: number}>} Least recently used first. */
    this.chunks = new Map();
    /** @type {Map<number, Promise<void>>} */
    this.coming = new Map();
    /** @type {Map<number, number>} When a chunk failed. */
    this.failed = new Map();
    this.bytes = 0;
    this.onload = () => {};
  }

  /**
   * Outlines of a frame; null if they are not here yet, in which case they are fetched.
   *
   * @param {number} frame
   * @returns {Outline[]|null}
   */
  at(frame) {
    const number = Math.floor(frame / CHUNK);
    const chunk = this.chunks.get(number);
    if (!chunk) {
      this.load(number);
      return null;
    }
    this.chunks.delete(number);
    this.chunks.set(number, chunk);
    const place = frame % CHUNK;
    if (place > 0.6 * CHUNK) this.load(number + 1);
    else if (place < 0.2 * CHUNK && number) this.load(number - 1);
    return chunk.frames[frame] ?? [];
  }

  /**
   * @param {number} number
   * @returns {Promise<void>}
   */
  load(number) {
    if (this.chunks.has(number)) return Promise.resolve();
    const running = this.coming.get(number);
    if (running) return running;
    if (performance.now() - (this.failed.get(number) ?? -Infinity) < RETRY)
      return Promise.resolve();
    const coming = this.fetch(number).finally(() => this.coming.delete(number));
    this.coming.set(number, coming);
    return coming;
  }

  /** @param {number} frame */
  ready(frame) {
    return this.load(Math.floor(frame / CHUNK));
  }

  /** @param {number} number */
  async fetch(number) {
    try {
      const first = number * CHUNK;
      const { frames } = await api.outlines(this.run, this.sequence, first, first + CHUNK - 1);
      this.keep(number, frames);
      this.failed.delete(number);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        this.keep(number, {}); // a run that was made without outlines
        this.onload();
        return;
      }
      // The picture is useful without outlines; they are asked for again at the next draw.
      this.failed.set(number, performance.now());
      setTimeout(() => this.onload(), RETRY);
    }
    this.onload();
  }

  /** @param {number} number @param {Record<string, Outline[]>} frames */
  keep(number, frames) {
    let numbers = 0;
    for (const list of Object.values(frames)) {
      for (const [, points] of list) numbers += points.length + 8;
    }
    this.chunks.set(number, { frames, bytes: 8 * numbers });
    this.bytes += 8 * numbers;
    for (const [oldest, { bytes }] of this.chunks) {
      if (this.bytes <= BUDGET || this.chunks.size <= 2) break;
      this.chunks.delete(oldest);
      this.bytes -= bytes;
    }
  }
}
