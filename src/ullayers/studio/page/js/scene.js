/**
 * What a viewer draws on the frames of a source. Each kind of content (a plain video, results, a run
 * at work) is a scene, so the viewer itself knows only frames and places.
 */

import { lowerBound } from "./tables.js";
import { placesAt } from "./results.js";

/**
 * @typedef {Object} Scene
 * @property {string|null} source Whose pictures are shown; null if the video is not at hand.
 * @property {number} width
 * @property {number} height
 * @property {number} last Last frame; another run may go on for longer.
 * @property {boolean} several Whether objects need a name.
 * @property {(frame: number) => import("./outlines.js").Outline[]|null} outlines Null if not here yet.
 * @property {(frame: number) => import("./results.js").Place[]} places
 * @property {(frame: number, length: number) => {object: number, points: number[]}[]} trails
 * @property {(frame: number) => [number, number, number, number]|null} crop Followed square.
 * @property {(frame: number) => string|null} image Address of a picture other than the video's.
 */

/** @returns {Omit<Scene, "source"|"width"|"height">} */
function nothing() {
  return {
    last: Infinity,
    several: false,
    outlines: () => [],
    places: () => [],
    trails: () => [],
    crop: () => null,
    image: () => null,
  };
}

/** @param {import("./store.js").Source} source @returns {Scene|null} Null if it has no frames to go to. */
export function sourceScene({ id, width, height }) {
  return width && height ? { ...nothing(), source: id, width, height } : null;
}

/** @param {import("./results.js").Results} results @returns {Scene} */
export function resultsScene(results) {
  const { sequence, outlines } = results;
  return {
    ...nothing(),
    source: sequence.source,
    width: sequence.width,
    height: sequence.height,
    last: results.last,
    several: results.objects.length > 1,
    outlines: (frame) => (outlines ? outlines.at(frame) : []),
    places: (frame) => placesAt(results, frame),
    trails: (frame, length) => (results.kind === "tracks" ? trails(results, frame, length) : []),
  };
}

/**
 * @param {import("./results.js").Results} results
 * @param {number} frame
 * @param {number} length In frames.
 */
function trails({ objects, tiles }, frame, length) {
  const start = Math.max(0, frame - length);
  const parts = tiles.cover(0, [start, frame], true);
  return objects.map(({ object }) => {
    /** @type {number[]} */
    const points = [];
    for (const part of parts) {
      const track = part?.get(object);
      if (!track) continue;
      const { frame: frames, x_px: x, y_px: y } = track.columns;
      for (let row = lowerBound(frames, start); frames[row] <= frame; row += 1)
        if (Number.isFinite(x[row])) points.push(x[row], y[row]);
    }
    return { object, points };
  });
}

/**
 * What a run at work sees in some frames, as the network is now.
 *
 * @param {any} preview As the server sends it, in 0..1 of the frame.
 * @param {import("./store.js").Source} source
 * @returns {Scene & {frames: number[]}}
 */
export function previewScene(preview, source) {
  /** @type {Map<number, number>} */
  const index = new Map();
  preview.frames.forEach((/** @type {number} */ frame, /** @type {number} */ place) =>
    index.set(frame, place),
  );
  const scaled = (/** @type {number[]} */ points) =>
    points.map((value, place) => value * (place % 2 ? scene.height : scene.width));
  /** @param {number} frame */
  const at = (frame) => index.get(frame) ?? -1;
  /** @type {Scene & {frames: number[]}} */
  const scene = {
    ...nothing(),
    source: source.id,
    // A camera's size is known when its first picture is here; the viewer sets it then.
    width: source.width ?? 640,
    height: source.height ?? 480,
    frames: preview.frames,
    outlines: (frame) =>
      (preview.outlines?.[at(frame)] ?? []).map((/** @type {number[]} */ points) => [
        1,
        scaled(points),
      ]),
    places: (frame) => {
      const place = preview.places?.[at(frame)];
      if (!place || !(place[2] > 0)) return [];
      return [
        { object: 1, x: place[0] * scene.width, y: place[1] * scene.height, confidence: place[2] },
      ];
    },
    crop: (frame) => {
      const square = preview.crops?.[at(frame)];
      return square ? /** @type {any} */ (scaled(square)) : null;
    },
    image: () => preview.image ?? null,
  };
  return scene;
}
