/** The tab for exports: tables, video, report and figures. */

import { api } from "../api.js";
import { drawObjective } from "../charts.js";
import { fill, h, icon, setText } from "../dom.js";
import { saveCanvas, savePng, saveSvg, withLegend } from "../figures.js";
import { fileSize } from "../format.js";
import { drawScatter } from "../scatter.js";
import { drawTimeline } from "../timeline_draw.js";

/** @type {[string, string, string][]} Formats, their names, and what reads them. */
const TRACKS = [
  ["csv", "CSV", "spreadsheets, pandas, R"],
  ["overlay", "Overlay video", "any player"],
  ["report", "Report", "HTML, of all frames"],
  ["movement", "movement", "netCDF"],
  ["sleap", "SLEAP", ".slp"],
  ["dlc", "DeepLabCut", "CSV"],
  ["mot", "MOT Challenge", "text"],
  ["coco", "COCO", "JSON with outlines"],
  ["nwb", "NWB", "Neurodata Without Borders"],
  ["napari", "napari", "tracks layer"],
  ["parquet", "Parquet", "Arrow, DuckDB"],
];
/** @type {[string, string, string][]} */
const CODES = [["csv", "CSV", "spreadsheets, pandas, R"]];
const FIRST = ["report.html", "overlay.mp4", "tracks.csv", "codes.csv"]; // files that most people want

export class ExportTab {
  /**
   * @param {import("../store.js").Store} store
   * @param {import("../stage.js").Stage} stage
   * @param {import("../timeline.js").Timeline} timeline
   * @param {() => import("../scatter_data.js").ScatterModel|null} points
   * @param {(end: "first"|"last") => void} mark Marks one end of a range at the playhead.
   */
  constructor(store, stage, timeline, points, mark) {
    this.store = store;
    this.stage = stage;
    this.timeline = timeline;
    this.points = points;
    this.mark = mark;
    this.files = h("ul", { class: "files", testid: "files" });
    this.asFound = h(
      "p",
      { class: "note", hidden: true, testid: "as-found" },
      "These files are the original results, without corrections. Export writes tables, overlays " +
        "and a report with corrections applied.",
    );
    this.made = h("ul", { class: "files", testid: "exports" });
    this.error = h("p", {
      class: "form-error",
      role: "alert",
      hidden: true,
      testid: "export-error",
    });
    this.format = /** @type {HTMLSelectElement} */ (h("select", { testid: "format" }));
    this.format.addEventListener("change", () => this.showRange());
    this.whole = /** @type {HTMLInputElement} */ (
      h("input", { type: "radio", name: "span", value: "all", checked: true })
    );
    this.part = /** @type {HTMLInputElement} */ (
      h("input", { type: "radio", name: "span", value: "range", testid: "export-range" })
    );
    this.partText = h("span", {});
    this.buttonText = h("span", {}, "Export");
    this.button = /** @type {HTMLButtonElement} */ (
      h(
        "button",
        { type: "submit", class: "primary wide", testid: "export" },
        icon("download"),
        this.buttonText,
      )
    );
    this.empty = h(
      "div",
      { class: "empty" },
      h("h2", {}, "Nothing to export yet"),
      h("p", {}, "Open a finished run to save its tables, video, report and figures."),
    );
    this.curveRow = this.figureRow("Learning curve", "figure-curve", (kind) =>
      this.saveCurve(kind),
    );
    this.body = h(
      "div",
      {},
      this.exportCard(),
      this.figuresCard(),
      h(
        "section",
        { class: "card" },
        h("header", {}, h("h2", {}, "Files of the run")),
        this.files,
        this.asFound,
      ),
    );
    this.element = h("div", {}, this.empty, this.body);
    store.follow(["results", "details"], () => this.update());
    store.follow(["range"], () => this.showRange());
  }

  exportCard() {
    const form = h(
      "form",
      { class: "export-form" },
      h("label", { class: "field" }, h("span", {}, "Format"), this.format),
      h(
        "fieldset",
        { class: "field" },
        h("legend", {}, "Frames"),
        h(
          "div",
          { class: "checks" },
          h("label", {}, this.whole, h("span", {}, "All")),
          h("label", {}, this.part, this.partText),
        ),
        h(
          "div",
          { class: "marks" },
          this.markButton("first", "Starts here (i)"),
          this.markButton("last", "Ends here (o)"),
        ),
      ),
      this.error,
      this.button,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.export();
    });
    return h("section", { class: "card" }, h("header", {}, h("h2", {}, "Export")), form, this.made);
  }

  /** @param {"first"|"last"} end @param {string} label */
  markButton(end, label) {
    const onclick = () => this.mark(end);
    return h(
      "button",
      { type: "button", class: "plain small", onclick, testid: `mark-${end}` },
      label,
    );
  }

  /**
   * @param {string} label
   * @param {string} id
   * @param {(kind: "png"|"svg") => void} save
   * @param {boolean} [svg] Whether it can be drawn with lines.
   */
  figureRow(label, id, save, svg = true) {
    const button = (/** @type {"png"|"svg"} */ kind) =>
      h(
        "button",
        {
          type: "button",
          class: "plain small",
          onclick: () => save(kind),
          testid: `${id}-${kind}`,
          "aria-label": `${label} as ${kind.toUpperCase()}`,
        },
        kind.toUpperCase(),
      );
    return h(
      "div",
      { class: "figure-row" },
      h("span", {}, label),
      h("span", { class: "group" }, button("png"), svg ? button("svg") : null),
    );
  }

  figuresCard() {
    return h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Figures")),
      this.figureRow("Time lines, as shown", "figure-timeline", (kind) => this.saveTimeline(kind)),
      this.figureRow("Scatter", "figure-scatter", (kind) => this.saveScatter(kind)),
      this.curveRow,
      this.figureRow("This frame", "figure-frame", () => this.saveFrame(), false),
    );
  }

  /** Beginning of the names of files. */
  get stem() {
    return this.store.openRun?.name ?? "figure";
  }

  /** @param {"png"|"svg"} kind */
  saveTimeline(kind) {
    const { model } = this.timeline;
    const save = kind === "png" ? savePng : saveSvg;
    if (!model) return;
    const objects = model.results.objects.map(({ object }) => object);
    const figure = withLegend(
      (context, width, height, palette) =>
        drawTimeline(context, { ...model, picked: [], range: null }, width, height, palette),
      objects.filter((object) => !model.hidden.includes(object)),
      900,
      420,
    );
    save(figure.paint, 900, figure.height, `${this.stem} time lines`);
  }

  /** @param {"png"|"svg"} kind */
  saveScatter(kind) {
    const model = this.points();
    const save = kind === "png" ? savePng : saveSvg;
    if (!model) return;
    const figure = withLegend(
      (context, width, height, palette) => drawScatter(context, model, width, height, palette),
      model.series.map(({ object }) => object),
      520,
      520,
    );
    save(figure.paint, 520, figure.height, `${this.stem} scatter`);
  }

  /** @param {"png"|"svg"} kind */
  saveCurve(kind) {
    const { records } = this.store.state;
    const save = kind === "png" ? savePng : saveSvg;
    save(
      (context, width, height, palette) =>
        drawObjective(context, records, width, height, palette, this.store.stepUnit),
      640,
      360,
      `${this.stem} learning curve`,
    );
  }

  saveFrame() {
    const canvas = this.stage.main.snapshot();
    if (canvas) saveCanvas(canvas, `${this.stem} frame ${this.stage.main.shown}`);
  }

  update() {
    const { results, details } = this.store.state;
    this.body.hidden = !results;
    this.empty.hidden = Boolean(results);
    if (!results || !details) {
      fill(this.made);
      return;
    }
    this.asFound.hidden = !details.corrections.applied.length;
    this.curveRow.hidden = !this.store.state.records.length;
    const tracks =
      details.kind === "learn" ? TRACKS : TRACKS.filter(([format]) => format !== "report");
    const formats = results.kind === "tracks" ? tracks : CODES;
    if (this.format.options.length !== formats.length) {
      fill(
        this.format,
        ...formats.map(([value, name, text]) => h("option", { value }, `${name} (${text})`)),
      );
    }
    const rank = (/** @type {string} */ name) =>
      FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length;
    const files = [...details.files].sort(
      (a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name),
    );
    fill(
      this.files,
      ...files.map((file) =>
        this.fileRow(
          file.name,
          file.bytes,
          api.fileUrl(details.id, file.name),
          api.fileUrl(details.id, file.name, true),
        ),
      ),
    );
    this.showRange();
  }

  showRange() {
    const { range, results } = this.store.state;
    const whole = this.format.value === "report"; // which has no parts
    this.part.disabled = !range || whole;
    if (this.part.disabled && this.part.checked) this.whole.checked = true;
    fill(
      this.partText,
      range
        ? `Marked range, ${range[0]}–${range[1]}`
        : results
          ? "Marked range: mark it here, or shift-drag in the time lines"
          : "",
    );
  }

  /** @param {string} name @param {number} bytes @param {string} open @param {string} download */
  fileRow(name, bytes, open, download) {
    const viewable = /\.(html|mp4|jsonl?|md|csv|txt)$/.test(name);
    return h(
      "li",
      {},
      icon("file"),
      viewable
        ? h("a", { href: open, target: "_blank", rel: "noopener" }, name)
        : h("span", { class: "file-name" }, name),
      h("span", { class: "soft numeric" }, fileSize(bytes)),
      h(
        "a",
        {
          class: "quiet square tiny",
          href: download,
          download: name,
          "aria-label": `Download ${name}`,
          title: `Download ${name}`,
        },
        icon("download"),
      ),
    );
  }

  async export() {
    const { open, sequence, range } = this.store.state;
    const format = this.format.value;
    this.error.hidden = true;
    this.button.disabled = true;
    setText(this.buttonText, "Exporting …");
    try {
      const span = this.part.checked && range ? { first: range[0], last: range[1] } : {};
      const { files } = await api.export(/** @type {string} */ (open.id), {
        format,
        sequence,
        ...span,
      });
      this.made.prepend(
        ...files.map((/** @type {{name: string, bytes: number, url: string}} */ file) =>
          this.fileRow(file.name, file.bytes, file.url, file.url),
        ),
      );
    } catch (error) {
      this.error.hidden = false;
      this.error.textContent = /** @type {Error} */ (error).message;
    } finally {
      this.button.disabled = false;
      setText(this.buttonText, "Export");
    }
  }
}
