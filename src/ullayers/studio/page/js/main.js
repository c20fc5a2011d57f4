/** Puts the parts together. */

import { api, Socket } from "./api.js";
import { Camera } from "./camera.js";
import { button, byId, h, say, sayError, setIcon } from "./dom.js";
import { exportTab } from "./export.js";
import { Frames } from "./frames.js";
import { listenToKeys } from "./keys.js";
import { learnTab } from "./learn.js";
import { addUploads, buildLibrary } from "./library.js";
import { Corrector, objectsTab } from "./objects.js";
import { buildOverview, buildTransport, Playhead } from "./player.js";
import { followLocation, readLocation, Session } from "./session.js";
import { buildShell, buildTabs, showPanel } from "./shell.js";
import { buildViewbar, Stage } from "./stage.js";
import { Store } from "./store.js";
import { Timeline } from "./timeline.js";

const store = new Store();
const playhead = new Playhead();
const session = new Session(store, playhead);
const corrector = new Corrector(store, session, playhead);
const app = { store, playhead, session, corrector };
const frames = new Frames();

buildShell(store);
const stage = new Stage(byId("stage"), app, frames, emptyContent);
buildViewbar(byId("viewbar"), app, stage.viewport);
buildTransport(byId("transport"), app);
const timeline = new Timeline(byId("timeline"), app);
buildOverview(byId("scrub"), app, timeline);
const learn = learnTab(app);
buildTabs(byId("inspector"), store, {
  watch: learn.element,
  objects: objectsTab(app),
  export: exportTab(app, stage, timeline, learn.points),
});
const chooseFiles = addUploads(app);
const library = buildLibrary(byId("library"), app, {
  upload: chooseFiles,
  camera: startCamera,
  opened: () => {
    endCamera();
    showPanel(store, "watch");
  },
});
const toggleHelp = listenToKeys(app, stage.viewport, timeline);
setIcon(byId("help-button"), "help", "Keyboard help (?)").addEventListener("click", toggleHelp);

const address = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`;
const socket = new Socket(address, { onmessage: receive, onstate: connected });
session.socket = socket;
const camera = new Camera(app, socket);

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

/** @param {"open"|"lost"} state */
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
  followLocation(app);
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

/** What the stage says when there is nothing to show. */
function emptyContent() {
  const { open, loaded, sources, runs } = store.state;
  const text = (/** @type {string} */ title, /** @type {string} */ words) =>
    h("div.empty-stage", h("h2", title), h("p", words));
  if (!loaded) return h("div.empty-stage");
  if (open.kind === "source" && store.openSource?.kind === "live")
    return text("A camera of this computer", "Start learning to see its picture here.");
  if (open.kind === "source")
    return text("This video cannot be read", store.openSource?.error ?? "");
  if (open.kind === "run")
    return text(
      "There is no picture to show",
      "The video of this run is not open here. Its results are in the tabs on the right.",
    );
  const welcome = text(
    "Learn from video, without labels",
    sources.length + runs.length
      ? "Open a video or a run in the library, or add another video. Everything stays on this computer."
      : "Add a video, and the studio finds the moving objects: their position in each frame, a confidence, and which object is which. Everything stays on this computer.",
  );
  const plain = /** @type {const} */ ({ class: "plain" });
  welcome.append(
    h(
      "div.row",
      button("Add a video", chooseFiles, {
        icon: "upload",
        class: "primary",
        testid: "welcome-upload",
      }),
      button("Try the demo", library.demo, { ...plain, icon: "spark", testid: "welcome-spark" }),
      button("Use the camera", startCamera, { ...plain, icon: "camera", testid: "welcome-camera" }),
    ),
  );
  return welcome;
}

addEventListener("hashchange", openAddress); // a link or a bookmark to another place
byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the place in the video
  byId("transport").focus();
});

// What tests may read; nothing here can be changed from outside.
const readable = {
  frame: () => playhead.frame,
  shown: () => stage.main.shown,
  outlined: () => stage.main.outlined,
  ready: () => {
    const { loaded, results, other } = store.state;
    const here = [results, other?.results].every(
      (found) => !found || found.tiles.has(playhead.frame),
    );
    return loaded && here && stage.active.every((viewer) => viewer.shown === viewer.wanted);
  },
  playing: () => playhead.playing,
  live: () => stage.live,
  connection: () => store.state.connection,
  cachedBytes: () => frames.bytes + (store.state.results?.tiles.bytes ?? 0),
  open: () => ({ ...store.state.open }),
  picked: () => [...store.state.picked],
  range: () => store.state.range && [...store.state.range],
  objects: () => store.state.results?.objects.map(({ object }) => object) ?? [],
  unsure: () => store.state.results?.unsure.map((stretch) => [...stretch]) ?? [],
  placement: () => stage.main.placement(),
  camera: () => camera.running,
  cameraFrames: () => camera.answers,
};
const entries = Object.entries(readable).map(([name, get]) => [name, { get }]);
Object.defineProperty(window, "ulStudio", {
  value: Object.freeze(Object.defineProperties({}, Object.fromEntries(entries))),
});
