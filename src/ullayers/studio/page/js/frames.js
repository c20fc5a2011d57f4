/**
 * Pictures of frames. The viewer says which frames it wants, most urgent first; this fetches them,
 * drops requests that are no longer wanted, and keeps decoded pictures within a budget of bytes.
 */

import { api } from "./api.js";

const BUDGET = 64e6; // bytes of decoded pictures
const AT_ONCE = 4; // requests; browsers allow six per server
const WIDTHS = [320, 640, 960, 1280, 1920, 2560]; // few, so that pictures can be used again
const SCRUBBING = 2; // requests while a drag goes through many frames
const OVERDUE = 1000; // ms after which a frame that was wanted first, but no longer is, is given up
const MOST_NEAR = 1000; // entries of a set
const RETRY = 1500; // ms before a frame that failed is asked for again

/** @typedef {{bitmap: ImageBitmap, bytes: number}} Picture */
/** @typedef {{source: string, frame: number, width: number, near?: boolean}} Wish */

/**
 * The width to ask for: the smallest of a few that is enough, or 0 for the video's own.
 *
 * @param {number} shown Width on the screen, in device pixels.
 * @param {number} own Width of the video.
 */
export function widthFor(shown, own) {
  const enough = WIDTHS.find((width) => width >= shown) ?? Infinity;
  return enough < own ? enough : 0;
}

/** @param {Wish} wish */
const keyOf = ({ source, frame, width }) => `${source}/${width}/${frame}`;

export class Frames {
  constructor() {
    /** @type {Map<string, Picture>} Least recently used first. */
    this.pictures = new Map();
    this.bytes = 0;
    /** @type {Map<string, {abort: AbortController, begun: number, wish: Wish, first: boolean}>} */
    this.coming = new Map();
    /** @type {Map<string, {when: number, message: string}>} */
    this.failed = new Map();
    /** @type {Set<string>} Frames for which another one near them has come. */
    this.near = new Set();
    /** @type {Map<object, Wish[]>} What each viewer wants. */
    this.wishes = new Map();
    this.most = AT_ONCE;
    /** @type {Set<(wish: Wish) => void>} */
    this.listeners = new Set();
  }

  /** The picture of a frame at this width, or at any other that is at hand. @param {Wish} wish */
  get(wish) {
    for (const width of [wish.width, 0, ...WIDTHS.toReversed()]) {
      const key = keyOf({ ...wish, width });
      const picture = this.pictures.get(key);
      if (!picture) continue;
      this.pictures.delete(key);
      this.pictures.set(key, picture);
      return picture.bitmap;
    }
    return null;
  }

  /** Why a frame could not be fetched, or null. @param {Wish} wish */
  error(wish) {
    return this.failed.get(keyOf(wish))?.message ?? null;
  }

  /** @param {number} bytes Of one picture. */
  room(bytes) {
    return Math.max(2, Math.floor((0.8 * BUDGET) / Math.max(1, bytes)));
  }

  /**
   * Say what a viewer wants from now on, most urgent first. Nothing else of it is fetched.
   *
   * @param {object} viewer
   * @param {Wish[]} wishes
   * @param {(wish: Wish) => boolean} [useful] Requests under way that may finish all the same.
   */
  want(viewer, wishes, useful = () => false) {
    this.wishes.set(viewer, wishes);
    this.most = wishes.length === 1 ? SCRUBBING : AT_ONCE;
    const wanted = new Set([...this.wishes.values()].flat().map(keyOf));
    const now = performance.now();
    for (const [key, { abort, begun, wish, first }] of this.coming) {
      if (wanted.has(key) || useful(wish)) continue;
      // Frames that a drag has passed are still shown; otherwise nothing would be until it ends.
      if (!first || now - begun > OVERDUE) abort.abort();
    }
    this.advance();
  }

  /** Ask for what failed again, after the connection is back. */
  retry() {
    this.failed.clear();
    this.advance();
  }

  advance() {
    const lists = [...this.wishes.values()];
    const longest = Math.max(0, ...lists.map((list) => list.length));
    for (let place = 0; place < longest; place += 1) {
      for (const list of lists) {
        if (this.coming.size >= this.most) return;
        if (list[place]) this.begin(list[place], place);
      }
    }
  }

  /** @param {Wish} wish @param {number} place */
  begin(wish, place) {
    const key = keyOf(wish);
    if (this.pictures.has(key) || this.coming.has(key)) return;
    const failure = this.failed.get(key);
    if (failure && performance.now() - failure.when < RETRY) return;
    // One place is kept free for the frame that is wanted next.
    if (place > 0 && this.coming.size >= this.most - 1) return;
    const abort = new AbortController();
    this.coming.set(key, { abort, begun: performance.now(), wish, first: place === 0 });
    this.fetch(wish, abort.signal)
      .catch((error) => this.fail(wish, error))
      .finally(() => {
        this.coming.delete(key);
        this.advance();
      });
  }

  /** @param {Wish} wish @param {AbortSignal} signal */
  async fetch(wish, signal) {
    const { source, frame, width } = wish;
    const near = Boolean(wish.near) && !this.near.has(keyOf(wish));
    const { blob, number } = await api.frame(source, frame, width, near, signal);
    const bitmap = await createImageBitmap(blob);
    if (number !== frame) {
      if (this.near.size > MOST_NEAR) this.near.clear();
      this.near.add(keyOf(wish)); // the frame itself is next, if it is still wanted then
    }
    const come = { source, frame: number, width, near };
    this.keep(keyOf(come), bitmap);
    for (const listener of this.listeners) listener(come);
  }

  /** @param {Wish} wish @param {any} error */
  fail(wish, error) {
    if (error?.name === "AbortError") return;
    const message = error?.message ?? "This frame cannot be shown.";
    this.failed.set(keyOf(wish), { when: performance.now(), message });
    for (const listener of this.listeners) listener(wish);
  }

  /** @param {string} key @param {ImageBitmap} bitmap */
  keep(key, bitmap) {
    this.failed.delete(key);
    this.drop(key); // a key frame may come for several frames
    const bytes = 4 * bitmap.width * bitmap.height;
    this.pictures.set(key, { bitmap, bytes });
    this.bytes += bytes;
    for (const oldest of this.pictures.keys()) {
      if (this.bytes <= BUDGET || oldest === key) break;
      this.drop(oldest);
    }
  }

  /** @param {string} key */
  drop(key) {
    const picture = this.pictures.get(key);
    if (!picture) return;
    this.pictures.delete(key);
    this.bytes -= picture.bytes;
    picture.bitmap.close();
  }
}
