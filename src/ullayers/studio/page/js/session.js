/** What the user does with videos and runs: opening, following, comparing; and the address. */

import { api } from "./api.js";
import { say, sayError } from "./dom.js";
import { loadResults, placesAt } from "./results.js";
import { isAtWork } from "./store.js";

/** @import {Socket} from "./api.js" */
/** @import {Playhead, Range} from "./player.js" */
/** @import {App, Details, Run, Source, State, Store} from "./store.js" */
/** @typedef {{sequence?: string|null, frame?: number|null, other?: string|null}} Spot In a run. */

const PAUSE = 250; // ms; browsers refuse too many changes of the address

/** @param {Source} source @param {number} frame @returns {Range} */
function rangeOf(source, frame) {
  const frames = source.frames ?? Math.round((source.seconds ?? 0) * (source.fps ?? 0));
  return [0, frames - 1, source.fps ?? 0, frame];
}

export class Session {
  /** @param {Store} store @param {Playhead} playhead */
  constructor(store, playhead) {
    this.store = store;
    this.playhead = playhead;
    /** @type {Socket|null} */
    this.socket = null;
    this.turn = 0; // of opening something; an answer for an earlier turn comes too late
    this.next = 0; // record to ask for
    /** @type {Map<number, number[]>} Places or codes of the frames that a run at work has shown. */
    this.path = new Map();
    playhead.addEventListener("sought", () => store.set({ follow: false }));
  }

  /** @param {string} id @param {number} [frame] */
  openSource(id, frame = 0) {
    this.turn += 1;
    const source = this.store.state.sources.find((entry) => entry.id === id);
    if (!source) return;
    this.begin({ kind: "source", id }, rangeOf(source, frame));
    this.watch(null);
  }

  /** @param {string} id @param {Spot} [spot] */
  async openRun(id, { sequence = null, frame = null, other = null } = {}) {
    const turn = (this.turn += 1);
    const run = this.store.state.runs.find((entry) => entry.id === id);
    if (!run) return;
    const source = this.store.state.sources.find((entry) => entry.id === run.sources[0]);
    const range = source ? rangeOf(source, frame ?? 0) : null;
    this.begin({ kind: "run", id }, range, isAtWork(run));
    this.next = 0;
    this.watch(id);
    await this.load(turn, sequence, frame);
    if (other && turn === this.turn) await this.compare(other);
  }

  /** @param {State["open"]} open @param {Range|null} range @param {boolean} [follow] */
  begin(open, range, follow = false) {
    this.playhead.pause();
    if (range) this.playhead.assume(range);
    this.path.clear();
    this.store.set({
      open,
      follow,
      sequence: null,
      details: null,
      results: null,
      other: null,
      records: [],
      live: null,
      picked: [],
      hidden: [],
      range: null,
      moving: false,
    });
    if (range) this.playhead.setRange(range);
  }

  close() {
    this.turn += 1;
    this.begin({ kind: "none", id: null }, [0, 0, 25, 0]);
    this.watch(null);
  }

  /**
   * Load what a run has written so far.
   *
   * @param {number} turn
   * @param {string|null} name Of the sequence; the first if null.
   * @param {number|null} frame
   */
  async load(turn, name, frame) {
    try {
      const details = await api.details(/** @type {string} */ (this.store.state.open.id));
      if (turn !== this.turn) return;
      const sequence = sequenceOf(details, name);
      if (!sequence || details.state !== "done") {
        this.store.set({ details, sequence: null, results: null });
        return;
      }
      const results = await loadResults(details, sequence, this.store.state.sources, frame);
      if (turn !== this.turn) return;
      /** @type {Range} */
      const range = [results.first, results.last, results.fps, frame ?? results.first];
      this.playhead.assume(range);
      this.store.set({ details, sequence: sequence.name, results, follow: false });
      this.playhead.setRange(range);
    } catch (error) {
      if (turn === this.turn) sayError(error);
    }
  }

  /** @param {string} name */
  async openSequence(name) {
    const turn = (this.turn += 1);
    this.playhead.pause();
    this.store.set({ picked: [], hidden: [], range: null, other: null });
    await this.load(turn, name, null);
  }

  /** Load the tracks again after a correction, without moving anything. */
  async reload() {
    const { open, sequence, sources, picked } = this.store.state;
    if (open.kind !== "run" || !open.id) return;
    const { turn } = this;
    const details = await api.details(open.id);
    const entry = details.sequences.find((candidate) => candidate.name === sequence);
    if (!entry) return;
    const results = await loadResults(details, entry, sources, this.playhead.frame);
    if (turn !== this.turn) return;
    const left = picked.filter((object) =>
      results.objects.some((found) => found.object === object),
    );
    this.store.set({ details, results, picked: left });
  }

  /** Show another run beside the open one. @param {string|null} id */
  async compare(id) {
    const { runs, results, sources } = this.store.state;
    const run = runs.find((entry) => entry.id === id);
    if (!run || !results) {
      this.store.set({ other: null });
      return;
    }
    const { turn } = this;
    try {
      const details = await api.details(run.id);
      const same = sequenceOf(details, results.sequence.name);
      if (!same) return say(`${run.name} has no results to compare with.`);
      const theirs = await loadResults(details, same, sources, this.playhead.frame);
      if (turn === this.turn) this.store.set({ other: { run, details, results: theirs } });
    } catch (error) {
      sayError(error);
    }
  }

  /** @param {string|null} id */
  watch(id) {
    this.socket?.send({ type: "watch", run: id, after: this.next });
  }

  /** Follow the open run, which may have been opened before the connection. */
  watchOpen() {
    const { open } = this.store.state;
    this.watch(open.kind === "run" ? open.id : null);
  }

  /** After a new connection: fetch what was missed. */
  async reconnect() {
    this.takeState(await api.state());
    this.watchOpen();
  }

  /**
   * Sources and runs as the server has them now.
   *
   * @param {{sources: Source[], runs: Run[], upload_limit?: number}} state
   */
  takeState({ sources, runs, upload_limit }) {
    const before = this.store.openRun;
    const running = this.store.state.runs.filter(isAtWork);
    const uploadLimit = upload_limit || this.store.state.uploadLimit;
    this.store.set({ sources, runs, loaded: true, uploadLimit });
    const { open } = this.store.state;
    const gone =
      (open.kind === "run" && !this.store.openRun) ||
      (open.kind === "source" && !sources.some((source) => source.id === open.id));
    if (gone) this.close();
    else this.notice(before);
    for (const { id } of running) this.announce(runs.find((run) => run.id === id));
  }

  /** Say that a run which is not open has ended. @param {Run|undefined} run */
  announce(run) {
    if (!run || run.id === this.store.state.open.id) return;
    const action = { label: "Open", run: () => this.openRun(run.id) };
    if (run.state === "done") say(`${run.name} is finished.`, action);
    if (run.state === "failed")
      say(`${run.name} failed: ${run.error ?? "no reason is known"}`, action);
  }

  /** React to what happened to the open run. @param {Run|null} before */
  notice(before) {
    const now = this.store.openRun;
    if (!before || !now || before.id !== now.id) return;
    if (isAtWork(before) && !isAtWork(now)) {
      const frame = this.store.state.follow ? null : this.playhead.frame;
      this.load(this.turn, null, frame);
    } else if (!isAtWork(before) && isAtWork(now)) {
      this.store.set({ follow: true, results: null, other: null });
    }
  }

  /** Whether a run is the one that is open. @param {string} run */
  isOpen(run) {
    const { open } = this.store.state;
    return open.kind === "run" && open.id === run;
  }

  /** @param {{run: string, records: any[], next: number}} message */
  takeRecords({ run, records, next }) {
    if (!this.isOpen(run) || next === this.next) return;
    // A message may repeat records that came before the connection was lost.
    const fresh = records.slice(Math.max(0, records.length - (next - this.next)));
    const again = next < this.next; // it began again from the start
    this.next = next;
    this.store.set({ records: again ? records : [...this.store.state.records, ...fresh] });
  }

  /**
   * Corrections of a run have changed, here or in another window.
   *
   * @param {string} run
   * @param {boolean} own Whether this page is at it, and loads the tracks itself.
   */
  takeCorrected(run, own) {
    if (this.isOpen(run) && this.store.state.results && !own) this.reload().catch(sayError);
  }

  /** @param {{run: string, live: any}} message */
  takeLive({ run, live }) {
    if (!this.isOpen(run) || !live) return;
    const watching = this.store.openRun?.kind !== "learn";
    if (live.stage !== this.store.state.live?.stage || (live.stage !== "applying" && !watching))
      this.path.clear();
    const { codes, places, frames } = live.preview ?? {};
    const values = codes ?? places ?? [];
    const last = frames?.at(-1) ?? 0;
    values.forEach((/** @type {number[]} */ value, /** @type {number} */ place) => {
      // A run that watches shows its latest frame only, but the codes of many before it.
      const frame =
        values.length === frames?.length ? frames[place] : last - values.length + 1 + place;
      if (codes || value[2] > 0) this.path.set(frame, value);
    });
    this.store.set({ live, ...(watching ? this.watchedRecords(live) : {}) });
  }

  /** A run that watches keeps no records, but reports J from time to time. @param {any} live */
  watchedRecords(live) {
    const { records } = this.store.state;
    const { done: step, objective, rank, features } = live;
    if (!Number.isFinite(objective) || records.at(-1)?.step >= step) return {};
    return { records: [...records, { trial: 0, step, objective, rank, features, held_out: null }] };
  }

  /** @param {1|-1} direction */
  jumpUnsure(direction) {
    const starts = this.store.state.results?.unsure.map(([first]) => first);
    this.jump(starts, direction, "uncertain stretch");
  }

  /** @param {1|-1} direction */
  jumpCrossing(direction) {
    const starts = this.store.state.results?.crossings.map(({ first_frame }) => first_frame);
    this.jump(starts, direction, "crossing");
  }

  /** @param {number[]|undefined} starts @param {1|-1} direction @param {string} what */
  jump(starts, direction, what) {
    if (!starts) return;
    const { frame } = this.playhead;
    const ahead = starts
      .filter((start) => direction * (start - frame) > 0)
      .sort((a, b) => direction * (a - b));
    this.playhead.pause();
    if (ahead.length) this.playhead.seek(ahead[0]);
    else say(`There is no ${what} ${direction > 0 ? "after" : "before"} this frame.`);
  }

  /** Select an object, or also this one. @param {number|null} object @param {boolean} more */
  pick(object, more) {
    const { picked } = this.store.state;
    const others = picked.filter((other) => other !== object);
    if (object === null && more) return;
    if (object === null) this.store.set({ picked: [], moving: false });
    else {
      const wasPicked = others.length < picked.length;
      const kept = more ? others : [];
      const again = wasPicked && (more || picked.length === 1); // takes it out
      this.store.set({ picked: again ? kept : [...kept, object], moving: false });
    }
  }

  /** Mark one end of a range at the playhead. @param {"first"|"last"} end */
  mark(end) {
    if (!this.store.state.results) return;
    const { frame, first, last } = this.playhead;
    const [from, to] = this.store.state.range ?? [first, last];
    const range = end === "first" ? [frame, Math.max(frame, to)] : [Math.min(from, frame), frame];
    this.store.set({ range: /** @type {[number, number]} */ (range) });
  }

  /** Places at the playhead, for the list of objects. */
  placesHere() {
    const { results } = this.store.state;
    return results ? placesAt(results, this.playhead.frame) : [];
  }
}

/** The sequence of a name, or the first. @param {Details} details @param {string|null} name */
function sequenceOf({ sequences }, name) {
  return sequences.find((entry) => entry.name === name) ?? sequences.at(0);
}

/** The place in the address (#run=...&sequence=...&frame=...), so that a reload returns to it. */
export function readLocation() {
  const query = new URLSearchParams(location.hash.slice(1));
  const frame = Number(query.get("frame"));
  return {
    run: query.get("run"),
    source: query.get("source"),
    sequence: query.get("sequence"),
    frame: query.has("frame") && Number.isInteger(frame) && frame >= 0 ? frame : null,
    other: query.get("with"),
  };
}

/** Keep the address up to date. @param {App} app */
export function followLocation({ store, playhead }) {
  let timer = 0;
  const write = () => {
    const { open, sequence, other, loaded, follow } = store.state;
    if (!loaded) return; // the address still says where to go
    const query = new URLSearchParams();
    if (open.id && (open.kind === "run" || open.kind === "source")) query.set(open.kind, open.id);
    if (sequence) query.set("sequence", sequence);
    if (query.size && !follow) query.set("frame", String(playhead.frame));
    if (other) query.set("with", other.run.id);
    const hash = query.size ? `#${query}` : "";
    if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname);
  };
  const later = () => {
    timer ||= setTimeout(() => {
      timer = 0;
      write();
    }, PAUSE);
  };
  store.follow(["open", "sequence", "other"], later);
  playhead.addEventListener("frame", later);
  addEventListener("pagehide", write);
}
