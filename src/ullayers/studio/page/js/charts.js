/**
 * Charts: how they are drawn on canvases, the curves of training, and copies of figures as PNG and
 * SVG, on white and in colours that print well.
 */

import { chartColour, css, PAPER, screenPalette } from "./colours.js";
import { beforeRepaint, h } from "./dom.js";

/** @import {Palette} from "./colours.js" */
/** @typedef {{context: any, width: number, height: number, palette: Palette}} Sheet */
/** @typedef {(sheet: Sheet) => void} Paint */
/**
 * @typedef {{trial: number, step: number, objective: number, rank: number, features: number,
 *     held_out: number|null}} Step Of training.
 */

const LEFT = 38;
const BOTTOM = 20;
const TOP = 8;
const ENTRY = { width: 86, height: 20, line: 16 }; // of a legend
const SVG = "http://www.w3.org/2000/svg";

/** Make a canvas as sharp as the screen, for CSS pixels. @param {HTMLCanvasElement} canvas */
export function sharpen(canvas) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const ratio = devicePixelRatio;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

/** The same, cleared. @param {HTMLCanvasElement} canvas */
export function prepare(canvas) {
  const sheet = sharpen(canvas);
  sheet.context.clearRect(0, 0, sheet.width, sheet.height);
  return { ...sheet, palette: screenPalette() };
}

/** A canvas that draws itself again when its size, its data or the theme changes. */
export class Chart {
  /**
   * @param {string} label
   * @param {string} testid
   * @param {Paint} paint
   * @param {string} [kind] Class of the canvas.
   */
  constructor(label, testid, paint, kind = "chart") {
    this.canvas = h("canvas", { class: kind, role: "img", "aria-label": label, testid });
    this.schedule = beforeRepaint(() => {
      if (this.canvas.clientWidth) paint(prepare(this.canvas));
    });
    new ResizeObserver(this.schedule).observe(this.canvas);
    addEventListener("themechange", this.schedule);
  }
}

/** @param {any} context @param {[number, number]} from @param {[number, number]} to */
export function line(context, from, to) {
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
}

/**
 * Round numbers between two values.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} count About how many.
 */
export function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [];
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step =
    [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 10 * power;
  const list = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k += 1) {
    list.push(Number((k * step).toPrecision(12)));
  }
  return list;
}

/**
 * Records in lists, one per trial; the trial that is at work, or was last, comes last.
 *
 * @param {Step[]} records
 */
export function byTrial(records) {
  const trials = [...Map.groupBy(records, ({ trial }) => trial)];
  const latest = records.at(-1)?.trial;
  return trials
    .sort(([a], [b]) => Number(a === latest) - Number(b === latest))
    .map(([, list]) => list);
}

/**
 * J against the step: earlier trials are thin, the latest is strong, held-out frames are dots.
 *
 * @param {Sheet} sheet
 * @param {Step[]} records
 * @param {string} unit Of the steps.
 */
export function drawObjective(sheet, records, unit) {
  const { context, width, height, palette } = sheet;
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
  drawAxes(sheet, { x, y, low, high, steps, unit });
  trials.forEach((trial, index) => {
    const latest = index === trials.length - 1;
    context.strokeStyle = latest ? palette.mark : palette.soft;
    context.globalAlpha = latest ? 1 : 0.45;
    context.lineWidth = latest ? 1.75 : 1;
    context.beginPath();
    for (const { step, objective } of trial)
      if (Number.isFinite(objective)) context.lineTo(x(step), y(objective));
    context.stroke();
    context.fillStyle = latest ? palette.warn : palette.soft;
    for (const { step, held_out } of trial) {
      if (held_out === null || !Number.isFinite(held_out)) continue;
      context.beginPath();
      context.arc(x(step), y(held_out), 2.5, 0, 2 * Math.PI);
      context.fill();
    }
    context.globalAlpha = 1;
  });
}

/** Range of values without the first steps' outliers, which would flatten the rest. */
function spread(/** @type {number[]} */ values) {
  const sorted = [...values].sort((a, b) => a - b);
  const low = sorted[0];
  const high = sorted[Math.floor(0.995 * (sorted.length - 1))];
  const pad = Math.max(0.05, 0.06 * (high - low));
  return [low - pad, high + pad];
}

/** @param {Sheet} sheet @param {any} scale */
function drawAxes({ context, width, height, palette }, { x, y, low, high, steps, unit }) {
  context.font = `10px ${palette.font}`;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.strokeStyle = palette.line;
  context.fillStyle = palette.soft;
  context.textAlign = "right";
  for (const value of ticks(low, high, 4)) {
    const down = Math.round(y(value)) + 0.5;
    line(context, [LEFT, down], [width - 8, down]);
    const short = String(Number(value.toFixed(4))).replace("-", "−");
    context.fillText(short, LEFT - 6, y(value));
  }
  context.fillText(unit, LEFT - 8, height - BOTTOM / 2 + 1);
  context.textAlign = "left";
  context.fillText("J", 2, TOP + 2);
  context.textAlign = "center";
  for (const step of ticks(1, steps, Math.max(2, Math.floor(width / 55)))) {
    if (Number.isInteger(step) && step >= 1)
      context.fillText(String(step), x(step), height - BOTTOM / 2 + 1);
  }
}

/** The rank over all steps, small and without axes. @param {Sheet} sheet @param {Step[]} records */
export function drawRank({ context, width, height, palette }, records) {
  const list = records.filter((record) => Number.isFinite(record.rank));
  if (list.length < 2) return;
  const most = Math.max(1, list.at(-1)?.features ?? 1);
  context.strokeStyle = palette.mark;
  context.lineWidth = 1.5;
  context.beginPath();
  const stride = Math.max(1, Math.floor(list.length / (2 * width)));
  for (let i = 0; i < list.length; i += stride) {
    const x = (i / (list.length - 1)) * width;
    context.lineTo(x, height - 2 - (list[i].rank / most) * (height - 4));
  }
  context.stroke();
}

/**
 * Save a figure as a file.
 *
 * @param {"png"|"svg"} kind
 * @param {string} name Of the file, without an ending.
 * @param {number} width
 * @param {number} height Without the legend.
 * @param {Paint} paint
 * @param {number[]} [objects] For a legend of their colours, which one object alone does not need.
 */
export function saveFigure(kind, name, width, height, paint, objects = []) {
  const columns = Math.max(1, Math.floor((width - ENTRY.line) / ENTRY.width));
  const rows = objects.length < 2 ? 0 : Math.ceil(objects.length / columns) + 0.5;
  const whole = height + rows * ENTRY.height;
  const draw = (/** @type {any} */ context) => {
    const sheet = { context, width, height, palette: PAPER };
    context.fillStyle = PAPER.card;
    context.fillRect(0, 0, width, whole);
    paint(sheet);
    if (rows) drawLegend(sheet, objects, columns);
  };
  if (kind === "svg") {
    const context = new SvgContext(width, whole);
    draw(context);
    save(new Blob([context.toString()], { type: "image/svg+xml" }), `${name}.svg`);
    return;
  }
  const ratio = 2; // sharp in print
  const canvas = h("canvas", { width: ratio * width, height: ratio * whole });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  draw(context);
  saveCanvas(canvas, name);
}

/** @param {Sheet} sheet @param {number[]} objects @param {number} columns */
function drawLegend({ context, height, palette }, objects, columns) {
  context.font = `12px ${palette.font}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  objects.forEach((object, place) => {
    const x = ENTRY.line + (place % columns) * ENTRY.width;
    const y = height + (Math.floor(place / columns) + 0.5) * ENTRY.height;
    context.fillStyle = css(chartColour(object, palette));
    context.fillRect(x, y - 2, ENTRY.line, 4);
    context.fillStyle = palette.ink;
    context.fillText(`Object ${object}`, x + ENTRY.line + 6, y);
  });
}

/** @param {HTMLCanvasElement} canvas @param {string} name */
export function saveCanvas(canvas, name) {
  canvas.toBlob((blob) => {
    if (blob) save(blob, `${name}.png`);
  });
}

/** @param {Blob} blob @param {string} name */
function save(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name.replace(/[\\/:*?"<>|]/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000); // the browser reads it after the click
}

/**
 * A drawing context that writes SVG. It has what the figures use of a canvas, so one function draws
 * a figure on the screen, as PNG and as SVG.
 */
class SvgContext {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    this.root = svgNode("svg", { xmlns: SVG, viewBox: `0 0 ${width} ${height}`, width, height });
    this.group = this.root; // into which elements go
    /** @type {any[]} */
    this.stack = [];
    this.path = "";
    this.clips = 0;
    this.dash = "";
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "10px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
  }

  /** @param {string} tag @param {Record<string, string|number>} attributes */
  add(tag, attributes) {
    const node = svgNode(tag, attributes);
    if (this.globalAlpha !== 1) node.setAttribute("opacity", String(this.globalAlpha));
    this.group.append(node);
    return node;
  }

  save() {
    this.stack.push({ ...this });
  }

  restore() {
    const { path, clips } = this;
    Object.assign(this, this.stack.pop(), { path, clips });
  }

  clip() {
    const id = `clip${(this.clips += 1)}`;
    const clip = svgNode("clipPath", { id });
    clip.append(svgNode("path", { d: this.path }));
    const group = svgNode("g", { "clip-path": `url(#${id})` });
    this.group.append(clip, group);
    this.group = group;
  }

  /** @param {number[]} dash */
  setLineDash(dash) {
    this.dash = dash.join(" ");
  }

  beginPath() {
    this.path = "";
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.path += `M${number(x)} ${number(y)}`;
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${number(x)} ${number(y)}`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  rect(x, y, width, height) {
    this.path += `M${number(x)} ${number(y)}h${number(width)}v${number(height)}h${number(-width)}Z`;
  }

  /** A whole circle. @param {number} x @param {number} y @param {number} radius */
  arc(x, y, radius) {
    const half = `a${number(radius)} ${number(radius)} 0 1 0 `;
    this.moveTo(x - radius, y);
    this.path += `${half}${number(2 * radius)} 0${half}${number(-2 * radius)} 0Z`;
  }

  stroke() {
    const [stroke, opacity] = solid(this.strokeStyle);
    this.add("path", {
      d: this.path,
      fill: "none",
      stroke,
      "stroke-opacity": opacity,
      "stroke-width": this.lineWidth,
      ...(this.dash ? { "stroke-dasharray": this.dash } : {}),
      "stroke-linejoin": "round",
    });
  }

  fill() {
    const [fill, opacity] = solid(this.fillStyle);
    this.add("path", { d: this.path, fill, "fill-opacity": opacity });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    const size = { width: number(width), height: number(height) };
    this.add("rect", { x: number(x), y: number(y), ...size, fill: this.fillStyle });
  }

  /** @param {string} text @param {number} x @param {number} y */
  fillText(text, x, y) {
    const [weight, size, family] = /^(?:(\d+) )?([\d.]+)px (.*)$/.exec(this.font)?.slice(1) ?? [];
    const anchors = { left: "start", center: "middle", right: "end" };
    const node = this.add("text", {
      x: number(x),
      y: number(this.textBaseline === "middle" ? y + 0.35 * Number(size) : y),
      fill: this.fillStyle,
      "font-size": size,
      "font-family": family,
      "font-weight": weight ?? "400",
      "text-anchor": anchors[/** @type {keyof typeof anchors} */ (this.textAlign)],
    });
    node.textContent = text;
  }

  /** @returns {string} */
  toString() {
    return new XMLSerializer().serializeToString(this.root);
  }
}

/** @param {string} tag @param {Record<string, string|number>} attributes @returns {SVGElement} */
function svgNode(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  return /** @type {SVGElement} */ (node);
}

/**
 * A colour and its opacity apart, as older programs that read SVG need them.
 *
 * @param {string} colour
 * @returns {[string, number]}
 */
function solid(colour) {
  const parts = /^rgb\((\d+) (\d+) (\d+)(?: \/ ([\d.]+))?\)$/.exec(colour);
  if (!parts) return [colour, 1];
  const hex = parts.slice(1, 4).map((value) => Number(value).toString(16).padStart(2, "0"));
  return [`#${hex.join("")}`, Number(parts[4] ?? 1)];
}

/** @param {number} value */
function number(value) {
  return Number(value.toFixed(2));
}
