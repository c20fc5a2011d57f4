/** Puts the parts together. */

import { addAiming } from "./aiming.js";
import { api } from "./api.js";
import { Camera } from "./camera.js";
import { Corrector } from "./corrections.js";
import { byId, h, icon } from "./dom.js";
import { Frames } from "./frames.js";
import { buildHelp } from "./help.js";
import { ExportTab } from "./inspector/export.js";
import { LearnForm } from "./inspector/learn_form.js";
import { ObjectsTab } from "./inspector/objects.js";
import { buildTabs } from "./inspector/tabs.js";
import { WatchTab } from "./inspector/watch.js";
import { freeKeysAfterClicks, keyTable, listenToKeys } from "./keys.js";
import { Library } from "./library.js";
import { followLocation, readLocation } from "./location.js";
import { followConnection, say, sayError } from "./notices.js";
import { Overview } from "./overview.js";
import { Playhead } from "./playhead.js";
import { Session } from "./session.js";
import { buildShell, followTitle, showPanel } from "./shell.js";
import { Socket } from "./socket.js";
import { Stage, emptyStage } from "./stage.js";
import { Store, initialState } from "./store.js";
import { addThemeSwitch } from "./theme.js";
import { Timeline } from "./timeline.js";
import { buildTransport } from "./transport.js";
import { Uploads } from "./uploads.js";
import { buildViewbar } from "./viewbar.js";

const store = new Store(initialState());
const playhead = new Playhead();
const frames = new Frames();
const session = new Session(store, playhead, say);
const corrector = new Corrector(store, session, playhead, say);

buildShell(store);
followTitle(store);
followConnection(store);
addThemeSwitch(byId("theme"));

const stage = new Stage(byId("stage"), store, playhead, frames, {
  onpick: (object, more) => {
    session.pick(object, more);
    if (object !== null) store.set({ tab: "objects" });
  },
  onmove: (x, y) => corrector.move(x, y),
  empty: emptyContent,
});
buildViewbar(byId("viewbar"), store, session, stage.viewport);
buildTransport(byId("transport"), store, playhead, session);
const timeline = new Timeline(byId("timeline"), store, playhead);
new Overview(byId("scrub"), store, playhead, timeline);

const watchTab = new WatchTab(store, session, playhead, new LearnForm(store, session).element);
buildTabs(byId("inspector"), store, [
  { id: "watch", label: "Learn", icon: "learn", panel: watchTab.element },
  {
    id: "objects",
    label: "Objects",
    icon: "objects",
    panel: new ObjectsTab(store, session, corrector, playhead).element,
  },
  {
    id: "export",
    label: "Export",
    icon: "download",
    panel: new ExportTab(
      store,
      stage,
      timeline,
      () => watchTab.scatter.points(),
      (end) => session.mark(end),
    ).element,
  },
]);

const uploads = new Uploads(store, (source) => {
  const { sources, open } = store.state;
  if (!sources.some((entry) => entry.id === source.id))
    store.set({ sources: [...sources, source] });
  // If something else is open, stay there.
  if (open.kind === "none") session.openSource(source.id);
  else
    say(`${source.name} was added.`, { label: "Open", run: () => session.openSource(source.id) });
});
const library = new Library(byId("library"), store, session, {
  upload: () => uploads.choose(),
  camera: () => startCamera(),
  opened: () => {
    endCamera();
    showPanel(store, "watch");
  },
});

const table = keyTable({
  store,
  playhead,
  session,
  corrector,
  timeline,
  viewport: stage.viewport,
  help: () => toggleHelp(),
  compare: () =>
    /** @type {HTMLElement|null} */ (document.querySelector("[data-testid=compare]"))?.focus(),
});
const toggleHelp = buildHelp(table);
const helpButton = byId("help-button");
helpButton.append(icon("help"));
helpButton.setAttribute("aria-label", "Keyboard help (?)");
helpButton.title = "Keyboard help (?)";
helpButton.addEventListener("click", toggleHelp);
addAiming(store, stage, corrector, session);
listenToKeys(table);
freeKeysAfterClicks();

const socket = new Socket(
  `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`,
  {
    onmessage: receive,
    onstate: connected,
  },
);
session.socket = socket;
const camera = new Camera(store, socket, () => ({ ...store.state, fps: 10 }), say, session.path);

/** @param {any} message */
function receive(message) {
  if (message.type === "state") session.takeState(message);
  else if (message.type === "records") session.takeRecords(message);
  else if (message.type === "live") session.takeLive(message);
  else if (message.type === "corrected") session.takeCorrected(message.run, corrector.busy);
  else if (message.type === "camera") camera.take(message);
  else if (message.type === "camera_end") openRecording(message);
  else if (message.type === "error") say(message.error);
}

let wasOpen = false; // the socket
/** @type {Promise<void>|null} */
let begun = null;
begin().catch(() => {}); // the socket says that the server cannot be reached

/** @param {"connecting"|"open"|"lost"} state */
async function connected(state) {
  if (state === "lost" && camera.running) {
    endCamera();
    say("The connection was lost. The recording up to this point is kept.");
  }
  try {
    if (state === "open") {
      const again = wasOpen;
      wasOpen = true;
      await begin();
      if (again) await session.reconnect();
      else session.watchOpen();
      frames.retry();
      corrector.reconnect();
    }
    store.set({ connection: state });
  } catch (error) {
    sayError(error);
  }
}

/** First state of the server, which does not wait for the socket. @returns {Promise<void>} */
function begin() {
  begun ??= openFirst().catch((error) => {
    begun = null;
    throw error;
  });
  return begun;
}

/** What the server has, then the place that the address names. */
async function openFirst() {
  session.takeState(await api.state());
  if (!(await openAddress())) openOnlyOne();
  if (store.state.open.kind !== "none") showPanel(store, "watch");
  followLocation(store, playhead);
}

/** @returns {Promise<boolean>} Whether the address names something. */
async function openAddress() {
  const place = readLocation();
  if (place.run) await session.openRun(place.run, place);
  else if (place.source) session.openSource(place.source, place.frame ?? 0);
  return Boolean(place.run ?? place.source);
}

/** If `ul studio` was called with one thing, that is what its user wants to see. */
function openOnlyOne() {
  const { sources, runs } = store.state;
  if (runs.length === 1 && sources.length <= 1) session.openRun(runs[0].id);
  else if (!runs.length && sources.length === 1) session.openSource(sources[0].id);
}

async function startCamera() {
  if (camera.running || !(await camera.start())) return;
  session.close();
  store.set({ open: { kind: "camera", id: null } });
  stage.takenBy = camera.element;
  stage.refresh();
  showPanel(store, "watch");
}

function endCamera() {
  if (camera.running) camera.stop();
  if (!stage.takenBy) return;
  stage.takenBy = null;
  if (store.state.open.kind === "camera") session.close();
  stage.refresh();
}

/**
 * What the camera recorded is a video and a run now.
 *
 * @param {{run?: string, source?: string, error?: string|null}} message
 */
async function openRecording({ run, source, error }) {
  camera.end(); // it may have ended by itself
  if (error) say(error);
  const wanted = stage.takenBy !== null; // else something else was opened meanwhile
  stage.takenBy = null;
  session.takeState(await api.state());
  if (wanted && run) await session.openRun(run);
  else if (wanted && source) session.openSource(source);
  else if (wanted) session.close();
  stage.refresh();
}

function emptyContent() {
  const { open, loaded } = store.state;
  const button = (
    /** @type {any} */ name,
    /** @type {string} */ label,
    /** @type {string} */ kind,
    /** @type {() => void} */ run,
  ) =>
    h(
      "button",
      { type: "button", class: kind, onclick: run, testid: `welcome-${name}` },
      icon(name),
      label,
    );
  if (!loaded) return h("div", { class: "empty-stage" });
  if (open.kind === "source" && store.openSource?.kind === "live")
    return emptyStage("A camera of this computer", "Start learning to see its picture here.");
  if (open.kind === "source")
    return emptyStage("This video cannot be read", store.openSource?.error ?? "");
  if (open.kind === "run")
    return emptyStage(
      "There is no picture to show",
      "The video of this run is not open here. Its results are in the tabs on the right.",
    );
  const { sources, runs } = store.state;
  return emptyStage(
    "Learn from video, without labels",
    sources.length + runs.length
      ? "Open a video or a run in the library, or add another video. Everything stays on this computer."
      : "Add a video, and the studio finds the moving objects: their position in each frame, a confidence, and which object is which. Everything stays on this computer.",
    h(
      "div",
      { class: "row" },
      button("upload", "Add a video", "primary", () => uploads.choose()),
      button("spark", "Try the demo", "plain", () => library.demo()),
      button("camera", "Use the camera", "plain", () => startCamera()),
    ),
  );
}

addEventListener("hashchange", openAddress); // a link or a bookmark to another place
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the place in the video
  byId("transport").focus();
});

// What tests may read; nothing here can be changed from outside.
Object.defineProperty(window, "ulStudio", {
  value: Object.freeze({
    get frame() {
      return playhead.frame;
    },
    get shown() {
      return stage.main.shown;
    },
    get outlined() {
      return stage.main.outlined;
    },
    get ready() {
      const { loaded, results, other } = store.state;
      return (
        loaded &&
        stage.active.every((viewer) => viewer.shown === viewer.wanted) &&
        [results, other?.results].every((found) => !found || found.tiles.has(playhead.frame))
      );
    },
    get playing() {
      return playhead.playing;
    },
    get live() {
      return stage.live;
    },
    get connection() {
      return store.state.connection;
    },
    get cachedBytes() {
      return frames.bytes + (store.state.results?.tiles.chunks.bytes ?? 0);
    },
    get open() {
      return { ...store.state.open };
    },
    get picked() {
      return [...store.state.picked];
    },
    get range() {
      return store.state.range && [...store.state.range];
    },
    get objects() {
      return store.state.results?.objects.map(({ object }) => object) ?? [];
    },
    get unsure() {
      return store.state.results?.unsure.map((stretch) => [...stretch]) ?? [];
    },
    get placement() {
      return stage.main.placement();
    },
    get camera() {
      return camera.running;
    },
    get cameraFrames() {
      return camera.answers;
    },
  }),
});
