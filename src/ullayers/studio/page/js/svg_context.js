/**
 * A drawing context that writes SVG. It has what the figures use of a canvas, so one function draws
 * a figure on the screen, as PNG and as SVG.
 */

const SVG = "http://www.w3.org/2000/svg";

export class SvgContext {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    this.root = document.createElementNS(SVG, "svg");
    this.set(this.root, { xmlns: SVG, viewBox: `0 0 ${width} ${height}`, width, height });
    /** @type {SVGElement} */
    this.group = this.root;
    /** @type {{group: SVGElement, look: any}[]} */
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
    this.measure = /** @type {CanvasRenderingContext2D} */ (
      document.createElement("canvas").getContext("2d")
    );
  }

  /** @param {Element} node @param {Record<string, string|number>} attributes */
  set(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  }

  /** @param {string} tag @param {Record<string, string|number>} attributes */
  add(tag, attributes) {
    const node = document.createElementNS(SVG, tag);
    this.set(node, attributes);
    if (this.globalAlpha !== 1) node.setAttribute("opacity", String(this.globalAlpha));
    this.group.append(node);
    return node;
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, dash } =
      this;
    const look = {
      fillStyle,
      strokeStyle,
      lineWidth,
      globalAlpha,
      font,
      textAlign,
      textBaseline,
      dash,
    };
    this.stack.push({ group: this.group, look });
  }

  restore() {
    const top = this.stack.pop();
    if (!top) return;
    this.group = top.group;
    Object.assign(this, top.look);
  }

  clip() {
    const id = `clip${(this.clips += 1)}`;
    const clip = document.createElementNS(SVG, "clipPath");
    clip.id = id;
    const shape = document.createElementNS(SVG, "path");
    shape.setAttribute("d", this.path);
    clip.append(shape);
    const group = document.createElementNS(SVG, "g");
    group.setAttribute("clip-path", `url(#${id})`);
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

  closePath() {
    this.path += "Z";
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  rect(x, y, width, height) {
    this.path += `M${number(x)} ${number(y)}h${number(width)}v${number(height)}h${number(-width)}Z`;
  }

  /** A whole circle; no figure needs less. @param {number} x @param {number} y @param {number} radius */
  arc(x, y, radius) {
    const size = `${number(radius)} ${number(radius)} 0 1 0`;
    this.path += `M${number(x - radius)} ${number(y)}a${size} ${number(2 * radius)} 0a${size} ${number(-2 * radius)} 0Z`;
  }

  stroke() {
    const [stroke, opacity] = solid(this.strokeStyle);
    const look = {
      fill: "none",
      stroke,
      "stroke-opacity": opacity,
      "stroke-width": this.lineWidth,
    };
    /** @type {Record<string, string>} */
    const dash = this.dash ? { "stroke-dasharray": this.dash } : {};
    this.add("path", { d: this.path, ...look, ...dash, "stroke-linejoin": "round" });
  }

  fill() {
    const [fill, opacity] = solid(this.fillStyle);
    this.add("path", { d: this.path, fill, "fill-opacity": opacity });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    this.add("rect", {
      x: number(x),
      y: number(y),
      width: number(width),
      height: number(height),
      fill: this.fillStyle,
    });
  }

  /** @param {string} text */
  measureText(text) {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }

  /** @param {string} text @param {number} x @param {number} y */
  fillText(text, x, y) {
    const [, weight, size, family] = /^(\d+ )?([\d.]+)px (.*)$/.exec(this.font) ?? [
      "",
      "",
      "10",
      "sans-serif",
    ];
    /** @type {Record<string, string>} */
    const anchors = { left: "start", center: "middle", right: "end" };
    const node = this.add("text", {
      x: number(x),
      y: number(this.textBaseline === "middle" ? y + 0.35 * Number(size) : y),
      fill: this.fillStyle,
      "font-size": size,
      "font-family": family,
      "font-weight": (weight ?? "").trim() || "400",
      "text-anchor": anchors[this.textAlign] ?? "start",
    });
    node.textContent = text;
  }

  /** @returns {string} */
  toString() {
    return new XMLSerializer().serializeToString(this.root);
  }
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
