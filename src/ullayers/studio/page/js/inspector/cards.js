/** Cards of the watch tab: J, the collapse meter, the scatter and the kernels. */

import { Chart, byTrial, drawObjective, drawRank } from "../charts.js";
import { fill, h, setText } from "../dom.js";
import { short } from "../format.js";
import { Scatter } from "../scatter.js";
import { livePoints, resultsPoints } from "../scatter_data.js";

const COLLAPSED = 0.5; // share of the largest rank below which the output is about to collapse

/** @typedef {import("../store.js").Store} Store */

/** @param {string} title @param {Node|null} value @param {...Node} rest */
function card(title, value, ...rest) {
  return h("section", { class: "card" }, h("header", {}, h("h2", {}, title), value), ...rest);
}

/** J of every trial. */
export class CurveCard {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.value = h("span", { class: "value numeric", testid: "objective" });
    this.note = h("p", { class: "note" });
    this.chart = new Chart(
      "J of every training step; lower is better",
      "curve",
      (context, width, height, palette) =>
        drawObjective(context, store.state.records, width, height, palette, store.stepUnit),
    );
    this.element = card("J, lower is better", this.value, this.chart.canvas, this.note);
  }

  update() {
    const { records } = this.store.state;
    this.element.hidden = !records.length;
    if (!records.length) return;
    const trials = byTrial(records).length;
    const held = records.some((record) => Number.isFinite(record.held_out));
    const notes = [
      trials > 1 ? `${trials} trials; the strong line is the latest.` : "",
      held ? "Dots: frames that are held out." : "",
    ];
    setText(this.value, short(records.at(-1).objective));
    setText(this.note, notes.filter(Boolean).join(" "));
    this.chart.schedule();
  }
}

/** The collapse meter: in how many directions the output varies. */
export class MeterCard {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.value = h("span", { class: "value numeric" });
    this.note = h("p", { class: "note" });
    this.filling = h("span");
    this.meter = h(
      "div",
      { class: "meter", role: "meter", "aria-label": "Collapse meter", testid: "meter" },
      this.filling,
    );
    this.chart = new Chart(
      "Rank of the output over time",
      "rank",
      (context, width, height, palette) =>
        drawRank(context, store.state.records, width, height, palette),
      "chart spark",
    );
    this.element = card("Collapse meter", this.value, this.meter, this.chart.canvas, this.note);
  }

  update() {
    const last = this.store.state.records.at(-1);
    this.element.hidden = !last?.features;
    if (!last?.features) return;
    const share = Math.min(1, Math.max(0, last.rank / last.features));
    const low = share < COLLAPSED;
    setText(this.value, `${short(last.rank)} of ${last.features}`);
    setText(
      this.note,
      low
        ? "The outputs have nearly collapsed: they all vary in the same way."
        : "Independent directions in which the output varies.",
    );
    this.meter.classList.toggle("low", low);
    this.meter.setAttribute("aria-valuemin", "0");
    this.meter.setAttribute("aria-valuemax", String(last.features));
    this.meter.setAttribute("aria-valuenow", short(last.rank));
    this.filling.style.width = `${(100 * share).toFixed(1)}%`;
    this.chart.schedule();
  }
}

/** Path or code of every frame. */
export class ScatterCard {
  /**
   * @param {Store} store
   * @param {import("../session.js").Session} session
   * @param {import("../playhead.js").Playhead} playhead
   */
  constructor(store, session, playhead) {
    this.store = store;
    this.session = session;
    /** @type {[number, number]} */
    this.axes = [0, 1];
    this.title = h("h2", {});
    this.selects = h("div", { class: "axes", hidden: true });
    this.scatter = new Scatter(
      () => this.points(),
      playhead,
      (frame) => {
        playhead.pause();
        playhead.seek(frame);
      },
    );
    this.element = h(
      "section",
      { class: "card" },
      h("header", {}, this.title, this.selects),
      this.scatter.canvas,
      h("p", { class: "note" }, "Each point is a frame. Click one to see it."),
    );
    store.follow(["results", "live", "hidden", "open"], () => this.scatter.refresh());
    store.follow(["arrived"], () => this.scatter.chart.schedule());
    store.follow(["results", "open"], () => this.listAxes());
  }

  /** @returns {import("../scatter_data.js").ScatterModel|null} */
  points() {
    const { results, hidden } = this.store.state;
    if (results) return resultsPoints(results, this.axes, hidden);
    const source = this.store.openSource;
    const code = this.store.openRun ? this.store.openRun.task !== "locate" : false;
    const aspect = source?.width && source.height ? source.height / source.width : 0.75;
    return livePoints(this.session.path, code, aspect);
  }

  update() {
    const run = this.store.openRun;
    this.element.hidden = !this.store.state.results && !this.session.path.size;
    setText(this.title, !run || run.task === "locate" ? "Path" : "Code");
  }

  /** Which numbers of a code are shown against each other. */
  listAxes() {
    const { results } = this.store.state;
    const columns = results?.kind === "codes" ? results.columns : [];
    this.axes = [0, Math.min(1, Math.max(0, columns.length - 1))];
    this.selects.hidden = columns.length < 3;
    fill(this.selects, ...[0, 1].map((axis) => this.axisSelect(axis, columns)));
  }

  /** @param {number} axis @param {string[]} columns */
  axisSelect(axis, columns) {
    const select = /** @type {HTMLSelectElement} */ (
      h(
        "select",
        { class: "quiet-select", "aria-label": axis ? "Upwards" : "Across" },
        ...columns.map((name, place) =>
          h("option", { value: place, selected: place === axis }, name),
        ),
      )
    );
    select.addEventListener("change", () => {
      this.axes[axis] = Number(select.value);
      this.scatter.refresh();
    });
    return select;
  }
}

/** Kernels of the first layer. */
export class KernelCard {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.image = /** @type {HTMLImageElement} */ (
      h("img", { class: "kernels", alt: "Kernels of the first layer", testid: "kernels" })
    );
    this.element = card("Kernels of the first layer", null, this.image);
  }

  update() {
    const kernels = this.store.state.live?.kernels;
    this.element.hidden = !kernels;
    if (kernels && this.image.getAttribute("src") !== kernels) this.image.src = kernels;
  }
}
