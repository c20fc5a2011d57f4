/**
 * Where in the video we are. While it plays, the clock decides which frame is due, and the newest
 * picture at hand that is not later is shown: a slow computer drops frames, but never lags.
 */

const STARVED = 1000; // ms without a new picture after which the clock waits
export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];

export class Playhead extends EventTarget {
  constructor() {
    super();
    this.frame = 0;
    this.first = 0;
    this.last = 0;
    this.fps = 25;
    this.speed = 1;
    this.playing = false;
    /** @type {1|-1} Direction of travel, for what to fetch next. */
    this.direction = 1;
    this.scrubbing = false;
    this.stride = 1; // frames from one picture to the next while playing
    this.due = 0; // frame that the clock is at
    /** @type {(frame: number) => boolean} Whether the pictures of a frame are loaded. */
    this.available = () => true;
    this.anchor = { frame: 0, time: 0 };
    this.shown = 0; // when the last new picture came
    this.balance = 0; // of pictures that were in time and late
  }

  /**
   * Set the range of frames, when another video is opened.
   *
   * @param {number} first
   * @param {number} last
   * @param {number} fps
   * @param {number} frame To start from.
   */
  setRange(first, last, fps, frame) {
    this.assume(first, last, fps, frame);
    this.dispatchEvent(new Event("range"));
    this.place(frame, false);
  }

  /**
   * The same without telling anyone, so that those who are told of another video first do not ask
   * for a frame of the one before.
   *
   * @param {number} first
   * @param {number} last
   * @param {number} fps
   * @param {number} frame
   */
  assume(first, last, fps, frame) {
    this.first = first;
    this.last = Math.max(first, last);
    this.fps = fps > 0 ? fps : 25;
    this.frame = this.due = Math.min(this.last, Math.max(first, frame));
  }

  /**
   * Go to a frame, because the user wants to.
   *
   * @param {number} frame
   * @param {{scrubbing?: boolean}} [options]
   */
  seek(frame, { scrubbing = false } = {}) {
    this.dispatchEvent(new Event("sought"));
    this.place(frame, scrubbing);
  }

  /** @param {number} frame @param {boolean} scrubbing */
  place(frame, scrubbing) {
    const place = Math.min(this.last, Math.max(this.first, Math.round(frame) || 0));
    this.scrubbing = scrubbing;
    if (place !== this.frame) this.direction = place > this.frame ? 1 : -1;
    this.frame = place;
    this.due = place;
    this.rewind();
    this.dispatchEvent(new Event("frame"));
  }

  /** @param {number} count */
  step(count) {
    this.pause();
    this.seek(this.frame + count);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.playing || this.last === this.first) return;
    this.dispatchEvent(new Event("sought"));
    if (this.frame >= this.last) this.place(this.first, false);
    this.playing = true;
    this.direction = 1;
    this.scrubbing = false;
    this.stride = this.smallestStride;
    this.balance = 0;
    this.rewind();
    this.dispatchEvent(new Event("playing"));
    requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.due = this.frame;
    this.dispatchEvent(new Event("playing"));
    this.dispatchEvent(new Event("frame")); // what is fetched ahead changes
  }

  /** @param {number} speed */
  setSpeed(speed) {
    this.speed = speed;
    this.stride = this.smallestStride;
    this.rewind();
    this.dispatchEvent(new Event("playing"));
  }

  /** No screen shows more than about sixty pictures a second. */
  get smallestStride() {
    return Math.max(1, Math.ceil((this.fps * this.speed) / 60));
  }

  rewind() {
    this.anchor = { frame: this.frame, time: performance.now() };
    this.shown = this.anchor.time;
  }

  /** @param {number} now */
  tick(now) {
    if (!this.playing) return;
    const passed = Math.max(0, now - this.anchor.time);
    this.due = Math.min(
      this.last,
      Math.floor(this.anchor.frame + (passed * this.fps * this.speed) / 1000),
    );
    const ready = this.newestReady();
    if (ready > this.frame) {
      this.adapt(ready);
      this.frame = ready;
      this.shown = now;
    } else if (now - this.shown > STARVED) {
      this.due = this.frame + this.stride;
      this.rewind();
    }
    this.dispatchEvent(new Event("frame"));
    if (this.frame >= this.last) this.pause();
    else requestAnimationFrame((next) => this.tick(next));
  }

  newestReady() {
    const furthest = Math.max(this.frame, this.due - 250);
    for (let frame = this.due; frame > furthest; frame -= 1) {
      if (this.available(frame)) return frame;
    }
    return this.frame;
  }

  /**
   * Ask for fewer frames if pictures come late, and for more again if they are in time.
   *
   * @param {number} ready
   */
  adapt(ready) {
    this.balance += this.due - ready >= this.stride ? -2 : 1;
    if (this.balance < -8) {
      this.stride = Math.ceil(1.4 * this.stride);
      this.balance = 0;
    } else if (this.balance > 40) {
      this.stride = Math.max(this.smallestStride, Math.floor(0.75 * this.stride));
      this.balance = 0;
    }
  }

  /**
   * Frames that will be wanted, most urgent first.
   *
   * @param {number} most
   * @returns {number[]}
   */
  ahead(most) {
    if (this.scrubbing) return [this.frame];
    const list = [];
    const inside = (/** @type {number} */ frame) => frame >= this.first && frame <= this.last;
    if (this.playing) {
      // Multiples of the stride, so that the same frames are wanted from one tick to the next.
      const next = Math.ceil(Math.max(this.due, this.frame + 1) / this.stride) * this.stride;
      for (let count = 0; count < most; count += 1) list.push(next + count * this.stride);
      if (next + (most - 1) * this.stride > this.last) list.push(this.last);
      return list.filter(inside);
    }
    list.push(this.frame);
    const near = Array.from({ length: Math.min(most, 10) - 1 }, (_, place) => place + 1);
    // Also backwards in the order of time, in which videos are decoded.
    if (this.direction < 0) near.reverse();
    list.push(...near.map((count) => this.frame + count * this.direction));
    list.push(...[1, 2, 3].map((count) => this.frame - count * this.direction));
    return list.filter(inside);
  }
}
