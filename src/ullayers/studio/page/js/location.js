/** The place in the address (#run=...&sequence=...&frame=...), so that a reload returns to it. */

const PAUSE = 250; // ms; browsers refuse too many changes of the address

/** @returns {{run: string|null, source: string|null, sequence: string|null, frame: number|null, other: string|null}} */
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

/**
 * Keep the address up to date.
 *
 * @param {import("./store.js").Store} store
 * @param {import("./playhead.js").Playhead} playhead
 */
export function followLocation(store, playhead) {
  let timer = 0;
  const later = () => {
    timer ||= window.setTimeout(() => {
      timer = 0;
      write(store, playhead);
    }, PAUSE);
  };
  store.follow(["open", "sequence", "other"], later);
  playhead.addEventListener("frame", later);
  addEventListener("pagehide", () => write(store, playhead));
}

/**
 * @param {import("./store.js").Store} store
 * @param {import("./playhead.js").Playhead} playhead
 */
function write(store, playhead) {
  const { open, sequence, other, loaded, follow } = store.state;
  if (!loaded) return; // the address still says where to go
  const query = new URLSearchParams();
  if (open.kind === "run" && open.id) query.set("run", open.id);
  if (open.kind === "source" && open.id) query.set("source", open.id);
  if (sequence) query.set("sequence", sequence);
  if (query.size && !follow) query.set("frame", String(playhead.frame));
  if (other) query.set("with", other.run.id);
  const hash = query.size ? `#${query}` : "";
  if (hash !== location.hash) history.replaceState(null, "", hash || location.pathname);
}
