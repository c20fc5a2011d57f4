/** Watching a run: where it stands, J, the collapse meter, kernels and the scatter; and its verdict. */

import { api } from "../api.js";
import { Chart, byTrial, drawObjective, drawRank } from "../charts.js";
import { fill, h, icon, setText } from "../dom.js";
import { counted, duration, percent, short, whole } from "../format.js";
import { runSentence, stageSentence } from "../library.js";
import { sayError } from "../notices.js";
import { Scatter } from "../scatter.js";
import { livePoints, resultsPoints } from "../scatter_data.js";
import { isAtWork } from "../store.js";

const COLLAPSED = 0.5; // share of the largest rank below which the output is about to collapse
const STEPS = [["reading", "Read"], ["training", "Learn"], ["applying", "Apply"], ["report", "Report"]];

export class WatchTab {
  /**
   * @param {import("../store.js").Store} store
   * @param {import("../session.js").Session} session
   * @param {import("../playhead.js").Playhead} playhead
   * @param {HTMLElement} form Shown for a video that is open.
   */
  constructor(store, session, playhead, form) {
    this.store = store;
    this.session = session;
    this.form = form;
    /** @type {[number, number]} */
    this.axes = [0, 1];
    this.status = h("section", { class: "card status", testid: "status" });
    this.buildCharts(playhead);
    this.empty = h("div", { class: "empty" }, h("h2", {}, "Nothing is open"), h("p", {}, "Open a video to learn from it, or a run to look at what it found."));
    this.element = h("div", {}, this.empty, this.form, this.status, this.curveCard, this.meterCard, this.scatterCard, this.kernelCard);
    store.follow(["open", "runs", "sources", "details", "results", "live", "records"], () => this.update());
    store.follow(["results", "live", "hidden", "open"], () => this.scatter.refresh());
    store.follow(["results", "open"], () => this.listAxes());
  }

  /** @param {import("../playhead.js").Playhead} playhead */
  buildCharts(playhead) {
    const { store } = this;
    this.curve = new Chart("J of every training step; lower is better", "curve", (context, width, height, palette) =>
      drawObjective(context, store.state.records, width, height, palette));
    this.curveNote = h("p", { class: "note" });
    this.curveValue = h("span", { class: "value numeric", testid: "objective" });
    this.curveCard = card("J, lower is better", this.curveValue, this.curve.canvas, this.curveNote);
    this.rank = new Chart("Rank of the output over time", "rank", (context, width, height, palette) =>
      drawRank(context, store.state.records, width, height, palette), "chart spark");
    this.meter = h("div", { class: "meter", role: "meter", "aria-label": "Collapse meter", testid: "meter" }, h("span"));
    this.meterValue = h("span", { class: "value numeric" });
    this.meterNote = h("p", { class: "note" });
    this.meterCard = card("Collapse meter", this.meterValue, this.meter, this.rank.canvas, this.meterNote);
    this.scatter = new Scatter(() => this.points(), playhead, (frame) => {
      playhead.pause();
      playhead.seek(frame);
    });
    this.axisSelects = h("div", { class: "axes", hidden: true });
    this.scatterTitle = h("h3", {});
    this.scatterNote = h("p", { class: "note" }, "Each point is a frame. Click one to see it.");
    this.scatterCard = h("section", { class: "card" }, h("header", {}, this.scatterTitle, this.axisSelects), this.scatter.canvas, this.scatterNote);
    this.kernels = /** @type {HTMLImageElement} */ (h("img", { class: "kernels", alt: "Kernels of the first layer", testid: "kernels" }));
    this.kernelCard = card("Kernels of the first layer", null, this.kernels);
  }

  points() {
    const { results, hidden } = this.store.state;
    if (results) return resultsPoints(results, this.axes, hidden);
    const source = this.store.openSource;
    const code = this.store.openRun ? this.store.openRun.task !== "locate" : false;
    return livePoints(this.session.path, code, source?.width && source.height ? source.height / source.width : 0.75);
  }

  update() {
    const { open, records, live } = this.store.state;
    const run = this.store.openRun;
    const shown = open.kind === "run" || open.kind === "camera";
    this.empty.hidden = open.kind !== "none";
    this.form.hidden = open.kind !== "source" || Boolean(this.store.openSource?.error);
    this.status.hidden = !shown && !this.store.openSource?.error;
    this.curveCard.hidden = !shown || !records.length;
    this.meterCard.hidden = !shown || !records.at(-1)?.features;
    this.kernelCard.hidden = !shown || !live?.kernels;
    if (live?.kernels && this.kernels.getAttribute("src") !== live.kernels) this.kernels.src = live.kernels;
    if (run) this.showRun(run);
    else if (open.kind === "camera") this.showCamera();
    else if (open.kind === "source" && this.store.openSource?.error) this.showProblem(this.store.openSource.error);
    this.showRecords();
    const hasPoints = shown && Boolean(this.store.state.results || this.session.path.size);
    this.scatterCard.hidden = !hasPoints;
    setText(this.scatterTitle, !run || run.task === "locate" ? "Path" : "Code");
  }

  /**
   * Buttons are made once for each state of a run: one that was replaced while it is pressed would
   * miss the click. Only the facts below them change all the time.
   *
   * @param {import("../store.js").Run} run
   */
  showRun(run) {
    const { details, results } = this.store.state;
    const key = [run.id, run.state, run.error, run.trusted, details?.summary?.frames, results?.tracks.length, results?.unsure.length].join();
    if (this.shownRun !== key) {
      this.shownRun = key;
      this.facts = h("div", {});
      if (isAtWork(run)) fill(this.status, ...this.working(run), this.facts);
      else if (run.state === "done") fill(this.status, ...this.verdict(run));
      else fill(this.status, ...this.ended(run));
    }
    if (isAtWork(run)) this.showProgress(run);
  }

  /** @param {import("../store.js").Run} run */
  working(run) {
    const stop = h("button", { type: "button", class: "plain small", testid: "stop", disabled: run.state === "stopping", onclick: () => api.stopRun(run.id).catch(sayError) }, icon("stop"), "Stop");
    this.stageTitle = h("h3", {});
    return [h("header", {}, this.stageTitle, run.opened ? null : stop)];
  }

  /** @param {import("../store.js").Run} run */
  showProgress(run) {
    const { live, runs } = this.store.state;
    const waiting = run.state === "queued";
    setText(this.stageTitle, waiting ? "Waiting" : stageSentence(run));
    if (waiting) {
      const ahead = runs.filter((other) => other.state === "running" || (other.state === "queued" && other.created < run.created)).length;
      fill(this.facts, h("p", { class: "note" }, ahead ? `It starts after ${counted(ahead, "other run")}.` : "It starts in a moment."));
      return;
    }
    const trial = run.stage === "training" ? live?.trial : null;
    const bar = h("div", { class: "progress", role: "progressbar", "aria-label": "Progress" }, h("span"));
    if (run.total) {
      bar.setAttribute("aria-valuenow", String(Math.round((100 * run.done) / run.total)));
      /** @type {HTMLElement} */ (bar.firstChild).style.width = `${(100 * Math.min(1, run.done / run.total)).toFixed(1)}%`;
    } else bar.classList.add("unknown");
    fill(
      this.facts,
      stepper(run.stage),
      bar,
      facts([
        [run.stage === "training" && run.kind === "learn" ? "Steps" : "Frames", run.total ? `${whole(run.done)} / ${whole(run.total)}` : whole(run.done)],
        ["Rate", run.rate ? `${short(run.rate)} /s` : "–"],
        ["Time left", duration(run.left)],
        trial ? ["Trial", `${trial.number} of ${trial.of}`] : null,
      ]),
    );
  }

  /** @param {import("../store.js").Run} run */
  verdict(run) {
    const { details, results } = this.store.state;
    const summary = details?.summary ?? {};
    const good = run.trusted !== false;
    return [
      h("header", {}, h("h3", { class: good ? "good" : "doubtful" }, icon(good ? "check" : "warning"), good ? "Finished" : "Finished, but look twice")),
      ...(run.reasons ?? []).map((reason) => h("p", { class: "note" }, reason)),
      facts([
        ["Frames", summary.frames === undefined ? "–" : whole(summary.frames)],
        results?.kind === "tracks" ? ["Objects", whole(results.tracks.length)] : null,
        run.found === null ? null : ["Found in", percent(run.found)],
        results?.kind === "tracks" ? ["Uncertain", counted(results.unsure.length, "stretch", "stretches")] : null,
        Number.isFinite(summary.objective) ? ["J", short(summary.objective)] : null,
        Number.isFinite(summary.held_out_objective) ? ["J, held out", short(summary.held_out_objective)] : null,
      ]),
      this.changes(run),
    ];
  }

  /** How much a run that learned from corrections changed. @param {import("../store.js").Run} run */
  changes(run) {
    const parent = this.store.state.runs.find((entry) => entry.id === run.parent);
    if (!parent) return null;
    const text = h("p", { class: "note", testid: "changes" }, "Comparing …");
    this.sentences ??= new Map();
    this.sentences.set(run.id, this.sentences.get(run.id) ?? api.changes(run.id, parent.id).then((answer) => answer.sentence));
    this.sentences.get(run.id).then(
      (/** @type {string} */ sentence) => setText(text, sentence),
      (/** @type {Error} */ error) => {
        this.sentences?.delete(run.id);
        setText(text, error.message);
      },
    );
    return h("div", { class: "changes" }, h("h4", {}, `Learned from corrections of ${parent.name}`), text,
      h("button", { type: "button", class: "plain small", onclick: () => this.session.compare(parent.id), testid: "compare-parent" }, icon("compare"), "Compare side by side"));
  }

  /** @param {import("../store.js").Run} run */
  ended(run) {
    const text = { failed: run.error ?? "It failed.", stopped: "It was stopped and can go on where it was.", interrupted: "The computer or the program stopped in the middle; it can go on where it was." };
    return [
      h("header", {}, h("h3", { class: run.state === "failed" ? "bad" : "" }, icon(run.state === "failed" ? "warning" : "pause"), runSentence(run))),
      h("p", { class: "note", testid: "run-error" }, text[run.state] ?? ""),
      run.opened ? null : h("div", { class: "buttons" }, h("button", { type: "button", class: "primary small", testid: "resume", onclick: () => api.resumeRun(run.id).catch(sayError) }, icon("resume"), run.state === "failed" ? "Try again" : "Continue")),
    ];
  }

  /** @param {string} text */
  showProblem(text) {
    this.shownRun = "";
    fill(this.status, h("p", { class: "form-error" }, text));
  }

  showCamera() {
    const { live } = this.store.state;
    this.shownRun = "";
    fill(this.status, h("header", {}, h("h3", {}, "Learning from the camera")), h("p", { class: "note" }, "Move something in front of the camera. Stop keeps the recording and what was learned."),
      live ? facts([["Frames", whole(live.done ?? 0)], ["Rate", `${short(live.rate)} /s`]]) : null);
  }

  showRecords() {
    const { records } = this.store.state;
    const last = records.at(-1);
    if (!last) return;
    setText(this.curveValue, short(last.objective));
    const trials = byTrial(records).length;
    const held = records.some((record) => Number.isFinite(record.held_out));
    setText(this.curveNote, [trials > 1 ? `${trials} trials; the strong line is the latest.` : "", held ? "Dots: frames that are held out." : ""].filter(Boolean).join(" "));
    const share = last.features ? last.rank / last.features : 0;
    const low = share < COLLAPSED;
    setText(this.meterValue, `${short(last.rank)} of ${last.features}`);
    setText(this.meterNote, low ? "The outputs have nearly collapsed: they all vary in the same way." : "Independent directions in which the output varies.");
    this.meter.classList.toggle("low", low);
    this.meter.setAttribute("aria-valuemin", "0");
    this.meter.setAttribute("aria-valuemax", String(last.features));
    this.meter.setAttribute("aria-valuenow", short(last.rank));
    /** @type {HTMLElement} */ (this.meter.firstChild).style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
    this.curve.schedule();
    this.rank.schedule();
  }

  /** Which numbers of a code are shown against each other. */
  listAxes() {
    const { results } = this.store.state;
    const columns = results?.kind === "codes" ? results.columns : [];
    this.axes = [0, Math.min(1, Math.max(0, columns.length - 1))];
    this.axisSelects.hidden = columns.length < 3;
    fill(this.axisSelects, ...(columns.length < 3 ? [] : [0, 1].map((axis) => {
      const select = /** @type {HTMLSelectElement} */ (h("select", { class: "quiet-select", "aria-label": axis ? "Upwards" : "Across" }, ...columns.map((name, place) => h("option", { value: place, selected: place === axis }, name))));
      select.addEventListener("change", () => {
        this.axes[axis] = Number(select.value);
        this.scatter.refresh();
      });
      return select;
    })));
  }
}

/** @param {string} title @param {Node|null} value @param {...Node} rest */
function card(title, value, ...rest) {
  return h("section", { class: "card" }, h("header", {}, h("h3", {}, title), value), ...rest);
}

/** @param {([string, string]|null|false)[]} entries */
function facts(entries) {
  const rows = /** @type {[string, string][]} */ (entries.filter(Boolean));
  return h("dl", { class: "facts" }, ...rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", { class: "numeric" }, value))));
}

/** @param {string|null} stage */
function stepper(stage) {
  const now = STEPS.findIndex(([name]) => name === stage);
  return h("ol", { class: "stepper" }, ...STEPS.map(([, label], place) =>
    h("li", { class: place < now ? "past" : place === now ? "now" : "", "aria-current": place === now ? "step" : false }, label)));
}
