/** Outlines, trails, centroids and names of objects, drawn onto a frame. */

import { css, identityColour, identityMarker, textOn } from "./colours.js";
import { UNSURE } from "./results.js";

export const TRAIL_SECONDS = 2;

/** @typedef {{scale: number, left: number, top: number}} Placement */
/**
 * @typedef {Object} Look
 * @property {Record<string, boolean>} layers
 * @property {number[]} picked
 * @property {number[]} hidden
 * @property {number} fps
 * @property {{x: number, y: number}|null} [aim] Where the keyboard would move an object.
 */

/**
 * Draw everything that a scene knows about a frame.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {import("./scene.js").Scene} scene
 * @param {number} frame
 * @param {Placement} placement
 * @param {Look} look
 * @returns {boolean} Whether the outlines were there.
 */
export function drawScene(context, scene, frame, placement, look) {
  const shown = (/** @type {number} */ object) => !look.hidden.includes(object);
  const outlines = scene.outlines(frame);
  const places = scene.places(frame).filter(({ object }) => shown(object));
  const sure = new Map(places.map(({ object, confidence }) => [object, confidence >= UNSURE]));
  context.lineJoin = "round";
  context.lineCap = "round";
  if (look.layers.trails) {
    for (const trail of scene.trails(frame, TRAIL_SECONDS * look.fps)) {
      if (shown(trail.object)) drawTrail(context, trail, placement);
    }
  }
  if (look.layers.outlines) {
    for (const [object, points] of outlines ?? []) {
      if (!shown(object)) continue;
      drawOutline(
        context,
        object,
        points,
        placement,
        look.picked.includes(object),
        sure.get(object) ?? true,
      );
    }
  }
  drawCrop(context, scene.crop(frame), placement);
  for (const place of places) {
    const picked = look.picked.includes(place.object);
    if (look.layers.centroids || picked) drawCentroid(context, place, placement, picked);
    if (look.layers.names && scene.several) drawName(context, place, placement, picked);
  }
  if (look.aim) drawCross(context, look.aim, placement);
  return outlines !== null;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{x: number, y: number}} aim
 * @param {Placement} placement
 */
function drawCross(context, aim, { scale, left, top }) {
  const x = left + scale * aim.x;
  const y = top + scale * aim.y;
  context.beginPath();
  for (const [dx, dy] of [
    [1, 0],
    [-1, 0],
    [0, 1],
    [0, -1],
  ]) {
    context.moveTo(x + 5 * dx, y + 5 * dy);
    context.lineTo(x + 18 * dx, y + 18 * dy);
  }
  context.strokeStyle = "rgb(0 0 0 / 0.7)";
  context.lineWidth = 4;
  context.stroke();
  context.strokeStyle = "#fff";
  context.lineWidth = 2;
  context.stroke();
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number[]} points
 * @param {Placement} placement
 */
function trace(context, points, { scale, left, top }) {
  context.beginPath();
  for (let i = 0; i < points.length; i += 2) {
    context.lineTo(left + scale * points[i], top + scale * points[i + 1]);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{object: number, points: number[]}} trail
 * @param {Placement} placement
 */
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
 * @param {CanvasRenderingContext2D} context
 * @param {number} object
 * @param {number[]} points
 * @param {Placement} placement
 * @param {boolean} picked
 * @param {boolean} sure
 */
function drawOutline(context, object, points, placement, picked, sure) {
  const colour = identityColour(object);
  // The first point again instead of closePath, whose last side has no end to dash from.
  trace(context, [...points, points[0], points[1]], placement);
  context.fillStyle = css(colour, picked ? 0.3 : 0.12);
  context.fill();
  if (!sure) context.setLineDash([5, 5]);
  context.strokeStyle = "rgb(0 0 0 / 0.55)";
  context.lineWidth = picked ? 5 : 3.5;
  context.stroke();
  context.strokeStyle = css(colour);
  context.lineWidth = picked ? 3 : 2;
  context.stroke();
  context.setLineDash([]);
}

/**
 * The marker of an object: solid if its place is sure, hollow if not.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {import("./results.js").Place} place
 * @param {Placement} placement
 * @param {boolean} picked
 */
function drawCentroid(context, place, { scale, left, top }, picked) {
  const x = left + scale * place.x;
  const y = top + scale * place.y;
  const radius = picked ? 6 : 4.5;
  const colour = css(identityColour(place.object));
  const marker = identityMarker(place.object);
  for (const [size, shade] of /** @type {[number, string][]} */ ([
    [radius + 2.2, "rgb(0 0 0 / 0.7)"],
    [radius + 1.2, "#fff"],
  ])) {
    context.fillStyle = shade;
    markerPath(context, marker, x, y, size);
    context.fill();
  }
  markerPath(context, marker, x, y, radius - (place.confidence < UNSURE ? 0.8 : 0));
  if (place.confidence < UNSURE) {
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.stroke();
  } else {
    context.fillStyle = colour;
    context.fill();
  }
}

/**
 * @param {any} context Of a canvas or of an SVG file.
 * @param {"circle"|"square"|"triangle"|"diamond"} marker
 * @param {number} x
 * @param {number} y
 * @param {number} radius
 */
export function markerPath(context, marker, x, y, radius) {
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

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./results.js").Place} place
 * @param {Placement} placement
 * @param {boolean} picked
 */
function drawName(context, place, { scale, left, top }, picked) {
  const colour = identityColour(place.object);
  const text = String(place.object);
  context.font = `600 ${picked ? 14 : 12}px system-ui, sans-serif`;
  const width = context.measureText(text).width + 10;
  const height = picked ? 20 : 17;
  const widest = context.canvas.clientWidth || Infinity; // a figure has none, and room
  const x = Math.min(left + scale * place.x + 10, widest - width - 2);
  const y = Math.max(top + scale * place.y - 10 - height, 2);
  context.fillStyle = css(colour);
  context.strokeStyle = "rgb(0 0 0 / 0.5)";
  context.lineWidth = 1;
  context.beginPath();
  context.roundRect(x, y, width, height, 4);
  context.fill();
  context.stroke();
  context.fillStyle = textOn(colour);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number, number, number]|null} crop
 * @param {Placement} placement
 */
function drawCrop(context, crop, { scale, left, top }) {
  if (!crop) return;
  const [x0, y0, x1, y1] = crop;
  context.beginPath();
  context.rect(left + scale * x0, top + scale * y0, scale * (x1 - x0), scale * (y1 - y0));
  context.strokeStyle = "rgb(0 0 0 / 0.6)";
  context.lineWidth = 4;
  context.stroke();
  context.strokeStyle = "#fff";
  context.lineWidth = 1.5;
  context.stroke();
}

/**
 * The object at a point of the video: whose outline holds it, else whose place is nearest.
 *
 * @param {import("./scene.js").Scene} scene
 * @param {number} frame
 * @param {number} x
 * @param {number} y
 * @param {number} reach Largest distance from a place, in pixels of the video.
 * @param {number[]} hidden
 * @returns {number|null}
 */
export function objectAt(scene, frame, x, y, reach, hidden) {
  for (const [object, points] of scene.outlines(frame) ?? []) {
    if (!hidden.includes(object) && holds(points, x, y)) return object;
  }
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
