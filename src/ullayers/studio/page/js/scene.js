/**
 * What a viewer draws on the frames of a source. Each kind of content (a plain video, results, a
 * run at work) is a scene, so the viewer itself knows only frames and places.
 */

import { css, identityColour, identityMarker, textOn } from "./colours.js";
import { lowerBound, placesAt, UNSURE } from "./results.js";

/** @import {Outline, Place, Results} from "./results.js" */
/** @import {Source} from "./store.js" */
/** @typedef {{object: number, points: number[]}} Trail Its points x0, y0, x1, y1, ... */
/** @typedef {CanvasRenderingContext2D} Context */
/** @typedef {Place & {picked: boolean}} Spot In pixels of the canvas. */
/** @typedef {{scale: number, left: number, top: number}} Placement Of a video on a canvas. */

/**
 * @typedef {Object} Scene
 * @property {string|null} source Whose pictures are shown; null if the video is not at hand.
 * @property {number} width
 * @property {number} height
 * @property {number} last Last frame; another run may go on for longer.
 * @property {boolean} several Whether objects need a name.
 * @property {(frame: number) => Outline[]|null} outlines Null if not here yet.
 * @property {(frame: number) => Place[]} places
 * @property {(frame: number, length: number) => Trail[]} trails
 * @property {(frame: number) => number[]|null} crop Followed square: x0, y0, x1, y1.
 * @property {() => string|null} image Address of a picture other than the video's.
 */

/**
 * @typedef {Object} Look
 * @property {Record<string, boolean>} layers
 * @property {number[]} picked
 * @property {number[]} hidden
 * @property {number} fps
 * @property {{x: number, y: number}|null} [aim] Where the keyboard would move an object.
 */

const TRAIL_SECONDS = 2;

/** @param {string|null} source @param {number} width @param {number} height @returns {Scene} */
export function emptyScene(source, width, height) {
  return {
    source,
    width,
    height,
    last: Infinity,
    several: false,
    outlines: () => [],
    places: () => [],
    trails: () => [],
    crop: () => null,
    image: () => null,
  };
}

/** @param {Results} results @returns {Scene} */
export function resultsScene(results) {
  const { kind, sequence, outlines, objects, last } = results;
  return {
    ...emptyScene(sequence.source, sequence.width, sequence.height),
    last,
    several: objects.length > 1,
    outlines: (frame) => {
      const chunk = outlines ? outlines.at(frame) : {};
      return chunk && (chunk[frame] ?? []);
    },
    places: (frame) => placesAt(results, frame),
    trails: (frame, length) => (kind === "tracks" ? trails(results, frame, length) : []),
  };
}

/** @param {Results} results @param {number} frame @param {number} length In frames. */
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
 * @param {Source} source
 * @returns {Scene & {frames: number[]}}
 */
export function previewScene(preview, source) {
  /** @type {number[]} */
  const frames = preview.frames;
  const scaled = (/** @type {number[]} */ points) =>
    points.map((value, place) => value * (place % 2 ? scene.height : scene.width));
  /** What a list says about a frame. @param {any[]|undefined} list @param {number} frame */
  const at = (list, frame) => list?.[frames.lastIndexOf(frame)];
  /** @type {Scene & {frames: number[]}} */
  const scene = {
    // A camera's size is known when its first picture is here; the viewer sets it then.
    ...emptyScene(source.id, source.width ?? 640, source.height ?? 480),
    frames,
    outlines: (frame) =>
      (at(preview.outlines, frame) ?? []).map((/** @type {number[]} */ points) => [
        1,
        scaled(points),
      ]),
    places: (frame) => {
      const [x, y, confidence] = at(preview.places, frame) ?? [0, 0, 0];
      if (!(confidence > 0)) return [];
      return [{ object: 1, x: x * scene.width, y: y * scene.height, confidence }];
    },
    crop: (frame) => {
      const square = at(preview.crops, frame);
      return square ? scaled(square) : null;
    },
    image: () => preview.image ?? null,
  };
  return scene;
}

/**
 * Draw everything that a scene knows about a frame.
 *
 * @param {Context} context
 * @param {Scene} scene
 * @param {number} frame
 * @param {Placement} placement
 * @param {Look} look
 * @returns {boolean} Whether the outlines were there.
 */
export function drawScene(context, scene, frame, placement, look) {
  const { layers, hidden, picked, aim } = look;
  const shown = (/** @type {{object: number}} */ { object }) => !hidden.includes(object);
  const outlines = scene.outlines(frame);
  const places = scene.places(frame).filter(shown);
  context.lineJoin = "round";
  context.lineCap = "round";
  if (layers.trails) {
    for (const trail of scene.trails(frame, TRAIL_SECONDS * look.fps).filter(shown))
      drawTrail(context, trail, placement);
  }
  if (layers.outlines) {
    for (const outline of outlines ?? []) {
      const [object] = outline;
      if (hidden.includes(object)) continue;
      const place = places.find((each) => each.object === object);
      const sure = !place || place.confidence >= UNSURE;
      drawOutline(context, outline, placement, picked.includes(object), sure);
    }
  }
  const crop = scene.crop(frame);
  if (crop) drawCrop(context, crop, placement);
  for (const place of places) {
    const x = placement.left + placement.scale * place.x;
    const y = placement.top + placement.scale * place.y;
    const spot = { ...place, x, y, picked: picked.includes(place.object) };
    if (layers.centroids || spot.picked) drawCentroid(context, spot);
    if (layers.names && scene.several) drawName(context, spot);
  }
  if (aim) drawCross(context, aim, placement);
  return outlines !== null;
}

/**
 * Stroke the path dark, then narrower in a colour, so that it stands out from any picture.
 *
 * @param {Context} context
 * @param {[number, string]} dark Width and colour.
 * @param {[number, string]} bright
 */
function strokeTwice(context, dark, bright) {
  for (const [width, colour] of [dark, bright]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  }
}

/** @param {Context} context @param {{x: number, y: number}} aim @param {Placement} placement */
function drawCross(context, aim, { scale, left, top }) {
  const x = left + scale * aim.x;
  const y = top + scale * aim.y;
  context.beginPath();
  for (const length of [1, -1]) {
    context.moveTo(x + 5 * length, y);
    context.lineTo(x + 18 * length, y);
    context.moveTo(x, y + 5 * length);
    context.lineTo(x, y + 18 * length);
  }
  strokeTwice(context, [4, "rgb(0 0 0 / 0.7)"], [2, "#fff"]);
}

/** @param {Context} context @param {number[]} points @param {Placement} placement */
function trace(context, points, { scale, left, top }) {
  context.beginPath();
  for (let i = 0; i < points.length; i += 2) {
    context.lineTo(left + scale * points[i], top + scale * points[i + 1]);
  }
}

/** @param {Context} context @param {Trail} trail @param {Placement} placement */
function drawTrail(context, { object, points }, placement) {
  if (points.length < 4) return;
  const pieces = 4; // older pieces are fainter
  const length = points.length / 2;
  for (let piece = 0; piece < pieces; piece += 1) {
    const from = Math.floor((piece * (length - 1)) / pieces);
    const to = Math.floor(((piece + 1) * (length - 1)) / pieces);
    trace(context, points.slice(2 * from, 2 * to + 2), placement);
    context.strokeStyle = css(identityColour(object), 0.2 + (0.65 * (piece + 1)) / pieces);
    context.lineWidth = 2;
    context.stroke();
  }
}

/**
 * @param {Context} context
 * @param {Outline} outline
 * @param {Placement} placement
 * @param {boolean} picked
 * @param {boolean} sure
 */
function drawOutline(context, [object, points], placement, picked, sure) {
  const colour = identityColour(object);
  // The first point again instead of closePath, whose last side has no end to dash from.
  trace(context, [...points, points[0], points[1]], placement);
  context.fillStyle = css(colour, picked ? 0.3 : 0.12);
  context.fill();
  if (!sure) context.setLineDash([5, 5]);
  strokeTwice(context, [picked ? 5 : 3.5, "rgb(0 0 0 / 0.55)"], [picked ? 3 : 2, css(colour)]);
  context.setLineDash([]);
}

/** The marker of an object: solid if sure, else hollow. @param {Context} context @param {Spot} spot */
function drawCentroid(context, spot) {
  const radius = spot.picked ? 6 : 4.5;
  const sure = spot.confidence >= UNSURE;
  const colour = css(identityColour(spot.object));
  context.fillStyle = "rgb(0 0 0 / 0.7)";
  markerPath(context, spot, radius + 2.2);
  context.fill();
  context.fillStyle = "#fff";
  markerPath(context, spot, radius + 1.2);
  context.fill();
  markerPath(context, spot, radius - (sure ? 0 : 0.8));
  context.fillStyle = context.strokeStyle = colour;
  context.lineWidth = 2;
  if (sure) context.fill();
  else context.stroke();
}

/** @param {Context} context @param {Spot} spot @param {number} radius */
function markerPath(context, { object, x, y }, radius) {
  const marker = identityMarker(object);
  context.beginPath();
  if (marker === "circle") {
    context.arc(x, y, radius, 0, 2 * Math.PI);
    return;
  }
  const corners = {
    square: [0.9, 4, Math.PI / 4],
    triangle: [1.2, 3, -Math.PI / 2],
    diamond: [1.15, 4, 0],
  };
  const [size, count, turn] = corners[marker];
  for (let corner = 0; corner < count; corner += 1) {
    const angle = turn + (2 * Math.PI * corner) / count;
    context.lineTo(x + size * radius * Math.cos(angle), y + size * radius * Math.sin(angle));
  }
  context.closePath();
}

/** The number of an object. @param {Context} context @param {Spot} spot */
function drawName(context, { object, x, y, picked }) {
  const colour = identityColour(object);
  const text = String(object);
  context.font = `600 ${picked ? 14 : 12}px system-ui, sans-serif`;
  const width = context.measureText(text).width + 10;
  const height = picked ? 20 : 17;
  const widest = context.canvas.clientWidth || Infinity; // a figure has none, and room
  const left = Math.min(x + 10, widest - width - 2);
  const top = Math.max(y - 10 - height, 2);
  context.fillStyle = css(colour);
  context.strokeStyle = "rgb(0 0 0 / 0.5)";
  context.lineWidth = 1;
  context.beginPath();
  context.roundRect(left, top, width, height, 4);
  context.fill();
  context.stroke();
  context.fillStyle = textOn(colour);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, left + width / 2, top + height / 2 + 0.5);
}

/** @param {Context} context @param {number[]} crop @param {Placement} placement */
function drawCrop(context, [x0, y0, x1, y1], { scale, left, top }) {
  context.beginPath();
  context.rect(left + scale * x0, top + scale * y0, scale * (x1 - x0), scale * (y1 - y0));
  strokeTwice(context, [4, "rgb(0 0 0 / 0.6)"], [1.5, "#fff"]);
}

/**
 * The object at a point of the video: whose outline holds it, else whose place is nearest.
 *
 * @param {Scene} scene
 * @param {number} frame
 * @param {number} x
 * @param {number} y
 * @param {number} reach Largest distance from a place, in pixels of the video.
 * @param {number[]} hidden
 */
export function objectAt(scene, frame, x, y, reach, hidden) {
  for (const [object, points] of scene.outlines(frame) ?? []) {
    if (!hidden.includes(object) && holds(points, x, y)) return object;
  }
  /** @type {number|null} */
  let best = null;
  let nearest = reach;
  for (const place of scene.places(frame)) {
    const distance = Math.hypot(place.x - x, place.y - y);
    if (distance <= nearest && !hidden.includes(place.object))
      [best, nearest] = [place.object, distance];
  }
  return best;
}

/** @param {number[]} points @param {number} x @param {number} y */
function holds(points, x, y) {
  let inside = false;
  for (let i = 0, j = points.length - 2; i < points.length; j = i, i += 2) {
    const [xi, yi, xj, yj] = [points[i], points[i + 1], points[j], points[j + 1]];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}
