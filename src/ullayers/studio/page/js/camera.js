/**
 * The browser's camera as a source. Frames go to the server ten times a second, at most two at a
 * time; each is shown when its answer is here, so outlines always lie on the frame they belong to.
 */

import { prepare } from "./charts.js";
import { button, h, say, setText } from "./dom.js";
import { UNSURE } from "./results.js";
import { drawScene, emptyScene } from "./scene.js";
import { pictureCanvas, Viewport } from "./viewer.js";

/** @import {Socket} from "./api.js" */
/** @import {App} from "./store.js" */

const SIDE = 320; // longest side of the frames that are sent
const QUALITY = 0.7;
const PERIOD = 100; // ms
const IN_FLIGHT = 2;
const PATIENCE = 3000; // ms after which an answer is no longer waited for
const SILENT = 500; // ms without an answer after which the bare picture is shown
const TRAIL = 50; // frames
const MEAN_OF = 30; // answers
const RECORDS = 20; // answers until the curves are drawn again

export class Camera {
  /** @param {App} app @param {Socket} socket */
  constructor({ store, session }, socket) {
    this.store = store;
    this.socket = socket;
    this.path = session.path; // takes the places of all frames
    this.viewport = new Viewport();
    this.video = h("video", { playsinline: true });
    this.video.muted = true;
    this.small = h("canvas");
    this.canvas = pictureCanvas("Camera with outlines", "camera-picture");
    this.numbers = h("div.camera-numbers.numeric", { testid: "camera-numbers" });
    const props = { class: "primary", testid: "camera-stop" };
    const stop = button("Stop and keep", () => this.stop(), props);
    const bar = h("div.camera-bar", this.numbers, stop);
    this.element = h("div.pane", this.canvas, bar);
    /** @type {Map<number, {bitmap: ImageBitmap, begun: number}>} */
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
    if (first === undefined) return 0;
    return (1000 * (this.times.length - 1)) / Math.max(1, this.lastAnswer - first);
  }

  get running() {
    return this.stream !== null;
  }

  /** @returns {Promise<boolean>} Whether the camera runs. */
  async start() {
    if (this.running) return true;
    try {
      if (!this.socket.open) throw new Error("There is no connection to the server.");
      this.stream = await openCamera();
    } catch (error) {
      say(/** @type {Error} */ (error).message);
      return false;
    }
    this.video.srcObject = this.stream;
    await this.video.play();
    const scale = Math.min(1, SIDE / Math.max(this.video.videoWidth, this.video.videoHeight));
    this.small.width = Math.round(scale * this.video.videoWidth);
    this.small.height = Math.round(scale * this.video.videoHeight);
    this.began = performance.now();
    this.answers = 0;
    this.times = [];
    this.lastAnswer = 0;
    this.trails.clear();
    this.waitingRecords = [];
    const digits = /** @type {const} */ ({ hour: "2-digit", minute: "2-digit", hour12: false });
    const time = new Date().toLocaleTimeString([], digits);
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
    this.timer = setInterval(() => this.send(), PERIOD);
    return true;
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
    this.small.getContext("2d")?.drawImage(this.video, 0, 0, width, height);
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
    const state = answer.learning ? "learning" : "getting ready";
    const rate = `${Math.round(now - sent.begun)} ms · ${this.fps.toFixed(1)} frames/s`;
    setText(this.numbers, `${rate} · ${state}`);
    this.note(answer);
  }

  /** @param {ImageBitmap|HTMLVideoElement} picture @param {any} answer */
  paint(picture, answer) {
    const sheet = prepare(this.canvas);
    const { width, height } = this.small;
    const placement = this.viewport.place(this.small, sheet.width, sheet.height);
    const { left, top, scale } = placement;
    sheet.context.drawImage(picture, left, top, scale * width, scale * height);
    const places = (answer.objects ?? []).map(
      (/** @type {number[]} */ [object, x, y, confidence]) => {
        return { object, x: x * width, y: y * height, confidence };
      },
    );
    for (const { object, x, y, confidence } of places) {
      if (confidence < UNSURE) continue;
      const trail = [...(this.trails.get(object) ?? []), x, y];
      this.trails.set(object, trail.slice(-2 * TRAIL));
    }
    const trails = [...this.trails].map(([object, points]) => ({ object, points }));
    const outlines = (answer.outlines ?? []).map(
      (/** @type {[number, number[]]} */ [object, points]) => [
        object,
        points.map((value, place) => value * (place % 2 ? height : width)),
      ],
    );
    const scene = {
      ...emptyScene(null, width, height),
      several: places.length > 1,
      outlines: () => outlines,
      places: () => places,
      trails: () => trails,
    };
    const look = { ...this.store.state, fps: 1000 / PERIOD };
    drawScene(sheet.context, scene, answer.seq, placement, look);
  }

  /** Curves and kernels of what is learned. @param {any} answer */
  note(answer) {
    const { objective, rank, features, learning, frames, objects, values } = answer;
    if (learning && Number.isFinite(objective)) {
      const step = frames ?? this.answers;
      this.waitingRecords.push({ trial: 0, step, objective, rank, features, held_out: null });
    }
    if (objects?.length && values[2] >= UNSURE) this.path.set(this.answers, values);
    if (this.answers % RECORDS && !answer.kernels) return;
    const { live, records } = this.store.state;
    const kernels = answer.kernels ?? live?.kernels ?? null;
    const rate = this.fps;
    this.store.set({
      live: {
        stage: "camera",
        rate,
        objective,
        rank,
        features,
        kernels,
        done: frames,
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

/** Throws a sentence if the camera cannot be opened. */
async function openCamera() {
  if (!navigator.mediaDevices)
    throw new Error(
      "Browsers allow camera access only for pages on this computer (localhost) or over HTTPS.",
    );
  try {
    const video = { width: { ideal: 640 } };
    return await navigator.mediaDevices.getUserMedia({ video, audio: false });
  } catch (error) {
    const { name } = /** @type {Error} */ (error);
    if (name === "NotAllowedError")
      throw new Error("Camera access was denied. Allow it in the browser, beside the address.");
    if (name === "NotFoundError")
      throw new Error("This computer has no camera that the browser can find.");
    if (name === "NotReadableError") throw new Error("Another program is using the camera.");
    throw new Error("The camera could not be opened.");
  }
}
