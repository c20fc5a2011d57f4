/** Parts of something long, fetched when they are needed and kept in bounded memory. */

const RETRY = 2000; // ms after which a part that failed is asked for again
const AT_ONCE = 3; // requests; what is not asked for now is asked for at the next draw
const KEPT = 12; // parts that are kept even if they are large: those of one view

/** @template Part */
export class Chunks {
  /**
   * @param {number} budget Bytes to keep.
   * @param {(key: string) => Promise<{part: Part, bytes: number}>} fetch
   */
  constructor(budget, fetch) {
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

  /** @param {string} key @returns {boolean} */
  has(key) {
    return this.kept.has(key);
  }

  /**
   * A part; null if it is not here yet.
   *
   * @param {string} key
   * @returns {Part|null}
   */
  get(key) {
    const entry = this.kept.get(key);
    if (!entry) return null;
    this.kept.delete(key);
    this.kept.set(key, entry);
    return entry.part;
  }

  /**
   * Fetch a part unless it is here or on its way.
   *
   * @param {string} key
   * @returns {Promise<void>}
   */
  load(key) {
    const running = this.coming.get(key);
    if (running) return running;
    if (this.kept.has(key) || this.coming.size >= AT_ONCE) return Promise.resolve();
    if (performance.now() - (this.failed.get(key) ?? -Infinity) < RETRY) return Promise.resolve();
    const coming = this.fetch(key)
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
