/** Scatter of the places or of the code. A click on a point shows its frame. */

import { Chart } from "./charts.js";
import { chartColour, css, timeColour } from "./colours.js";
import { short } from "./format.js";

const PAD = { left: 2, right: 2, top: 4, bottom: 20 };
const HIGHEST = 260; // CSS pixels
const REACH = 14; // CSS pixels around a point in which a click counts
const SHADES = 32;
const MOST = 20000; // points per object that are drawn

/** @typedef {import("./scatter_data.js").ScatterModel} ScatterModel */

/**
 * Where points are drawn.
 *
 * @param {ScatterModel} model
 * @param {number} width
 * @param {number} height
 */
export function scales({ bounds: [x0, x1, y0, y1], picture }, width, height) {
  const across = width - PAD.left - PAD.right;
  const down = height - PAD.top - PAD.bottom;
  let [kx, ky] = [across / (x1 - x0), down / (y1 - y0)];
  if (picture) kx = ky = Math.min(kx, ky);
  const left = PAD.left + (across - kx * (x1 - x0)) / 2;
  const top = PAD.top + (down - ky * (y1 - y0)) / 2;
  return {
    x: (/** @type {number} */ value) => left + kx * (value - x0),
    y: (/** @type {number} */ value) =>
      picture ? top + ky * (value - y0) : top + ky * (y1 - value),
    box: /** @type {[number, number, number, number]} */ ([
      left,
      top,
      kx * (x1 - x0),
      ky * (y1 - y0),
    ]),
  };
}

/**
 * @param {any} context
 * @param {ScatterModel} model
 * @param {number} width
 * @param {number} height
 * @param {import("./palette.js").Palette} palette
 */
export function drawScatter(context, model, width, height, palette) {
  const { x, y, box } = scales(model, width, height);
  context.strokeStyle = palette.line;
  context.lineWidth = 1;
  context.beginPath();
  context.rect(
    Math.round(box[0]) + 0.5,
    Math.round(box[1]) + 0.5,
    Math.round(box[2]),
    Math.round(box[3]),
  );
  context.stroke();
  const several = model.series.length > 1;
  for (const points of model.series) {
    const stride = Math.max(1, Math.ceil(points.frame.length / MOST));
    const groups = several ? [all(points, stride)] : byTime(points, stride, model.frames);
    groups.forEach((rows, group) => {
      context.fillStyle = several
        ? css(chartColour(points.object, palette), 0.75)
        : css(timeColour(group / (SHADES - 1)), 0.85);
      // One path for all points of a colour is many times quicker than one each.
      context.beginPath();
      for (const row of rows) {
        if (Number.isFinite(points.x[row]))
          context.rect(x(points.x[row]) - 1.25, y(points.y[row]) - 1.25, 2.5, 2.5);
      }
      context.fill();
    });
  }
  drawLabels(context, model, box, height, palette);
}

/** @param {import("./scatter_data.js").Points} points @param {number} stride */
function all(points, stride) {
  return Array.from(
    { length: Math.ceil(points.frame.length / stride) },
    (_, place) => place * stride,
  );
}

/**
 * @param {import("./scatter_data.js").Points} points
 * @param {number} stride
 * @param {[number, number]} frames
 */
function byTime(points, stride, [first, last]) {
  /** @type {number[][]} */
  const groups = Array.from({ length: SHADES }, () => []);
  for (const row of all(points, stride)) {
    const share = (points.frame[row] - first) / Math.max(1, last - first);
    groups[Math.min(SHADES - 1, Math.max(0, Math.floor(share * SHADES)))].push(row);
  }
  return groups;
}

/**
 * @param {any} context
 * @param {ScatterModel} model
 * @param {[number, number, number, number]} box
 * @param {number} height
 * @param {import("./palette.js").Palette} palette
 */
function drawLabels(context, model, [left, top, wide, tall], height, palette) {
  const [x0, x1] = model.bounds;
  const base = Math.min(height - 8, top + tall + 12);
  context.font = `10px ${palette.font}`;
  context.textBaseline = "middle";
  context.fillStyle = palette.soft;
  context.textAlign = "left";
  context.fillText(model.picture ? "0" : short(x0), left, base);
  context.textAlign = "right";
  context.fillText(model.labels[0].endsWith("(px)") ? `${short(x1)} px` : short(x1), left + wide, base);
  context.textAlign = "center";
  context.fillText(
    model.picture ? "position in the frame" : `${model.labels[0]} across, ${model.labels[1]} up`,
    left + wide / 2,
    base,
  );
}

/**
 * Frame of the point nearest to a place on the canvas, or null.
 *
 * @param {ScatterModel} model
 * @param {number} width
 * @param {number} height
 * @param {number} px
 * @param {number} py
 * @returns {{frame: number, object: number}|null}
 */
export function nearest(model, width, height, px, py) {
  const { x, y } = scales(model, width, height);
  let best = null;
  let least = REACH ** 2;
  for (const points of model.series) {
    for (let row = 0; row < points.frame.length; row += 1) {
      const distance = (x(points.x[row]) - px) ** 2 + (y(points.y[row]) - py) ** 2;
      if (distance < least) {
        least = distance;
        best = { frame: points.frame[row], object: points.object };
      }
    }
  }
  return best;
}

export class Scatter {
  /**
   * @param {() => ScatterModel|null} model
   * @param {import("./playhead.js").Playhead} playhead
   * @param {(frame: number) => void} onjump
   */
  constructor(model, playhead, onjump) {
    this.model = model;
    this.playhead = playhead;
    this.drawnFor = ""; // size and theme of the background
    this.background = document.createElement("canvas"); // points, drawn once
    this.chart = new Chart(
      "Scatter: each point is a frame",
      "scatter",
      (context, width, height, palette) => this.paint(context, width, height, palette),
      "chart scatter",
    );
    this.canvas = this.chart.canvas;
    playhead.addEventListener("frame", () => this.chart.schedule());
    this.canvas.addEventListener("click", (event) => {
      const shown = this.model();
      const { offsetX, offsetY } = event;
      const hit =
        shown &&
        nearest(shown, this.canvas.clientWidth, this.canvas.clientHeight, offsetX, offsetY);
      if (hit) onjump(hit.frame);
    });
    addEventListener("themechange", () => this.refresh());
  }

  /** Draw the points again, because they have changed. */
  refresh() {
    this.drawnFor = "";
    this.chart.schedule();
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} width
   * @param {number} height
   * @param {import("./palette.js").Palette} palette
   */
  paint(context, width, height, palette) {
    const model = this.model();
    if (!model || this.fit(model, width, height)) return;
    const size = `${width}x${height}@${devicePixelRatio}${palette.ink}`;
    if (this.drawnFor !== size) {
      this.drawnFor = size;
      this.background.width = Math.round(width * devicePixelRatio);
      this.background.height = Math.round(height * devicePixelRatio);
      const back = /** @type {CanvasRenderingContext2D} */ (this.background.getContext("2d"));
      back.scale(devicePixelRatio, devicePixelRatio);
      drawScatter(back, model, width, height, palette);
    }
    context.drawImage(this.background, 0, 0, width, height);
    this.ring(context, model, width, height, palette);
  }

  /**
   * Give the canvas the shape of the picture; returns whether it is drawn again for that.
   *
   * @param {ScatterModel} model
   * @param {number} width
   * @param {number} height
   */
  fit({ bounds: [x0, x1, y0, y1], picture }, width, height) {
    const shape = (y1 - y0) / (x1 - x0);
    const needed = PAD.top + PAD.bottom + Math.round((width - PAD.left - PAD.right) * shape);
    const wanted = picture ? Math.min(Math.max(needed, 80), HIGHEST) : HIGHEST;
    if (Math.abs(wanted - height) < 2) return false;
    this.canvas.style.height = `${wanted}px`;
    return true;
  }

  /** Rings around the points of the current frame. */
  ring(
    /** @type {CanvasRenderingContext2D} */ context,
    /** @type {ScatterModel} */ model,
    /** @type {number} */ width,
    /** @type {number} */ height,
    /** @type {import("./palette.js").Palette} */ palette,
  ) {
    const { x, y } = scales(model, width, height);
    for (const [across, up] of model.at(this.playhead.frame)) {
      if (!Number.isFinite(across)) continue;
      for (const [wide, colour] of /** @type {[number, string][]} */ ([
        [4, palette.card],
        [2, palette.ink],
      ])) {
        context.strokeStyle = colour;
        context.lineWidth = wide;
        context.beginPath();
        context.arc(x(across), y(up), 6, 0, 2 * Math.PI);
        context.stroke();
      }
    }
  }
}
