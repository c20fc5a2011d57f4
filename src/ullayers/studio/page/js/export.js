/** The tab "Export": tables, video, report and figures. */

import { api } from "./api.js";
import { drawObjective, saveCanvas, saveFigure } from "./charts.js";
import { button, card, field, fill, fillOptions, h, icon, setText } from "./dom.js";
import { fileSize } from "./format.js";
import { drawScatter } from "./scatter.js";
import { drawTimeline } from "./timeline.js";

/** @import {ScatterModel} from "./scatter.js" */
/** @import {Stage} from "./stage.js" */
/** @import {App} from "./store.js" */
/** @import {Timeline} from "./timeline.js" */

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
const FIRST = ["report.html", "overlay.mp4", "tracks.csv", "codes.csv"]; // what most people want

/**
 * @param {App} app
 * @param {Stage} stage
 * @param {Timeline} timeline
 * @param {() => ScatterModel|null} points
 */
export function exportTab(app, stage, timeline, points) {
  const { store } = app;
  const files = h("ul.files", { testid: "files" });
  const asFound = h(
    "p.note",
    { hidden: true, testid: "as-found" },
    "These files are the original results, without corrections. Export writes tables, overlays " +
      "and a report with corrections applied.",
  );
  const figures = figuresCard(app, stage, timeline, points);
  const body = h("div", exportCard(app), figures, card("Files of the run", null, files, asFound));
  const empty = h(
    "div.empty",
    h("h2", "Nothing to export yet"),
    h("p", "Open a finished run to save its tables, video, report and figures."),
  );
  store.follow(["results", "details"], () => {
    const { results, details } = store.state;
    body.hidden = !results;
    empty.hidden = Boolean(results);
    if (!results || !details) return;
    asFound.hidden = !details.corrections.applied.length;
    const rank = (/** @type {string} */ name) =>
      FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length;
    const sorted = details.files.toSorted(
      (a, b) => rank(a.name) - rank(b.name) || a.name.localeCompare(b.name),
    );
    const rows = sorted.map(({ name, bytes }) => {
      const url = api.fileUrl(details.id, name);
      return fileRow(name, bytes, url, `${url}?download=1`);
    });
    fill(files, rows);
  });
  return h("div", empty, body);
}

/** Writing a file in a format. @param {App} app */
function exportCard({ store, session }) {
  const made = h("ul.files", { testid: "exports" });
  const error = h("p.form-error", { role: "alert", hidden: true, testid: "export-error" });
  const format = h("select", { testid: "format" });
  const whole = h("input", { type: "radio", name: "span", value: "all", checked: true });
  const radio = { type: "radio", name: "span", value: "range", testid: "export-range" };
  const part = h("input", radio);
  const partText = h("span");
  const text = h("span", "Export");
  const submit = button(text, null, {
    type: "submit",
    icon: "download",
    class: "primary wide",
    testid: "export",
  });
  const mark = (/** @type {"first"|"last"} */ end, /** @type {string} */ label) =>
    button(label, () => session.mark(end), { class: "plain small", testid: `mark-${end}` });
  const form = h(
    "form.export-form",
    field("Format", format),
    h(
      "fieldset.field",
      h("legend", "Frames"),
      h("div.checks", h("label", whole, h("span", "All")), h("label", part, partText)),
      h("div.marks", mark("first", "Starts here (i)"), mark("last", "Ends here (o)")),
    ),
    error,
    submit,
  );
  const showRange = () => {
    const { range, results } = store.state;
    part.disabled = !range || format.value === "report"; // which has no parts
    if (part.disabled && part.checked) whole.checked = true;
    const none = results ? "Marked range: mark it here, or shift-drag in the time lines" : "";
    setText(partText, range ? `Marked range, ${range[0]}–${range[1]}` : none);
  };
  format.addEventListener("change", showRange);
  store.follow(["range"], showRange);
  store.follow(["results", "details"], () => {
    const { results, details } = store.state;
    if (!results || !details) return fill(made);
    const formats = TRACKS.filter(
      ([name]) =>
        name === "csv" ||
        (results.kind === "tracks" && (name !== "report" || details.kind === "learn")),
    );
    if (format.options.length !== formats.length)
      fillOptions(
        format,
        formats.map(([value, name, reader]) => [value, `${name} (${reader})`]),
      );
    showRange();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { open, sequence, range } = store.state;
    error.hidden = true;
    submit.disabled = true;
    setText(text, "Exporting …");
    try {
      const span = part.checked && range ? { first: range[0], last: range[1] } : {};
      const body = { format: format.value, sequence, ...span };
      const { files } = await api.export(/** @type {string} */ (open.id), body);
      for (const { name, bytes, url } of files.toReversed())
        made.prepend(fileRow(name, bytes, url, url));
    } catch (failure) {
      error.hidden = false;
      error.textContent = /** @type {Error} */ (failure).message;
    } finally {
      submit.disabled = false;
      setText(text, "Export");
    }
  });
  return card("Export", null, form, made);
}

/** @param {string} name @param {number} bytes @param {string} open @param {string} download */
function fileRow(name, bytes, open, download) {
  const viewable = /\.(html|mp4|jsonl?|md|csv|txt)$/.test(name);
  const label = `Download ${name}`;
  const props = { class: "quiet square tiny", href: download, download: name };
  return h(
    "li",
    icon("file"),
    viewable
      ? h("a", { href: open, target: "_blank", rel: "noopener" }, name)
      : h("span.file-name", name),
    h("span.soft.numeric", fileSize(bytes)),
    h("a", { ...props, "aria-label": label, title: label }, icon("download")),
  );
}

/**
 * Copies of what the page shows.
 *
 * @param {App} app
 * @param {Stage} stage
 * @param {Timeline} timeline
 * @param {() => ScatterModel|null} points
 */
function figuresCard({ store }, stage, timeline, points) {
  const nameOf = (/** @type {string} */ figure) => `${store.openRun?.name ?? "figure"} ${figure}`;
  /**
   * @param {string} label
   * @param {string} id
   * @param {(kind: "png"|"svg") => void} save
   * @param {("png"|"svg")[]} [kinds]
   */
  const row = (label, id, save, kinds = ["png", "svg"]) => {
    const buttons = kinds.map((kind) =>
      button(kind.toUpperCase(), () => save(kind), {
        class: "plain small",
        testid: `${id}-${kind}`,
        "aria-label": `${label} as ${kind.toUpperCase()}`,
      }),
    );
    const group = h("span.group", buttons);
    return h("div.figure-row", h("span", label), group);
  };
  const lines = row("Time lines, as shown", "figure-timeline", (kind) => {
    const { model } = timeline;
    if (!model) return;
    const objects = model.results.objects.map(({ object }) => object);
    const shown = objects.filter((object) => !model.hidden.includes(object));
    const plain = { ...model, picked: [], range: null };
    saveFigure(kind, nameOf("time lines"), 900, 420, (sheet) => drawTimeline(sheet, plain), shown);
  });
  const scatter = row("Scatter", "figure-scatter", (kind) => {
    const model = points();
    if (!model) return;
    const objects = model.series.map(({ object }) => object);
    saveFigure(kind, nameOf("scatter"), 520, 520, (sheet) => drawScatter(sheet, model), objects);
  });
  const curve = row("Learning curve", "figure-curve", (kind) =>
    saveFigure(kind, nameOf("learning curve"), 640, 360, (sheet) =>
      drawObjective(sheet, store.state.records, store.stepUnit),
    ),
  );
  const frame = row("This frame", "figure-frame", saveFrame, ["png"]);
  function saveFrame() {
    const canvas = stage.main.snapshot();
    if (canvas) saveCanvas(canvas, nameOf(`frame ${stage.main.shown}`));
  }
  store.follow(["records"], () => (curve.hidden = !store.state.records.length));
  return card("Figures", null, lines, scatter, curve, frame);
}
