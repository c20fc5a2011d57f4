/**
 * A colour and a marker for each object: the same as in the overlay and in the report
 * (output/identity_colours.py), so that an object looks the same everywhere.
 */

/** @typedef {[number, number, number]} Colour */

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

/**
 * @param {number} number Of the object, from 1; codes, which have no object, come as 0.
 * @returns {Colour}
 */
export function identityColour(number) {
  const index = Math.max(0, number - 1);
  const shade = SHADES[Math.floor(index / PALETTE.length) % SHADES.length];
  const target = shade > 0 ? 255 : 0;
  const [red, green, blue] = PALETTE[index % PALETTE.length].map((value) =>
    Math.round(value + Math.abs(shade) * (target - value)),
  );
  return [red, green, blue];
}

/** @param {number} number */
export function identityCss(number) {
  return css(identityColour(number));
}

/** @param {Colour} colour @param {number} [alpha] */
export function css([red, green, blue], alpha = 1) {
  return alpha === 1 ? `rgb(${red} ${green} ${blue})` : `rgb(${red} ${green} ${blue} / ${alpha})`;
}

const LEGIBLE = 3; // contrast of a line with what is behind it

/** @type {Map<string, Colour>} */
const legible = new Map();

/**
 * Colour of an object in charts: its own, mixed with ink until it stands out from the paper.
 *
 * @param {number} number Of the object.
 * @param {import("./palette.js").Palette} palette With colours as #rrggbb.
 * @returns {Colour}
 */
export function chartColour(number, palette) {
  const key = `${number}${palette.card}`;
  const known = legible.get(key);
  if (known) return known;
  const [paper, ink] = [hex(palette.card), hex(palette.ink)];
  const own = identityColour(number);
  let colour = own;
  for (let share = 0.1; contrast(colour, paper) < LEGIBLE && share <= 1; share += 0.1) {
    const mix = (/** @type {number} */ place) =>
      Math.round(own[place] + share * (ink[place] - own[place]));
    colour = [mix(0), mix(1), mix(2)];
  }
  legible.set(key, colour);
  return colour;
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

/** @param {number} number */
export function identityMarker(number) {
  return MARKERS[Math.floor(Math.max(0, number - 1) / PALETTE.length) % MARKERS.length];
}

/**
 * Black or white, whichever is easier to read on a colour.
 *
 * @param {Colour} background
 */
export function textOn(background) {
  return luminance(background) > 0.179 ? "#000" : "#fff";
}

// Early to late, of about equal steps of lightness: legible on white and on the dark theme.
const TIME = [
  [68, 76, 150],
  [47, 118, 160],
  [31, 155, 140],
  [98, 186, 88],
  [214, 196, 60],
];

/**
 * Colour of a point in time.
 *
 * @param {number} share 0 at the first frame, 1 at the last.
 * @returns {Colour}
 */
export function timeColour(share) {
  const place = Math.min(1, Math.max(0, share)) * (TIME.length - 1);
  const index = Math.min(TIME.length - 2, Math.floor(place));
  const rest = place - index;
  const [red, green, blue] = TIME[index].map((value, channel) =>
    Math.round(value + rest * (TIME[index + 1][channel] - value)),
  );
  return [red, green, blue];
}
