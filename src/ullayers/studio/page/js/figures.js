/** Copies of figures as PNG and SVG, on white and in colours that print well. */

import { h } from "./dom.js";
import { PAPER } from "./palette.js";
import { SvgContext } from "./svg_context.js";

/** @typedef {(context: any, width: number, height: number, palette: import("./palette.js").Palette) => void} Paint */

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
