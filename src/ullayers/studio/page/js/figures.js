/** Copies of figures as PNG and SVG, on white and in colours that print well. */

import { chartColour, css } from "./colours.js";
import { h } from "./dom.js";
import { PAPER } from "./palette.js";
import { SvgContext } from "./svg_context.js";

/** @typedef {(context: any, width: number, height: number, palette: import("./palette.js").Palette) => void} Paint */

const ENTRY = { width: 86, height: 20, line: 16 }; // of the legend

/**
 * A figure with a legend of the colours of objects below it.
 *
 * @param {Paint} paint
 * @param {number[]} objects Their numbers; the legend has no entry if there is only one.
 * @param {number} width
 * @param {number} height Without the legend.
 * @returns {{paint: Paint, height: number}} The height includes the legend.
 */
export function withLegend(paint, objects, width, height) {
  if (objects.length < 2) return { paint, height };
  const columns = Math.max(1, Math.floor((width - ENTRY.line) / ENTRY.width));
  const rows = Math.ceil(objects.length / columns);
  return {
    paint: (context, _width, _height, palette) => {
      paint(context, width, height, palette);
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
    },
    height: height + (rows + 0.5) * ENTRY.height,
  };
}

/**
 * @param {Paint} paint
 * @param {number} width
 * @param {number} height
 * @param {string} name Of the file, without an ending.
 */
export function saveSvg(paint, width, height, name) {
  const context = new SvgContext(width, height);
  context.fillStyle = PAPER.card;
  context.fillRect(0, 0, width, height);
  paint(context, width, height, PAPER);
  save(new Blob([context.toString()], { type: "image/svg+xml" }), `${name}.svg`);
}

/**
 * @param {Paint} paint
 * @param {number} width
 * @param {number} height
 * @param {string} name
 */
export function savePng(paint, width, height, name) {
  const ratio = 2; // sharp in print
  const canvas = document.createElement("canvas");
  canvas.width = ratio * width;
  canvas.height = ratio * height;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  context.fillStyle = PAPER.card;
  context.fillRect(0, 0, width, height);
  paint(context, width, height, PAPER);
  saveCanvas(canvas, name);
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
  const link = /** @type {HTMLAnchorElement} */ (
    h("a", { href: url, download: name.replace(/[\\/:*?"<>|]/g, "_") })
  );
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000); // the browser reads it after the click
}
