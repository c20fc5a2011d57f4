/** Colours of canvases: those of the style sheet, or fixed ones for figures on white paper. */

/**
 * @typedef {Object} Palette
 * @property {string} ink
 * @property {string} soft
 * @property {string} line
 * @property {string} card
 * @property {string} mark
 * @property {string} warn
 * @property {string} font
 */

/** @returns {Palette} */
export function screenPalette() {
  const style = getComputedStyle(document.documentElement);
  const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"),
    soft: read("--soft"),
    line: read("--line"),
    card: read("--card"),
    mark: read("--mark"),
    warn: read("--warn"),
    font: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif",
  };
}

/** @type {Palette} */
export const PAPER = {
  ink: "#22262d",
  soft: "#5f6570",
  line: "#dcdcdc",
  card: "#ffffff",
  mark: "#0a776c",
  warn: "#b3541e",
  font: "Helvetica, Arial, sans-serif",
};

/**
 * A canvas that is as sharp as the screen, cleared and ready to draw on in CSS pixels.
 *
 * @param {HTMLCanvasElement} canvas
 */
export function prepare(canvas) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const ratio = devicePixelRatio;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/**
 * Round numbers between two values, about as many as asked for.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} count
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
