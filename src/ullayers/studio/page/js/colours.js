/**
 * Colours of canvases, and a colour and a marker for each object: the same as in the overlay and in
 * the report (tracks/masks.py), so that an object looks the same everywhere.
 */

/** @typedef {[number, number, number]} Colour */
/** @typedef {Record<"ink"|"soft"|"line"|"card"|"mark"|"warn"|"font", string>} Palette */

/** @type {Colour[]} */
const PALETTE = [
  [255, 120, 14], // orange
  [100, 217, 255], // sky blue
  [148, 18, 152], // purple
  [218, 218, 96], // yellow
  [17, 60, 231], // blue
  [6, 151, 158], // teal
  [193, 10, 0], // red
  [205, 112, 255], // violet
];
const MARKERS = /** @type {const} */ (["circle", "square", "triangle", "diamond"]);
const SHADES = [0, 0.45, -0.4, 0.2]; // of each turn: towards white, or black if negative
const LEGIBLE = 3; // contrast of a line with what is behind it

/** @type {Colour[]} Early to late, of about equal steps of lightness: legible in both themes. */
const TIME = [
  [68, 76, 150],
  [47, 118, 160],
  [31, 155, 140],
  [98, 186, 88],
  [214, 196, 60],
];

/** @type {Palette} Of figures on white paper. */
export const PAPER = {
  ink: "#22262d",
  soft: "#5f6570",
  line: "#dcdcdc",
  card: "#ffffff",
  mark: "#0a776c",
  warn: "#b3541e",
  font: "Helvetica, Arial, sans-serif",
};

/** The colours of the style sheet, which has them as light-dark(#..., #...). @returns {Palette} */
export function screenPalette() {
  const style = getComputedStyle(document.documentElement);
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const scheme = style.colorScheme === "light dark" ? system : style.colorScheme;
  const read = (/** @type {string} */ name) =>
    style
      .getPropertyValue(name)
      .match(/#\w+/g)
      ?.at(scheme === "dark" ? 1 : 0) ?? "";
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

/** @param {Colour} colour @param {number} [alpha] */
export function css([red, green, blue], alpha = 1) {
  return alpha === 1 ? `rgb(${red} ${green} ${blue})` : `rgb(${red} ${green} ${blue} / ${alpha})`;
}

/** @param {Colour} from @param {Colour} to @param {number} share @returns {Colour} */
function mixed(from, to, share) {
  const mix = (/** @type {0|1|2} */ i) => Math.round(from[i] + share * (to[i] - from[i]));
  return [mix(0), mix(1), mix(2)];
}

/** @param {number} number Of the object, from 1; codes, which have no object, come as 0. */
export function identityColour(number) {
  const index = Math.max(0, number - 1);
  const shade = SHADES[Math.floor(index / PALETTE.length) % SHADES.length];
  const target = shade > 0 ? 255 : 0;
  return mixed(PALETTE[index % PALETTE.length], [target, target, target], Math.abs(shade));
}

/** @param {number} number Of the object. */
export function identityMarker(number) {
  return MARKERS[Math.floor(Math.max(0, number - 1) / PALETTE.length) % MARKERS.length];
}

/** Colour of a point in time. @param {number} share 0 at the first frame, 1 at the last. */
export function timeColour(share) {
  const place = Math.min(1, Math.max(0, share)) * (TIME.length - 1);
  const index = Math.min(TIME.length - 2, Math.floor(place));
  return mixed(TIME[index], TIME[index + 1], place - index);
}

/** @type {Map<string, Colour>} */
const legible = new Map();

/**
 * Colour of an object in charts: its own, mixed with ink until it stands out from the paper.
 *
 * @param {number} number Of the object.
 * @param {Palette} palette With colours as #rrggbb.
 * @returns {Colour}
 */
export function chartColour(number, palette) {
  const key = `${number}${palette.card}`;
  const known = legible.get(key);
  if (known) return known;
  const [paper, ink] = [hex(palette.card), hex(palette.ink)];
  const own = identityColour(number);
  let colour = own;
  for (let share = 0.1; contrast(colour, paper) < LEGIBLE && share <= 1; share += 0.1)
    colour = mixed(own, ink, share);
  legible.set(key, colour);
  return colour;
}

/** Black or white, whichever is easier to read on a colour. @param {Colour} background */
export function textOn(background) {
  return luminance(background) > 0.179 ? "#000" : "#fff";
}

/** @param {string} text @returns {Colour} */
function hex(text) {
  const value = parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** Relative luminance, from 0 to 1. @param {Colour} colour */
function luminance(colour) {
  const [red, green, blue] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** @param {Colour} one @param {Colour} other */
function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
