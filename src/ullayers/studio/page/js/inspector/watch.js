/** Watching a run: where it stands and its verdict, above the cards of what it learns. */

import { api } from "../api.js";
import { fill, h, icon, setText } from "../dom.js";
import { counted, duration, percent, short, whole } from "../format.js";
import { runSentence, stageSentence } from "../library.js";
import { sayError } from "../notices.js";
import { isAtWork } from "../store.js";
import { CurveCard, KernelCard, MeterCard, ScatterCard } from "./cards.js";

/** @typedef {import("../store.js").Run} Run */

/** @type {[string, string][]} */
const STEPS = [
  ["reading", "Read"],
  ["training", "Learn"],
  ["applying", "Apply"],
  ["report", "Report"],
];

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
    this.status = h("section", { class: "card status", testid: "status" });
    this.shownStatus = ""; // what its buttons were made for
    this.stage = h("h2", {});
    this.facts = h("div", {});
    /** @type {Map<string, Promise<string>>} How much runs changed, by their ids. */
    this.sentences = new Map();
    this.scatter = new ScatterCard(store, session, playhead);
    this.cards = [new CurveCard(store), new MeterCard(store), this.scatter, new KernelCard(store)];
    this.empty = h(
      "div",
      { class: "empty" },
      h("h2", {}, "Nothing is open"),
      h("p", {}, "Open a video to learn from it, or a run to inspect its results."),
    );
    const cards = this.cards.map((card) => card.element);
    this.element = h("div", {}, this.empty, this.form, this.status, ...cards);
    store.follow(["open", "runs", "sources", "details", "results", "live", "records"], () =>
      this.update(),
    );
  }

  update() {
    const { open } = this.store.state;
    const run = this.store.openRun;
    const source = open.kind === "source" ? this.store.openSource : null;
    this.empty.hidden = open.kind !== "none";
    this.form.hidden = !source || Boolean(source.error);
    this.status.hidden = open.kind === "none" || (open.kind === "source" && !source?.error);
    if (run) this.showRun(run);
    else if (open.kind === "camera") this.showCamera();
    else if (source?.error) this.show([h("p", { class: "form-error" }, source.error)]);
    for (const card of this.cards) card.update();
  }

  /** @param {(Node|null)[]} content */
  show(content) {
    this.shownStatus = "";
    fill(this.status, ...content);
  }

  /**
   * Buttons are made once for each state of a run: one that was replaced while it is pressed would
   * miss the click. Only the facts below them change all the time.
   *
   * @param {Run} run
   */
  showRun(run) {
    const { details, results } = this.store.state;
    const found = [results?.objects.length, results?.unsure.length, details?.summary?.frames];
    const key = [run.id, run.state, run.error, run.trusted, ...found].join();
    if (this.shownStatus !== key) {
      if (isAtWork(run)) this.show([this.workingHeader(run), this.facts]);
      else this.show(run.state === "done" ? this.verdict(run) : ended(run));
      this.shownStatus = key;
    }
    if (isAtWork(run)) this.showProgress(run);
  }

  /** @param {Run} run */
  workingHeader(run) {
    const stop = h(
      "button",
      {
        type: "button",
        class: "plain small",
        testid: "stop",
        disabled: run.state === "stopping",
        onclick: () => api.stopRun(run.id).catch(sayError),
      },
      icon("stop"),
      "Stop",
    );
    return h("header", {}, this.stage, run.opened ? null : stop);
  }

  /** @param {Run} run */
  showProgress(run) {
    if (run.state === "queued") {
      const before = (/** @type {Run} */ other) =>
        other.state === "running" || (other.state === "queued" && other.created < run.created);
      const ahead = this.store.state.runs.filter(before).length;
      const text = ahead
        ? `It starts after ${counted(ahead, "other run")}.`
        : "It starts in a moment.";
      setText(this.stage, "Waiting");
      fill(this.facts, h("p", { class: "note" }, text));
      return;
    }
    const steps = run.stage === "training" && run.kind === "learn";
    const trial = steps ? this.store.state.live?.trial : null;
    setText(this.stage, stageSentence(run));
    fill(
      this.facts,
      run.kind === "learn" ? stepper(run.stage) : null,
      progressBar(run),
      facts([
        [
          steps ? "Steps" : "Frames",
          [run.done, run.total]
            .filter((n) => n !== null)
            .map(Number)
            .map(whole)
            .join(" / "),
        ],
        ["Rate", run.rate ? `${short(run.rate)} /s` : "–"],
        ["Time left", duration(run.left)],
        trial
          ? [
              "Trial",
              trial.best === true ? `${trial.number}, the best` : `${trial.number} of ${trial.of}`,
            ]
          : null,
      ]),
    );
  }

  /** @param {Run} run */
  verdict(run) {
    const { details, results } = this.store.state;
    const { frames, objective, held_out_objective: heldOut } = details?.summary ?? {};
    const good = run.trusted !== false;
    const tracks = results?.kind === "tracks" ? results : null;
    return [
      h(
        "header",
        {},
        h(
          "h2",
          { class: good ? "good" : "doubtful" },
          icon(good ? "check" : "warning"),
          good ? "Finished" : "Finished, but check the results",
        ),
      ),
      ...(run.reasons ?? []).map((reason) => h("p", { class: "note" }, reason)),
      facts([
        frames === undefined ? null : ["Frames", whole(frames)],
        tracks && ["Objects", whole(tracks.objects.length)],
        run.found === null ? null : ["Found in", percent(run.found)],
        tracks && ["Uncertain", counted(tracks.unsure.length, "stretch", "stretches")],
        Number.isFinite(objective) ? ["J", short(objective)] : null,
        Number.isFinite(heldOut) ? ["J, held out", short(heldOut)] : null,
      ]),
      this.changes(run),
    ];
  }

  /**
   * How much a run that learned from corrections changed.
   *
   * @param {Run} run
   */
  changes(run) {
    const parent = this.store.state.runs.find((entry) => entry.id === run.parent);
    if (!parent) return null;
    const text = h("p", { class: "note", testid: "changes" }, "Comparing …");
    const sentence =
      this.sentences.get(run.id) ??
      api
        .changes(run.id, parent.id)
        .then((/** @type {{sentence: string}} */ answer) => answer.sentence);
    this.sentences.set(run.id, sentence);
    sentence.then(
      (said) => setText(text, said),
      (error) => {
        this.sentences.delete(run.id); // it may work the next time
        setText(text, error.message);
      },
    );
    const compare = () => this.session.compare(parent.id);
    return h(
      "div",
      { class: "changes" },
      h("h3", {}, `Learned from corrections of ${parent.name}`),
      text,
      h(
        "button",
        { type: "button", class: "plain small", onclick: compare, testid: "compare-parent" },
        icon("compare"),
        "Compare side by side",
      ),
    );
  }

  showCamera() {
    const { live } = this.store.state;
    const text =
      "Move something in front of the camera. Stop saves the recording and the run.";
    this.show([
      h("header", {}, h("h2", {}, "Learning from the camera")),
      h("p", { class: "note" }, text),
      live &&
        facts([
          ["Frames", whole(live.done ?? 0)],
          ["Rate", `${short(live.rate)} /s`],
        ]),
    ]);
  }
}

/** A run that has stopped without being finished. @param {Run} run */
function ended(run) {
  const failed = run.state === "failed";
  const text = failed
    ? (run.error ?? "It failed.")
    : run.state === "stopped"
      ? "It was stopped and can be resumed."
      : "The computer or the program stopped unexpectedly; the run can be resumed.";
  const resume = h(
    "button",
    {
      type: "button",
      class: "primary small",
      testid: "resume",
      onclick: () => api.resumeRun(run.id).catch(sayError),
    },
    icon("resume"),
    failed ? "Try again" : "Continue",
  );
  return [
    h(
      "header",
      {},
      h("h2", { class: failed ? "bad" : "" }, icon(failed ? "warning" : "pause"), runSentence(run)),
    ),
    h("p", { class: "note", testid: "run-error" }, text),
    run.opened ? null : h("div", { class: "buttons" }, resume),
  ];
}

/** @param {([string, string]|null)[]} entries */
function facts(entries) {
  const rows = entries.flatMap((entry) =>
    entry ? [h("div", {}, h("dt", {}, entry[0]), h("dd", { class: "numeric" }, entry[1]))] : [],
  );
  return h("dl", { class: "facts" }, ...rows);
}

/** @param {Run} run */
function progressBar(run) {
  const filling = h("span");
  const bar = h(
    "div",
    { class: "progress", role: "progressbar", "aria-label": "Progress" },
    filling,
  );
  if (run.total) {
    const share = Math.min(1, run.done / run.total);
    bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    filling.style.width = `${(100 * share).toFixed(1)}%`;
  } else bar.classList.add("unknown");
  return bar;
}

/** @param {string|null} stage */
function stepper(stage) {
  const now = STEPS.findIndex(([name]) => name === stage);
  return h(
    "ol",
    { class: "stepper" },
    ...STEPS.map(([, label], place) => {
      const kind = place < now ? "past" : place === now ? "now" : "";
      return h("li", { class: kind, "aria-current": place === now ? "step" : false }, label);
    }),
  );
}
