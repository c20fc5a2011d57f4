/**
 * What the page knows, in one place. Parts of the page read it and say which keys they follow;
 * nothing else is shared between them but the playhead, which moves up to sixty times a second.
 */

/** @import {Corrector} from "./objects.js" */
/** @import {Playhead} from "./player.js" */
/** @import {Results} from "./results.js" */
/** @import {Session} from "./session.js" */
/** @typedef {{store: Store, playhead: Playhead, session: Session, corrector: Corrector}} App */

/**
 * @typedef {Object} Source
 * @property {string} id
 * @property {string} name
 * @property {"video"|"images"|"live"} kind
 * @property {number|null} width
 * @property {number|null} height
 * @property {number|null} fps
 * @property {number|null} frames
 * @property {number|null} seconds
 * @property {"opened"|"upload"|"recording"|"demo"} origin
 * @property {string|null} error
 */

/**
 * @typedef {Object} Run
 * @property {string} id
 * @property {string} name
 * @property {"learn"|"watch"|"camera"} kind
 * @property {"locate"|"orient"|"features"} task
 * @property {"queued"|"running"|"stopping"|"stopped"|"done"|"failed"|"interrupted"} state
 * @property {"reading"|"training"|"applying"|"report"|null} stage
 * @property {number} done
 * @property {number|null} total
 * @property {number|null} rate
 * @property {number|null} left
 * @property {string|null} error
 * @property {number} created
 * @property {string[]} sources
 * @property {boolean|null} trusted
 * @property {string[]} reasons
 * @property {number|null} found
 * @property {string|null} parent
 * @property {boolean} opened
 */

/**
 * @typedef {Object} Sequence
 * @property {string} name
 * @property {string|null} source
 * @property {number} frames
 * @property {number} width
 * @property {number} height
 * @property {number} fps
 * @property {number[]} objects
 * @property {number} first
 * @property {number} [last]
 */

/** @typedef {{op: string, sequence: string, [key: string]: any}} Correction */
/** @typedef {{version: number, applied: Correction[], undone: Correction[]}} Corrections */
/** @typedef {{sequence: string, first_frame: number, last_frame: number}} Crossing */

/**
 * @typedef {Run & {summary: any, config: any, sequences: Sequence[], crossings: Crossing[],
 *   files: {name: string, bytes: number}[], corrections: Corrections}} Details
 */

/** @typedef {typeof initial} State */
/**
 * @typedef {{key: number, name: string, share: number, error: string|null,
 *     cancel: () => void}} Upload
 */
/** @typedef {{run: Run, details: Details, results: Results}} Compared */

const initial = {
  connection: /** @type {"connecting"|"open"|"lost"} */ ("connecting"),
  loaded: false, // whether the first answer of the server is there
  uploadLimit: Infinity,
  sources: /** @type {Source[]} */ ([]),
  runs: /** @type {Run[]} */ ([]),
  uploads: /** @type {Upload[]} */ ([]),
  open: {
    kind: /** @type {"none"|"source"|"run"|"camera"} */ ("none"),
    id: /** @type {string|null} */ (null),
  },
  sequence: /** @type {string|null} */ (null),
  details: /** @type {Details|null} */ (null), // of the open run
  results: /** @type {Results|null} */ (null), // of the open sequence
  other: /** @type {Compared|null} */ (null), // the run to compare with
  records: /** @type {any[]} */ ([]), // training steps of the open run
  live: /** @type {any} */ (null), // what the open run is doing
  arrived: 0, // rows and outlines that have come
  follow: false, // whether the viewer follows a run at work
  picked: /** @type {number[]} */ ([]), // numbers of the selected objects
  hidden: /** @type {number[]} */ ([]), // numbers of the objects that are not drawn
  range: /** @type {[number, number]|null} */ (null), // first and last frame that are marked
  moving: false, // whether the next click on the picture moves the selected object
  layers: { outlines: true, centroids: true, trails: true, names: true },
  tab: "watch", // of the inspector
};

export class Store {
  constructor() {
    /** @type {Readonly<State>} */
    this.state = initial;
    /** @type {{keys: (keyof State)[], listener: () => void}[]} */
    this.followers = [];
  }

  /** Change some keys, then tell who follows them, each once. @param {Partial<State>} patch */
  set(patch) {
    const keys = /** @type {(keyof State)[]} */ (Object.keys(patch));
    const changed = new Set(keys.filter((key) => patch[key] !== this.state[key]));
    if (!changed.size) return;
    this.state = { ...this.state, ...patch };
    for (const { keys, listener } of [...this.followers]) {
      if (keys.some((key) => changed.has(key))) listener();
    }
  }

  /**
   * Call a listener now and after every change of one of the keys.
   *
   * @param {(keyof State)[]} keys
   * @param {() => void} listener
   */
  follow(keys, listener) {
    this.followers.push({ keys, listener });
    listener();
  }

  /** Add what the server has just made. @param {"sources"|"runs"} list @param {Source|Run} entry */
  add(list, entry) {
    const entries = this.state[list];
    if (!entries.some(({ id }) => id === entry.id)) this.set({ [list]: [...entries, entry] });
  }

  /** @returns {Run|null} The run that is open, as the library lists it. */
  get openRun() {
    const { open, runs } = this.state;
    return open.kind === "run" ? (runs.find((run) => run.id === open.id) ?? null) : null;
  }

  /** Unit of the steps in `records`: what watches counts frames. */
  get stepUnit() {
    return this.openRun?.kind === "learn" ? "step" : "frame";
  }

  /** @returns {Source|null} The source whose frames the viewer shows. */
  get openSource() {
    const { open, sources, details, sequence } = this.state;
    const shown = details?.sequences.find((entry) => entry.name === sequence);
    let id = open.kind === "source" ? open.id : null;
    if (open.kind === "run")
      id = details?.sequences.length ? (shown?.source ?? null) : (this.openRun?.sources[0] ?? null);
    return sources.find((source) => source.id === id) ?? null;
  }
}

/** @param {Run} run */
export function isAtWork(run) {
  return run.state === "queued" || run.state === "running" || run.state === "stopping";
}
