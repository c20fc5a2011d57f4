/** Curves of training: J of every trial, and the rank of the output. */

import { h } from "./dom.js";
import { prepare, screenPalette, ticks } from "./palette.js";

const LEFT = 38;
const BOTTOM = 20;
const TOP = 8;

/** @typedef {{trial: number, step: number, objective: number, rank: number, features: number, held_out: number|null}} Record */

/**
 * Records in lists, one per trial; the trial that is at work, or was last, comes last.
 *
 * @param {Record[]} records
 * @returns {Record[][]}
 */
export function byTrial(records) {
  /** @type {Map<number, Record[]>} */
  const trials = new Map();
  for (const record of records) {
    const list = trials.get(record.trial);
    if (list) list.push(record);
    else trials.set(record.trial, [record]);
  }
  const latest = records.at(-1)?.trial;
  return [...trials]
    .sort(([a], [b]) => Number(a === latest) - Number(b === latest))
    .map(([, list]) => list);
}

/**
 * J against the step: earlier trials are thin, the latest is strong, held-out frames are dots.
 *
 * @param {any} context
 * @param {Record[]} records
 * @param {number} width
 * @param {number} height
 * @param {import("./palette.js").Palette} palette
 * @param {string} unit Of the steps.
 */
export function drawObjective(context, records, width, height, palette, unit) {
  const trials = byTrial(records);
  const values = records
    .flatMap((record) => [record.objective, record.held_out])
    .filter((value) => Number.isFinite(value));
  if (!values.length) return;
  const steps = Math.max(2, ...trials.map((trial) => trial.at(-1)?.step ?? 0));
  const [low, high] = spread(/** @type {number[]} */ (values));
  const x = (/** @type {number} */ step) => LEFT + ((step - 1) / (steps - 1)) * (width - LEFT - 8);
  const y = (/** @type {number} */ value) =>
    TOP +
    (1 - (Math.min(high, Math.max(low, value)) - low) / (high - low)) * (height - TOP - BOTTOM);
  drawAxes(context, { width, height, palette, x, y, low, high, steps, unit });
  trials.forEach((trial, index) => {
    const latest = index === trials.length - 1;
    context.strokeStyle = latest ? palette.mark : palette.soft;
    context.globalAlpha = latest ? 1 : 0.45;
    context.lineWidth = latest ? 1.75 : 1;
    strokeLine(
      context,
      trial.filter((record) => Number.isFinite(record.objective)),
      x,
      (record) => y(record.objective),
    );
    context.fillStyle = latest ? palette.warn : palette.soft;
    for (const record of trial) {
      if (!Number.isFinite(record.held_out)) continue;
      context.beginPath();
      context.arc(x(record.step), y(/** @type {number} */ (record.held_out)), 2.5, 0, 2 * Math.PI);
      context.fill();
    }
    context.globalAlpha = 1;
  });
}

/** A number as short as it can be. @param {number} value */
function plain(value) {
  return String(Number(value.toFixed(4))).replace("-", "−");
}

/** Range of values without the first steps' outliers, which would flatten the rest. */
function spread(/** @type {number[]} */ values) {
  const sorted = [...values].sort((a, b) => a - b);
  const low = sorted[0];
  const high = sorted[Math.floor(0.995 * (sorted.length - 1))];
  const pad = Math.max(0.05, 0.06 * (high - low));
  return [low - pad, high + pad];
}

/** @param {any} context @param {any} frame */
function drawAxes(context, { width, height, palette, x, y, low, high, steps, unit }) {
  context.font = `10px ${palette.font}`;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  for (const value of ticks(low, high, 4)) {
    context.strokeStyle = palette.line;
    context.beginPath();
    context.moveTo(LEFT, Math.round(y(value)) + 0.5);
    context.lineTo(width - 8, Math.round(y(value)) + 0.5);
    context.stroke();
    context.fillStyle = palette.soft;
    context.textAlign = "right";
    context.fillText(plain(value), LEFT - 6, y(value));
  }
  context.fillStyle = palette.soft;
  context.textAlign = "left";
  context.fillText("J", 2, TOP + 2);
  context.textAlign = "right";
  context.fillText(unit, LEFT - 8, height - BOTTOM / 2 + 1);
  context.textAlign = "center";
  for (const step of ticks(1, steps, Math.max(2, Math.floor(width / 55)))) {
    if (Number.isInteger(step) && step >= 1)
      context.fillText(String(step), x(step), height - BOTTOM / 2 + 1);
  }
}

/**
 * @param {any} context
 * @param {Record[]} records
 * @param {(step: number) => number} x
 * @param {(record: Record) => number} y
 */
function strokeLine(context, records, x, y) {
  if (!records.length) return;
  context.beginPath();
  records.forEach((record, index) => {
    if (index) context.lineTo(x(record.step), y(record));
    else context.moveTo(x(record.step), y(record));
  });
  context.stroke();
}

/**
 * The rank over all steps, small and without axes.
 *
 * @param {any} context
 * @param {Record[]} records
 * @param {number} width
 * @param {number} height
 * @param {import("./palette.js").Palette} palette
 */
export function drawRank(context, records, width, height, palette) {
  const list = records.filter((record) => Number.isFinite(record.rank));
  if (list.length < 2) return;
  const most = Math.max(1, list.at(-1)?.features ?? 1);
  context.strokeStyle = palette.mark;
  context.lineWidth = 1.5;
  context.beginPath();
  const stride = Math.max(1, Math.floor(list.length / (2 * width)));
  for (let i = 0; i < list.length; i += stride) {
    context.lineTo(
      (i / (list.length - 1)) * width,
      height - 2 - (list[i].rank / most) * (height - 4),
    );
  }
  context.stroke();
}

/** A canvas that draws itself again when its size, its data or the theme changes. */
export class Chart {
  /**
   * @param {string} label
   * @param {string} testid
   * @param {(context: CanvasRenderingContext2D, width: number, height: number, palette: import("./palette.js").Palette) => void} paint
   * @param {string} [kind] Class of the canvas.
   */
  constructor(label, testid, paint, kind = "chart") {
    this.paint = paint;
    this.canvas = /** @type {HTMLCanvasElement} */ (
      h("canvas", { class: kind, role: "img", "aria-label": label, testid })
    );
    new ResizeObserver(() => this.schedule()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
    addEventListener("themechange", () => this.schedule());
  }

  schedule() {
    this.scheduled ||= requestAnimationFrame(() => {
      this.scheduled = 0;
      if (!this.canvas.clientWidth) return;
      const { context, width, height } = prepare(this.canvas);
      this.paint(context, width, height, screenPalette());
    });
  }
}
