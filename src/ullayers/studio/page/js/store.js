/**
 * What the page knows, in one place. Parts of the page read it and say which keys they follow;
 * nothing else is shared between them but the playhead, which moves up to sixty times a second.
 */

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
 */

/** @typedef {{op: string, sequence: string, [key: string]: any}} Correction */
/** @typedef {{version: number, applied: Correction[], undone: Correction[]}} Corrections */
/** @typedef {{sequence: string, first_frame: number, last_frame: number, objects: number[], confidence: number}} Crossing */

/**
 * @typedef {Run & {summary: any, config: any, sequences: Sequence[], crossings: Crossing[],
 *   files: {name: string, bytes: number}[], corrections: Corrections}} Details
 */

/**
 * @typedef {Object} State
 * @property {"connecting"|"open"|"lost"} connection
 * @property {boolean} loaded Whether the first answer of the server is there.
 * @property {number} uploadLimit
 * @property {Source[]} sources
 * @property {Run[]} runs
 * @property {{key: number, name: string, share: number, error: string|null, cancel: () => void}[]} uploads
 * @property {{kind: "none"|"source"|"run"|"camera", id: string|null}} open
 * @property {string|null} sequence
 * @property {Details|null} details Of the open run.
 * @property {import("./results.js").Results|null} results Of the open sequence.
 * @property {{run: Run, details: Details, results: import("./results.js").Results}|null} other To compare with.
 * @property {any[]} records Training steps of the open run.
 * @property {any|null} live What the open run is doing.
 * @property {number} arrived Counts rows and outlines that have come.
 * @property {boolean} follow Whether the viewer follows a run at work.
 * @property {number[]} picked Numbers of the selected objects.
 * @property {number[]} hidden Numbers of the objects that are not drawn.
 * @property {[number, number]|null} range First and last frame of the marked range.
 * @property {boolean} moving Whether the next click on the picture moves the selected object.
 * @property {Record<"outlines"|"centroids"|"trails"|"names", boolean>} layers
 * @property {string} tab Open tab of the inspector.
 */

export class Store {
  /** @param {State} initial */
  constructor(initial) {
    /** @type {Readonly<State>} */
    this.state = initial;
    /** @type {{keys: (keyof State)[], listener: () => void}[]} */
    this.followers = [];
  }

  /**
   * Change some keys, then tell who follows them, each once.
   *
   * @param {Partial<State>} patch
   */
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

  /** @returns {Run|null} The run that is open, as the library lists it. */
  get openRun() {
    const { open, runs } = this.state;
    return open.kind === "run" ? (runs.find((run) => run.id === open.id) ?? null) : null;
  }

  /** Unit of the steps in `records`: what watches counts frames. */
  get stepUnit() {
    return this.openRun?.kind === "learn" ? "step" : "frame";
  }

  /** @returns {Sequence|null} */
  get openSequence() {
    const { details, sequence } = this.state;
    return details?.sequences.find((entry) => entry.name === sequence) ?? null;
  }

  /** @returns {Source|null} The source whose frames the viewer shows. */
  get openSource() {
    const { open, sources, details } = this.state;
    let id = open.kind === "source" ? open.id : null;
    if (open.kind === "run")
      id = details?.sequences.length
        ? (this.openSequence?.source ?? null)
        : (this.openRun?.sources[0] ?? null);
    return sources.find((source) => source.id === id) ?? null;
  }
}

/** @returns {State} */
export function initialState() {
  return {
    connection: "connecting",
    loaded: false,
    uploadLimit: Infinity,
    sources: [],
    runs: [],
    uploads: [],
    open: { kind: "none", id: null },
    sequence: null,
    details: null,
    results: null,
    other: null,
    records: [],
    live: null,
    arrived: 0,
    follow: false,
    picked: [],
    hidden: [],
    range: null,
    moving: false,
    layers: { outlines: true, centroids: true, trails: true, names: true },
    tab: "watch",
  };
}

/** @param {Run} run */
export function isAtWork(run) {
  return run.state === "queued" || run.state === "running" || run.state === "stopping";
}
