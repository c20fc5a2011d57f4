/**
 * Correcting what was found. Corrections go to the server one after the other and nothing is shown
 * before the server has kept it; one that was on its way when the connection broke is sent again.
 */

import { api } from "./api.js";

/** @typedef {import("./store.js").Correction} Correction */

export class Corrector {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./session.js").Session} session
   * @param {import("./playhead.js").Playhead} playhead
   * @param {(text: string) => void} say
   */
  constructor(store, session, playhead, say) {
    this.store = store;
    this.session = session;
    this.playhead = playhead;
    this.say = say;
    this.queue = Promise.resolve();
    this.waiting = 0; // tasks in the queue
    /** @type {{run: string, correction: Correction, count: number}|null} Not known to be kept. */
    this.pending = null;
  }

  get ready() {
    const { results, open } = this.store.state;
    return open.kind === "run" && results?.kind === "tracks";
  }

  /** @param {Record<string, any>} fields */
  apply(fields) {
    const { open, sequence, details } = this.store.state;
    if (!this.ready || !sequence || !details) return;
    const run = /** @type {string} */ (open.id);
    const correction = /** @type {Correction} */ ({ op: fields.op, sequence, ...fields });
    this.enqueue(async () => {
      const count = this.store.state.details?.corrections.applied.length ?? 0;
      this.pending = { run, correction, count };
      await this.send();
    });
  }

  async send() {
    if (!this.pending) return;
    const { run, correction } = this.pending;
    try {
      await api.correct(run, correction);
      this.pending = null;
    } catch (error) {
      if (/** @type {import("./api.js").ApiError} */ (error).lost) {
        this.say("The correction is kept here and sent when the connection is back.");
        return;
      }
      this.pending = null;
      throw error;
    }
    await this.session.reload();
  }

  /** After a new connection: send what may not have arrived, but never twice. */
  reconnect() {
    if (!this.pending) return;
    this.enqueue(async () => {
      if (!this.pending) return;
      const { run, count } = this.pending;
      const { applied } = await api.corrections(run);
      if (applied.length > count) this.pending = null;
      await this.send();
      await this.session.reload();
    });
  }

  /** @param {() => Promise<void>} task */
  enqueue(task) {
    this.waiting += 1;
    this.queue = this.queue
      .then(task)
      .catch((error) => this.say(error.message))
      .finally(() => (this.waiting -= 1));
    return this.queue;
  }

  /** Whether a correction of this page is under way. */
  get busy() {
    return this.waiting > 0;
  }

  undo() {
    this.travel(api.undo, "applied", "There is nothing to undo.");
  }

  redo() {
    this.travel(api.redo, "undone", "There is nothing to redo.");
  }

  /**
   * @param {(id: string) => Promise<any>} call
   * @param {"applied"|"undone"} list
   * @param {string} none
   */
  travel(call, list, none) {
    const id = this.store.state.open.id;
    if (!this.ready || !id) return;
    this.enqueue(async () => {
      if (!this.store.state.details?.corrections[list].length) return this.say(none);
      await call(id);
      await this.session.reload();
    });
  }

  /** The two selected objects change their numbers from this frame on. */
  swap() {
    const pair = this.pair("Select two objects to swap them.");
    if (pair) this.apply({ op: "swap", objects: pair, first: this.playhead.frame });
  }

  merge() {
    const pair = this.pair("Select two objects to merge them.");
    if (pair) this.apply({ op: "merge", objects: [Math.min(...pair), Math.max(...pair)] });
  }

  split() {
    const object = this.single("Select one object to split it.");
    if (object !== null) this.apply({ op: "split", object, first: this.playhead.frame });
  }

  /** Delete the selected object: in the marked range, or everywhere. */
  remove() {
    const object = this.single("Select one object to delete it.");
    const [first, last] = this.store.state.range ?? [null, null];
    if (object !== null) this.apply({ op: "delete", object, first, last });
  }

  /** The next click on the picture says where the object is. */
  aim() {
    if (this.store.state.moving) this.store.set({ moving: false });
    else if (this.single("Select one object to move it.") !== null)
      this.store.set({ moving: true });
  }

  /** @param {number} x In pixels of the video. @param {number} y */
  move(x, y) {
    const object = this.single("Select one object to move it.");
    this.store.set({ moving: false });
    if (object === null) return;
    const round = (/** @type {number} */ value) => Number(value.toFixed(2));
    this.apply({ op: "move", object, frame: this.playhead.frame, x: round(x), y: round(y) });
  }

  /** There is no object in the marked range, or in this frame. */
  nothing() {
    const [first, last] = this.store.state.range ?? [this.playhead.frame, this.playhead.frame];
    this.apply({ op: "nothing", first, last });
  }

  /** @param {string} otherwise @returns {[number, number]|null} */
  pair(otherwise) {
    const { picked } = this.store.state;
    if (this.ready && picked.length === 2) return [picked[0], picked[1]];
    if (this.ready) this.say(otherwise);
    return null;
  }

  /** @param {string} otherwise @returns {number|null} */
  single(otherwise) {
    const { picked, results } = this.store.state;
    if (!this.ready) return null;
    if (picked.length === 1) return picked[0];
    if (!picked.length && results?.objects.length === 1) return results.objects[0].object;
    this.say(otherwise);
    return null;
  }
}

/**
 * A correction in words.
 *
 * @param {Correction} correction
 */
export function correctionSentence(correction) {
  const { op, object, objects, first, last, frame } = correction;
  const span = last === first ? `in frame ${first}` : `in frames ${first}–${last}`;
  if (op === "swap") return `Swapped ${objects[0]} and ${objects[1]} from frame ${first} on`;
  if (op === "merge") return `Merged ${objects[1]} into ${objects[0]}`;
  if (op === "split") return `Split ${object} at frame ${first}`;
  if (op === "delete")
    return first === null && last === null ? `Deleted ${object}` : `Deleted ${object} ${span}`;
  if (op === "move") return `Moved ${object} in frame ${frame}`;
  if (op === "nothing") return `Nothing ${span}`;
  return op;
}

/** Frame that a correction is about, or null. @param {Correction} correction */
export function correctionFrame(correction) {
  return correction.frame ?? correction.first ?? null;
}
