/**
 * The centre of the page: one picture, or two to compare, and the line above them. Decides what
 * they show (a video, results, or what a run at work sees) and which frames are fetched.
 */

import { button, fill, fillOptions, h, icon, iconButton, setText } from "./dom.js";
import { emptyScene, objectAt, previewScene, resultsScene } from "./scene.js";
import { isAtWork } from "./store.js";
import { Viewer, Viewport } from "./viewer.js";

/** @import {Frames} from "./frames.js" */
/** @import {Scene} from "./scene.js" */
/** @import {App, Run, Store} from "./store.js" */

const AHEAD = 24; // frames fetched ahead while playing
const LOOP = 90; // ms per frame of what a run at work shows
const REACH = 24; // CSS pixels around a place in which a click picks its object

/** @type {[keyof Store["state"]["layers"], string, string][]} */
const LAYERS = [
  ["outlines", "Outlines", "l"],
  ["centroids", "Centroids", "p"],
  ["trails", "Trails", "t"],
  ["names", "Names", "n"],
];

export class Stage {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   * @param {Frames} frames
   * @param {() => HTMLElement} empty Makes what is shown if nothing is open.
   */
  constructor(root, app, frames, empty) {
    const { store, playhead } = app;
    this.app = app;
    this.store = store;
    this.playhead = playhead;
    this.frames = frames;
    this.empty = empty;
    this.viewport = new Viewport();
    this.root = root;
    /** @type {{x: number, y: number}|null} Where the keyboard would move an object. */
    this.aim = null;
    /** @type {HTMLElement|null} Shown instead of pictures, for the camera. */
    this.takenBy = null;
    this.main = this.addViewer();
    this.second = this.addViewer();
    this.waiting = false; // for the picture of the playhead
    this.emptyFor = ""; // what the welcome was made for
    /** @type {HTMLElement|null} */
    this.emptyElement = null;
    this.liveFrame = 0; // place in the frames of a run at work
    /** @type {Scene & {frames: number[]}|null} */
    this.preview = null;
    playhead.available = (frame) => this.active.every((viewer) => viewer.has(frame));
    playhead.addEventListener("frame", () => this.update());
    store.follow(
      ["open", "results", "other", "details", "sources", "live", "follow", "runs", "loaded"],
      () => this.refresh(),
    );
    store.follow(["picked", "hidden", "layers", "arrived"], () => this.redraw());
    store.follow(["moving"], () => root.classList.toggle("aiming", store.state.moving));
    this.viewport.addEventListener("change", () => this.update());
    frames.listeners.add(() => {
      if (this.waiting && !this.live) this.update();
    });
    setInterval(() => this.loop(), LOOP);
    this.addAiming();
  }

  /** @returns {Viewer} */
  addViewer() {
    const viewer = new Viewer(
      this.frames,
      this.viewport,
      () => ({ ...this.store.state, fps: this.playhead.fps, aim: this.aim }),
      (x, y, scale, event) => {
        if (viewer === this.main) this.click(x, y, scale, event);
      },
      (count) => this.playhead.step(count),
    );
    return viewer;
  }

  /** Viewers that show something. */
  get active() {
    return [this.main, this.second].filter((viewer) => viewer.scene);
  }

  /** Whether the pictures are those of a run at work. */
  get live() {
    const run = this.store.openRun;
    return Boolean(this.preview && run && isAtWork(run) && this.store.state.follow);
  }

  refresh() {
    const { open, results, other, sources, live } = this.store.state;
    const preview = open.kind === "run" ? live?.preview : null;
    const from = preview && sources.find((source) => source.id === preview.source);
    this.preview = from && preview.frames?.length ? previewScene(preview, from) : null;
    const name = other && this.store.openRun?.name;
    this.main.setScene(this.live ? this.preview : this.plainScene(), name ?? null);
    const scene = results && other ? resultsScene(other.results) : null;
    this.second.setScene(scene, other && `${other.run.name} (dashed below)`);
    for (const parts of [results, other?.results].flatMap((found) => [
      found?.tiles,
      found?.outlines,
    ]))
      if (parts) parts.onload = () => this.store.set({ arrived: this.store.state.arrived + 1 });
    this.arrange();
    this.update();
  }

  /** Put the panes into the page, touching it only if they changed. */
  arrange() {
    /** @type {HTMLElement[]} */
    let elements = this.active.map((viewer) => viewer.element);
    if (this.takenBy) elements = [this.takenBy];
    else if (!elements.length) {
      const { open, loaded, sources, runs } = this.store.state;
      const key = [open.kind, open.id, loaded, sources.length, runs.length].join();
      if (this.emptyFor !== key || !this.emptyElement) this.emptyElement = this.empty();
      this.emptyFor = key;
      elements = [this.emptyElement];
    }
    const { children } = this.root;
    const same = (/** @type {HTMLElement} */ element, /** @type {number} */ place) =>
      element === children[place];
    if (children.length !== elements.length || !elements.every(same)) fill(this.root, elements);
  }

  /** @returns {Scene|null} Null if there are no frames to go to. */
  plainScene() {
    const { open, results } = this.store.state;
    if (open.kind === "run" && results) return resultsScene(results);
    const source = this.store.openSource;
    if (!source?.width || !source.height || source.error || open.kind === "camera") return null;
    return emptyScene(source.id, source.width, source.height);
  }

  /** Show the frame of the playhead, and fetch what comes next. */
  update() {
    if (this.live) {
      this.wantPreview();
      return;
    }
    const { playhead } = this;
    // What is to be seen now comes first, and alone: a decoder does one thing at a time.
    const seen = this.active.every((viewer) => viewer.has(playhead.frame));
    const list = playhead.playing || seen ? playhead.ahead(AHEAD) : [playhead.frame];
    this.waiting = !seen;
    // While it plays, a picture later than the one shown is of use even if it comes late.
    const useful = (/** @type {number} */ frame) =>
      playhead.playing &&
      frame > playhead.frame &&
      frame < playhead.due + 2 * AHEAD * playhead.stride;
    for (const viewer of this.active) {
      viewer.show(playhead.frame);
      viewer.want(list, useful, playhead.scrubbing);
    }
  }

  redraw() {
    for (const viewer of this.active) viewer.schedule();
  }

  wantPreview() {
    if (!this.preview) return;
    const { frames } = this.preview;
    const place = this.liveFrame % frames.length;
    this.main.want([...frames.slice(place), ...frames.slice(0, place)], () => true);
  }

  /** Next frame of a run at work whose picture is at hand. */
  loop() {
    if (!this.live || !this.preview || document.hidden) return;
    const { frames } = this.preview;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) this.liveFrame = frames.length - 1;
    else {
      const order = frames.map((_, step) => (this.liveFrame + step + 1) % frames.length);
      this.liveFrame = order.find((place) => this.main.has(frames[place])) ?? this.liveFrame;
    }
    this.wantPreview();
    const frame = frames[this.liveFrame % frames.length];
    this.main.show(frame);
    this.playhead.place(frame, false);
  }

  /**
   * @param {number} x In pixels of the video.
   * @param {number} y
   * @param {number} scale
   * @param {PointerEvent} event
   */
  click(x, y, scale, event) {
    const { scene, shown } = this.main;
    const { session, corrector } = this.app;
    if (!scene || shown === null || this.live) return;
    if (this.store.state.moving) {
      const inside = x >= 0 && y >= 0 && x < scene.width && y < scene.height;
      if (shown === this.playhead.frame && inside) corrector.move(x, y);
      return;
    }
    const object = objectAt(scene, shown, x, y, REACH / scale, this.store.state.hidden);
    session.pick(object, event.shiftKey || event.ctrlKey || event.metaKey);
    if (object !== null) this.store.set({ tab: "objects" });
  }

  /** Moving an object with the keyboard: arrows move a cross, Enter puts the object there. */
  addAiming() {
    const { store } = this;
    store.follow(["moving", "picked"], () => {
      const places = this.app.session.placesHere();
      const place = places.find(({ object }) => object === store.state.picked[0]) ?? places[0];
      const { scene } = this.main;
      if (!store.state.moving || !scene) this.aim = null;
      else if (place) this.aim = { x: place.x, y: place.y };
      else this.aim = { x: scene.width / 2, y: scene.height / 2 };
      this.redraw();
    });
    const press = (/** @type {KeyboardEvent} */ event) => {
      const { aim } = this;
      const { scene } = this.main;
      const other = event.ctrlKey || event.altKey || event.metaKey;
      if (!aim || !scene || other || event.target instanceof HTMLInputElement) return;
      const step = event.shiftKey ? 10 : 1;
      /** @type {Record<string, [number, number]>} */
      const moves = {
        ArrowLeft: [-step, 0],
        ArrowRight: [step, 0],
        ArrowUp: [0, -step],
        ArrowDown: [0, step],
      };
      const move = moves[event.key];
      if (move) {
        aim.x = Math.min(scene.width - 1, Math.max(0, aim.x + move[0]));
        aim.y = Math.min(scene.height - 1, Math.max(0, aim.y + move[1]));
        this.redraw();
      } else if (event.key === "Enter") this.app.corrector.move(aim.x, aim.y);
      else return;
      event.preventDefault();
      event.stopPropagation(); // the arrows do not move in time now
    };
    addEventListener("keydown", press, { capture: true });
  }
}

/**
 * The line above the picture: what is open, what is drawn, zoom, and what it is compared with.
 *
 * @param {Element} root
 * @param {App} app
 * @param {Viewport} viewport
 */
export function buildViewbar(root, { store, session }, viewport) {
  const title = h("h2.view-title", { testid: "title" });
  const sequences = h("select", {
    "aria-label": "Sequence",
    class: "quiet-select",
    testid: "sequence",
    onchange: () => session.openSequence(sequences.value),
  });
  const pulse = h("span.pulse", { "aria-hidden": "true" });
  const follow = () => store.set({ follow: true });
  const live = button([pulse, "Live"], follow, { class: "live-pill", testid: "live" });
  const zoom = button("", () => viewport.fit(), {
    class: "quiet numeric zoom",
    title: "Fit (0)",
    testid: "zoom",
  });
  const wide = { class: "wide-only" };
  root.append(
    title,
    sequences,
    live,
    h("span.spacer"),
    compareSelect(store, session),
    layerMenu(store),
    h(
      "div.group",
      iconButton("minus", "Zoom out (-)", () => viewport.zoomAt(1 / 1.5), wide),
      zoom,
      iconButton("plus", "Zoom in (+)", () => viewport.zoomAt(1.5), wide),
    ),
  );
  const showZoom = () => {
    setText(zoom, `${Math.round(100 * viewport.zoom)} %`);
    zoom.setAttribute("aria-label", `${zoom.textContent} zoom; press to fit`);
  };
  viewport.addEventListener("change", showZoom);
  showZoom();

  store.follow(["open", "runs", "sources", "details", "sequence", "follow", "live"], () => {
    const run = store.openRun;
    const { open, details, sequence, follow } = store.state;
    root.toggleAttribute("hidden", open.kind === "none");
    setText(title, open.kind === "camera" ? "Camera" : (run?.name ?? store.openSource?.name ?? ""));
    const names = details?.sequences.map((entry) => entry.name) ?? [];
    sequences.hidden = names.length < 2;
    if (names.join("\n") !== [...sequences.options].map((option) => option.value).join("\n"))
      fillOptions(
        sequences,
        names.map((name) => [name, name]),
      );
    if (sequence) sequences.value = sequence;
    live.hidden = !run || !isAtWork(run) || !store.state.live?.preview;
    live.setAttribute("aria-pressed", String(follow));
    live.title = follow ? "The picture follows the run" : "Follow the run again";
  });
}

/** @param {Store} store @param {keyof Store["state"]["layers"]} name */
export function toggleLayer(store, name) {
  store.set({ layers: { ...store.state.layers, [name]: !store.state.layers[name] } });
}

/** A menu that closes when something else is clicked, and with Escape. @param {Store} store */
function layerMenu(store) {
  const boxes = LAYERS.map(([name, label, key]) => {
    const onchange = () => toggleLayer(store, name);
    const box = h("input", { type: "checkbox", testid: `layer-${name}`, onchange });
    store.follow(["layers"], () => (box.checked = store.state.layers[name]));
    return h("label", box, h("span", label), h("kbd", key));
  });
  const text = h("span.wide-only", "Show");
  const summary = h("summary.quiet", { title: "What is drawn" }, icon("eye"), text);
  const body = { class: "menu-body", role: "group", "aria-label": "What is drawn" };
  const menu = h("details.menu", summary, h("div", body, boxes));
  addEventListener("pointerdown", (event) => {
    if (menu.open && !menu.contains(/** @type {Node} */ (event.target))) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    summary.focus();
    event.stopPropagation();
  });
  return menu;
}

/** @param {Store} store @param {App["session"]} session */
function compareSelect(store, session) {
  const select = h("select.quiet-select.compare", {
    "aria-label": "Compare with",
    title: "Compare with another run (v)",
    testid: "compare",
    onchange: () => session.compare(select.value || null),
  });
  store.follow(["runs", "open", "other", "results"], () => {
    const { runs, open, other, results } = store.state;
    const sources = store.openRun?.sources ?? [];
    const near = (/** @type {Run} */ run) =>
      run.sources.some((id) => sources.includes(id)) ? 0 : 1;
    const choices = runs
      .filter((run) => run.state === "done" && run.id !== open.id)
      .sort((a, b) => near(a) - near(b) || b.created - a.created);
    select.hidden = !results || !choices.length;
    const none = other ? "Compare: off" : "Compare";
    fillOptions(select, [["", none], ...choices.map(({ id, name }) => [id, name])]);
    select.value = other?.run.id ?? "";
  });
  return select;
}
