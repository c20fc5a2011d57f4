/**
 * The browser's camera as a source. Frames go to the server ten times a second, at most two at a
 * time; each is shown when its answer is here, so outlines always lie on the frame they belong to.
 */

import { h, setText } from "./dom.js";
import { drawScene } from "./draw.js";
import { prepare } from "./palette.js";
import { UNSURE } from "./results.js";
import { Viewport } from "./viewport.js";

const SIDE = 320; // longest side of the frames that are sent
const QUALITY = 0.7;
const PERIOD = 100; // ms
const IN_FLIGHT = 2;
const PATIENCE = 3000; // ms after which an answer is no longer waited for
const SILENT = 500; // ms without an answer after which the bare picture is shown
const TRAIL = 50; // frames
const MEAN_OF = 30; // answers
const RECORDS = 20; // answers until the curves are drawn again

/** @typedef {{bitmap: ImageBitmap, begun: number}} Sent */

export class Camera {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./socket.js").Socket} socket
   * @param {() => import("./draw.js").Look} look
   * @param {(text: string) => void} say
   * @param {Map<number, number[]>} path Takes the places of all frames.
   */
  constructor(store, socket, look, say, path) {
    this.path = path;
    this.store = store;
    this.socket = socket;
    this.look = look;
    this.say = say;
    this.viewport = new Viewport();
    this.video = /** @type {HTMLVideoElement} */ (h("video", { muted: true, playsinline: true }));
    this.video.muted = true;
    this.small = document.createElement("canvas");
    this.canvas = /** @type {HTMLCanvasElement} */ (
      h("canvas", {
        class: "picture",
        role: "img",
        "aria-label": "Camera with outlines",
        testid: "camera-picture",
      })
    );
    this.numbers = h("div", { class: "camera-numbers numeric", testid: "camera-numbers" });
    this.stopButton = h(
      "button",
      { type: "button", class: "primary", onclick: () => this.stop(), testid: "camera-stop" },
      "Stop and keep",
    );
    this.element = h(
      "div",
      { class: "pane camera" },
      this.canvas,
      h("div", { class: "camera-bar" }, this.numbers, this.stopButton),
    );
    /** @type {Map<number, Sent>} */
    this.sent = new Map();
    /** @type {MediaStream|null} */
    this.stream = null;
    this.timer = 0;
    this.sequence = 0;
    this.encoding = false;
    this.began = 0;
    this.answers = 0;
    /** @type {number[]} */
    this.times = []; // of the latest answers
    this.lastAnswer = 0;
    /** @type {Map<number, number[]>} */
    this.trails = new Map();
    /** @type {any[]} */
    this.waitingRecords = [];
  }

  /** Frames a second of the latest answers. */
  get fps() {
    const [first] = this.times;
    return first === undefined
      ? 0
      : (1000 * (this.times.length - 1)) / Math.max(1, this.lastAnswer - first);
  }

  get running() {
    return this.stream !== null;
  }

  reset() {
    this.began = performance.now();
    this.answers = 0;
    this.times = [];
    this.lastAnswer = 0;
    this.trails.clear();
    this.waitingRecords = [];
  }

  /** @returns {Promise<boolean>} Whether the camera runs. */
  async start() {
    if (this.running) return true;
    if (!this.socket.open) return this.refuse("There is no connection to the server.");
    if (!navigator.mediaDevices)
      return this.refuse(
        "Browsers allow camera access only for pages on this computer (localhost) or over HTTPS.",
      );
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({
        video: { width: { ideal: 640 } },
        audio: false,
      });
    } catch (error) {
      return this.refuse(cameraSentence(/** @type {Error} */ (error).name));
    }
    this.video.srcObject = this.stream;
    await this.video.play();
    const scale = Math.min(1, SIDE / Math.max(this.video.videoWidth, this.video.videoHeight));
    this.small.width = Math.round(scale * this.video.videoWidth);
    this.small.height = Math.round(scale * this.video.videoHeight);
    this.reset();
    const time = new Date().toLocaleTimeString([], {
      hour: "2-digit",
      minute: "2-digit",
      hour12: false,
    });
    const { width, height } = this.small;
    this.socket.send({
      type: "camera_start",
      name: `Camera ${time.replace(":", ".")}`,
      width,
      height,
      fps: 1000 / PERIOD,
      task: "locate",
    });
    setText(this.numbers, "Starting …");
    this.stream.getVideoTracks()[0].addEventListener("ended", () => this.stop());
    this.timer = window.setInterval(() => this.send(), PERIOD);
    return true;
  }

  /** @param {string} text */
  refuse(text) {
    this.say(text);
    return false;
  }

  async send() {
    const now = performance.now();
    for (const [sequence, { bitmap, begun }] of this.sent) {
      if (now - begun < PATIENCE) continue;
      bitmap.close();
      this.sent.delete(sequence);
    }
    // Until answers come, and whenever they stay away, the picture at least moves.
    if (now - this.lastAnswer > SILENT) this.paint(this.video, { objects: [], outlines: [] });
    if (this.sent.size >= IN_FLIGHT || this.socket.waiting || this.encoding) return;
    this.encoding = true; // the next tick may come before the picture is packed
    const sequence = (this.sequence += 1);
    const seconds = (now - this.began) / 1000;
    const { width, height } = this.small;
    /** @type {CanvasRenderingContext2D} */ (this.small.getContext("2d")).drawImage(
      this.video,
      0,
      0,
      width,
      height,
    );
    const [bitmap, blob] = await Promise.all([
      createImageBitmap(this.small),
      new Promise((resolve) => this.small.toBlob(resolve, "image/jpeg", QUALITY)),
    ]);
    this.encoding = false;
    if (!this.running || !blob) return bitmap.close();
    this.sent.set(sequence, { bitmap, begun: now });
    this.socket.send(await packed(sequence, seconds, /** @type {Blob} */ (blob)));
  }

  /** @param {any} answer */
  take(answer) {
    const sent = this.sent.get(answer.seq);
    if (!sent || !this.running) return;
    this.sent.delete(answer.seq);
    const now = performance.now();
    this.answers += 1;
    this.lastAnswer = now;
    this.times = [...this.times, now].slice(-MEAN_OF);
    this.paint(sent.bitmap, answer);
    sent.bitmap.close();
    setText(
      this.numbers,
      `${Math.round(now - sent.begun)} ms · ${this.fps.toFixed(1)} frames/s · ${answer.learning ? "learning" : "getting ready"}`,
    );
    this.note(answer);
  }

  /** @param {ImageBitmap|HTMLVideoElement} picture @param {any} answer */
  paint(picture, answer) {
    const { context, width, height } = prepare(this.canvas);
    const { width: own, height: tall } = this.small;
    const placement = this.viewport.place(own, tall, width, height);
    context.drawImage(
      picture,
      placement.left,
      placement.top,
      placement.scale * own,
      placement.scale * tall,
    );
    const scaled = (/** @type {number[]} */ points) =>
      points.map((value, place) => value * (place % 2 ? tall : own));
    const places = (answer.objects ?? []).map(
      (/** @type {number[]} */ [object, x, y, confidence]) => ({
        object,
        x: x * own,
        y: y * tall,
        confidence,
      }),
    );
    for (const { object, x, y, confidence } of places) {
      if (confidence < UNSURE) continue;
      const trail = [...(this.trails.get(object) ?? []), x, y];
      this.trails.set(object, trail.slice(-2 * TRAIL));
    }
    const trails = [...this.trails].map(([object, points]) => ({ object, points }));
    const scene = /** @type {import("./scene.js").Scene} */ ({
      source: null,
      last: Infinity,
      width: own,
      height: tall,
      several: places.length > 1,
      outlines: () =>
        (answer.outlines ?? []).map((/** @type {[number, number[]]} */ [object, points]) => [
          object,
          scaled(points),
        ]),
      places: () => places,
      trails: () => trails,
      crop: () => null,
      image: () => null,
    });
    drawScene(context, scene, answer.seq, placement, this.look());
  }

  /** Curves and kernels of what is learned. @param {any} answer */
  note(answer) {
    const { objective, rank, features } = answer;
    if (answer.learning && Number.isFinite(objective)) {
      this.waitingRecords.push({
        trial: 0,
        step: answer.frames ?? this.answers,
        objective,
        rank,
        features,
        held_out: null,
      });
    }
    if (answer.objects?.length && answer.values[2] >= UNSURE)
      this.path.set(this.answers, answer.values);
    const { live, records } = this.store.state;
    if (this.answers % RECORDS && !answer.kernels) return;
    const kernels = answer.kernels ?? live?.kernels ?? null;
    this.store.set({
      live: {
        stage: "camera",
        rate: this.fps,
        objective,
        rank,
        features,
        kernels,
        done: answer.frames,
        preview: null,
      },
      records: [...records, ...this.waitingRecords],
    });
    this.waitingRecords = [];
  }

  /** End the recording; the server answers with the run that it became. */
  stop() {
    if (!this.running) return;
    this.end();
    this.socket.send({ type: "camera_stop" });
  }

  /** Let go of the camera. */
  end() {
    clearInterval(this.timer);
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.video.srcObject = null;
    for (const { bitmap } of this.sent.values()) bitmap.close();
    this.sent.clear();
  }
}

/** @param {number} sequence @param {number} seconds @param {Blob} blob */
async function packed(sequence, seconds, blob) {
  const message = new Uint8Array(16 + blob.size);
  const view = new DataView(message.buffer);
  view.setUint32(0, sequence, true);
  view.setFloat64(8, seconds, true);
  message.set(new Uint8Array(await blob.arrayBuffer()), 16);
  return message.buffer;
}

/** @param {string} name Of the browser's error. */
function cameraSentence(name) {
  if (name === "NotAllowedError")
    return "Camera access was denied. Allow it in the browser, beside the address.";
  if (name === "NotFoundError") return "This computer has no camera that the browser can find.";
  if (name === "NotReadableError") return "Another program is using the camera.";
  return "The camera could not be opened.";
}
