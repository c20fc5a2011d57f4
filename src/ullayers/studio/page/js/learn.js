/**
 * The tab "Learn": what to learn from a video, and then where the run stands, its verdict, and
 * cards of what it learns.
 */

import { api } from "./api.js";
import { byTrial, Chart, drawObjective, drawRank } from "./charts.js";
import { button, card, field, fill, h, icon, sayError, setText } from "./dom.js";
import { counted, duration, percent, readClock, short, whole } from "./format.js";
import { runSentence, stageSentence } from "./library.js";
import { livePoints, resultsPoints, Scatter } from "./scatter.js";
import { isAtWork } from "./store.js";

/** @import {ScatterModel} from "./scatter.js" */
/** @import {App, Run, Store} from "./store.js" */

const COLLAPSED = 0.5; // share of the largest rank below which the output is about to collapse
const TASKS = [
  ["locate", "Where things are", "Position, outline and confidence of each moving object"],
  ["orient", "Which way it faces", "A code that follows the orientation of the object"],
  ["features", "Slow features", "The slowest features of the frame, slowest first"],
];
const STEPS = [
  ["reading", "Read"],
  ["training", "Learn"],
  ["applying", "Apply"],
  ["report", "Report"],
];

/** What to learn from a video. It keeps what was typed. @param {App} app */
function learnForm({ store, session }) {
  const typed = (/** @type {Record<string, any>} */ props) =>
    h("input", { type: "text", autocomplete: "off", ...props });
  const name = typed({ placeholder: "As the video", maxlength: 80, testid: "run-name" });
  const objects = typed({ inputmode: "numeric", placeholder: "Find out", testid: "objects" });
  const outputs = typed({ inputmode: "numeric", placeholder: "Default", testid: "outputs" });
  const start = typed({ placeholder: "0:00", testid: "start" });
  const end = typed({ placeholder: "End", testid: "end" });
  const watch = h("input", { type: "checkbox", testid: "kind-watch" });
  const masks = h("input", { type: "checkbox", testid: "masks" });
  const error = h("p.form-error", { role: "alert", hidden: true, testid: "form-error" });
  const submit = button("Learn from this video", null, {
    type: "submit",
    class: "primary wide",
    icon: "learn",
    testid: "learn",
  });
  const others = h("div.checks");
  const othersField = h("fieldset.field", h("legend", "Together with"), others);
  const objectsField = field("Number of objects", objects);
  const outputsField = field("Number of outputs", outputs);
  const tasks = TASKS.map(([value, title, text]) => {
    const checked = value === "locate";
    const choice = { type: "radio", name: "task", value, checked, testid: `task-${value}` };
    const texts = h("span", h("strong", title), h("small", text));
    return h("label.choice", h("input", choice), texts);
  });
  const check = (/** @type {HTMLElement} */ box, /** @type {string} */ text) =>
    h("label", box, h("span", text));
  const form = h(
    "form.learn-form",
    { novalidate: true },
    h("fieldset.field", h("legend", "What to learn"), tasks),
    h("div.pair", objectsField, outputsField, field("Name of the run", name)),
    h(
      "details.more",
      h("summary", "More settings"),
      h("div.pair", field("From (m:ss)", start), field("To (m:ss)", end)),
      h(
        "div.checks",
        check(watch, "Learn while watching, in one pass"),
        check(masks, "Write masks as images"),
      ),
      othersField,
    ),
    error,
    submit,
  );

  const task = () => String(new FormData(form).get("task"));
  const chosenOthers = () =>
    [...others.querySelectorAll("input")].filter((box) => box.checked).map((box) => box.value);

  /** What to ask the server for, less what is undefined; throws a sentence if a text is wrong. */
  const request = () => {
    const locate = task() === "locate";
    const count = locate
      ? positive(objects, "The number of objects")
      : positive(outputs, "The number of outputs");
    const [from, to] = [time(start, "From"), time(end, "To")];
    if (from !== undefined && to !== undefined && to <= from)
      throw new Error("The end must be later than the start.");
    return {
      sources: [store.state.open.id, ...chosenOthers()],
      kind: watch.checked ? "watch" : "learn",
      task: task(),
      objects: locate ? (count ?? null) : null,
      outputs: locate ? undefined : count,
      start: from,
      end: to,
      name: name.value.trim() || undefined,
      masks: masks.checked || undefined,
    };
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.hidden = true;
    submit.disabled = true;
    try {
      const run = await api.startRun(request());
      store.add("runs", run);
      name.value = "";
      await session.openRun(run.id);
    } catch (failure) {
      error.hidden = false;
      error.textContent = /** @type {Error} */ (failure).message;
      if (!form.isConnected) sayError(failure);
    } finally {
      submit.disabled = false;
    }
  });
  const showFields = () => {
    objectsField.hidden = task() !== "locate";
    outputsField.hidden = task() === "locate";
  };
  form.addEventListener("change", showFields);
  showFields();
  store.follow(["open", "sources"], () => {
    const { open, sources } = store.state;
    const chosen = chosenOthers();
    const list = sources.filter(
      (source) => source.id !== open.id && !source.error && source.kind !== "live",
    );
    othersField.hidden = !list.length;
    fill(
      others,
      list.map((source) => {
        const box = { type: "checkbox", value: source.id, checked: chosen.includes(source.id) };
        return check(h("input", box), source.name);
      }),
    );
  });
  return form;
}

/** @param {HTMLInputElement} control @param {string} what */
function positive(control, what) {
  const text = control.value.trim();
  if (!text) return undefined;
  if (!/^[1-9]\d{0,3}$/.test(text)) throw new Error(`${what} must be a whole number from 1 on.`);
  return Number(text);
}

/** @param {HTMLInputElement} control @param {string} what */
function time(control, what) {
  if (!control.value.trim()) return undefined;
  const seconds = readClock(control.value);
  if (seconds === null) throw new Error(`${what}: write a time as 1:30, or seconds.`);
  return seconds;
}

/**
 * The tab, and what its scatter shows.
 *
 * @param {App} app
 * @returns {{element: HTMLElement, points: () => ScatterModel|null}}
 */
export function learnTab(app) {
  const { store } = app;
  const form = learnForm(app);
  const status = h("section.card.status", { testid: "status" });
  const stage = h("h2");
  const facts = h("div");
  let shownStatus = ""; // what its buttons were made for
  /** @type {Map<string, Promise<string>>} How much runs changed, by their ids. */
  const sentences = new Map();
  const scatter = scatterCard(app);
  const cards = [curveCard(store), meterCard(store), scatter, kernelCard(store)];
  const empty = h(
    "div.empty",
    h("h2", "Nothing is open"),
    h("p", "Open a video to learn from it, or a run to inspect its results."),
  );

  /** @param {(Node|null)[]} content */
  const show = (...content) => {
    shownStatus = "";
    fill(status, content);
  };
  /**
   * Buttons are made once for each state of a run: one that was replaced while it is pressed would
   * miss the click. Only the facts below them change all the time.
   *
   * @param {Run} run
   */
  const showRun = (run) => {
    const { details, results } = store.state;
    const found = [results?.objects.length, results?.unsure.length, details?.summary?.frames];
    const key = [run.id, run.state, run.error, run.trusted, ...found].join();
    if (shownStatus !== key) {
      if (isAtWork(run)) show(h("header", stage, run.opened ? null : stopButton(run)), facts);
      else show(...(run.state === "done" ? verdict(store, run) : ended(run)), changes(run));
      shownStatus = key;
    }
    if (!isAtWork(run)) return;
    setText(stage, run.state === "queued" ? "Waiting" : stageSentence(run));
    fill(facts, run.state === "queued" ? queueNote(store, run) : progress(store, run));
  };
  /** How much a run that learned from corrections changed. @param {Run} run */
  const changes = (run) => {
    const parent = store.state.runs.find((entry) => entry.id === run.parent);
    if (!parent || run.state !== "done") return null;
    const text = h("p.note", { testid: "changes" }, "Comparing …");
    const sentence =
      sentences.get(run.id) ?? api.changes(run.id, parent.id).then((answer) => answer.sentence);
    sentences.set(run.id, sentence);
    sentence.then(
      (said) => setText(text, said),
      (error) => {
        sentences.delete(run.id); // it may work the next time
        setText(text, error.message);
      },
    );
    return h(
      "div.changes",
      h("h3", `Learned from corrections of ${parent.name}`),
      text,
      button("Compare side by side", () => app.session.compare(parent.id), {
        icon: "compare",
        class: "plain small",
        testid: "compare-parent",
      }),
    );
  };
  store.follow(["open", "runs", "sources", "details", "results", "live", "records"], () => {
    const { open } = store.state;
    const run = store.openRun;
    const source = open.kind === "source" ? store.openSource : null;
    empty.hidden = open.kind !== "none";
    form.hidden = !source || Boolean(source.error);
    status.hidden = open.kind === "none" || (open.kind === "source" && !source?.error);
    if (run) showRun(run);
    else if (open.kind === "camera") show(...camera(store));
    else if (source?.error) show(h("p.form-error", source.error));
    for (const { update } of cards) update();
  });
  const elements = cards.map(({ element }) => element);
  return { element: h("div", empty, form, status, elements), points: scatter.points };
}

/** @param {Run} run */
function stopButton(run) {
  return button("Stop", () => api.act(run.id, "stop").catch(sayError), {
    icon: "stop",
    class: "plain small",
    testid: "stop",
    disabled: run.state === "stopping",
  });
}

/** @param {Store} store @param {Run} run */
function queueNote(store, run) {
  const before = (/** @type {Run} */ other) =>
    other.state === "running" || (other.state === "queued" && other.created < run.created);
  const ahead = store.state.runs.filter(before).length;
  const text = ahead ? `It starts after ${counted(ahead, "other run")}.` : "It starts in a moment.";
  return [h("p.note", text)];
}

/** How far a run at work is. @param {Store} store @param {Run} run */
function progress(store, run) {
  const steps = run.stage === "training" && run.kind === "learn";
  const trial = steps ? store.state.live?.trial : null;
  const best = trial?.best === true;
  const done = [run.done, run.total].filter((count) => count !== null).map(whole);
  return [
    run.kind === "learn" ? stepper(run.stage) : null,
    progressBar(run),
    factList([
      [steps ? "Steps" : "Frames", done.join(" / ")],
      ["Rate", run.rate ? `${short(run.rate)} /s` : "–"],
      ["Time left", duration(run.left)],
      trial && ["Trial", best ? `${trial.number}, the best` : `${trial.number} of ${trial.of}`],
    ]),
  ];
}

/** @param {Store} store @param {Run} run */
function verdict(store, run) {
  const { details, results } = store.state;
  const { frames, objective, held_out_objective: heldOut } = details?.summary ?? {};
  const good = run.trusted !== false;
  const tracks = results?.kind === "tracks" ? results : null;
  return [
    statusHeader(
      good ? "good" : "doubtful",
      good ? "check" : "warning",
      good ? "Finished" : "Finished, but check the results",
    ),
    ...(run.reasons ?? []).map((reason) => h("p.note", reason)),
    factList([
      frames === undefined ? null : ["Frames", whole(frames)],
      tracks && ["Objects", whole(tracks.objects.length)],
      run.found === null ? null : ["Found in", percent(run.found)],
      tracks && ["Uncertain", counted(tracks.unsure.length, "stretch", "stretches")],
      Number.isFinite(objective) ? ["J", short(objective)] : null,
      Number.isFinite(heldOut) ? ["J, held out", short(heldOut)] : null,
    ]),
  ];
}

/** A run that has stopped without being finished. @param {Run} run */
function ended(run) {
  const failed = run.state === "failed";
  const text = failed
    ? (run.error ?? "It failed.")
    : run.state === "stopped"
      ? "It was stopped and can be resumed."
      : "The computer or the program stopped unexpectedly; the run can be resumed.";
  const resume = () => api.act(run.id, "resume").catch(sayError);
  const again = button(failed ? "Try again" : "Continue", resume, {
    icon: "resume",
    class: "primary small",
    testid: "resume",
  });
  return [
    statusHeader(failed ? "bad" : "", failed ? "warning" : "pause", runSentence(run)),
    h("p.note", { testid: "run-error" }, text),
    run.opened ? null : h("div.buttons", again),
  ];
}

/** @param {string} kind @param {Parameters<typeof icon>[0]} name @param {string} text */
function statusHeader(kind, name, text) {
  return h("header", h("h2", { class: kind }, icon(name), text));
}

/** @param {Store} store */
function camera(store) {
  const { live } = store.state;
  const text = "Move something in front of the camera. Stop saves the recording and the run.";
  return [
    h("header", h("h2", "Learning from the camera")),
    h("p.note", text),
    live &&
      factList([
        ["Frames", whole(live.done ?? 0)],
        ["Rate", `${short(live.rate)} /s`],
      ]),
  ];
}

/** @param {([string, string]|null)[]} entries */
function factList(entries) {
  const rows = entries.map(
    (entry) => entry && h("div", h("dt", entry[0]), h("dd.numeric", entry[1])),
  );
  return h("dl.facts", rows);
}

/** @param {Run} run */
function progressBar(run) {
  const filling = h("span");
  const bar = { class: "progress", role: "progressbar", "aria-label": "Progress" };
  if (!run.total) return h("div", { ...bar, class: "progress unknown" }, filling);
  const share = Math.min(1, run.done / run.total);
  filling.style.width = `${(100 * share).toFixed(1)}%`;
  return h("div", { ...bar, "aria-valuenow": Math.round(100 * share) }, filling);
}

/** @param {string|null} stage */
function stepper(stage) {
  const now = STEPS.findIndex(([name]) => name === stage);
  const items = STEPS.map(([, label], place) => {
    const kind = place < now ? "past" : place === now ? "now" : "";
    return h("li", { class: kind, "aria-current": place === now ? "step" : false }, label);
  });
  return h("ol.stepper", items);
}

/** J of every trial. @param {Store} store */
function curveCard(store) {
  const value = h("span.soft.numeric", { testid: "objective" });
  const note = h("p.note");
  const chart = new Chart("J of every training step; lower is better", "curve", (sheet) =>
    drawObjective(sheet, store.state.records, store.stepUnit),
  );
  const element = card("J, lower is better", value, chart.canvas, note);
  const update = () => {
    const { records } = store.state;
    element.hidden = !records.length;
    if (!records.length) return;
    const trials = byTrial(records).length;
    const held = records.some((record) => Number.isFinite(record.held_out));
    const notes = [
      trials > 1 ? `${trials} trials; the strong line is the latest.` : "",
      held ? "Dots: frames that are held out." : "",
    ];
    setText(value, short(records.at(-1).objective));
    setText(note, notes.filter(Boolean).join(" "));
    chart.schedule();
  };
  return { element, update };
}

/** The collapse meter: in how many directions the output varies. @param {Store} store */
function meterCard(store) {
  const value = h("span.soft.numeric");
  const note = h("p.note");
  const filling = h("span");
  const role = { role: "meter", "aria-label": "Collapse meter", testid: "meter" };
  const meter = h("div.meter", { ...role, "aria-valuemin": 0 }, filling);
  const draw = (/** @type {Parameters<typeof drawRank>[0]} */ sheet) =>
    drawRank(sheet, store.state.records);
  const chart = new Chart("Rank of the output over time", "rank", draw, "chart spark");
  const element = card("Collapse meter", value, meter, chart.canvas, note);
  const update = () => {
    const last = store.state.records.at(-1);
    element.hidden = !last?.features;
    if (!last?.features) return;
    const share = Math.min(1, Math.max(0, last.rank / last.features));
    const low = share < COLLAPSED;
    const text = low
      ? "The outputs have nearly collapsed: they all vary in the same way."
      : "Independent directions in which the output varies.";
    setText(value, `${short(last.rank)} of ${last.features}`);
    setText(note, text);
    meter.classList.toggle("low", low);
    meter.setAttribute("aria-valuemax", String(last.features));
    meter.setAttribute("aria-valuenow", short(last.rank));
    filling.style.width = `${(100 * share).toFixed(1)}%`;
    chart.schedule();
  };
  return { element, update };
}

/** Path or code of every frame. @param {App} app */
function scatterCard({ store, session, playhead }) {
  /** @type {[number, number]} */
  let axes = [0, 1];
  const title = h("span");
  const selects = h("div.axes", { hidden: true });
  const points = () => {
    const { results, hidden } = store.state;
    if (results) return resultsPoints(results, axes, hidden);
    const source = store.openSource;
    const code = Boolean(store.openRun && store.openRun.task !== "locate");
    const aspect = source?.width && source.height ? source.height / source.width : 0.75;
    return livePoints(session.path, code, aspect);
  };
  const scatter = new Scatter(points, playhead);
  const note = h("p.note", "Each point is a frame. Click one to see it.");
  const element = card(title, selects, scatter.canvas, note);

  /** Which number of a code is shown along an axis. @param {0|1} axis @param {string[]} columns */
  const axisSelect = (axis, columns) => {
    const select = h(
      "select.quiet-select",
      {
        "aria-label": axis ? "Upwards" : "Across",
        onchange: () => {
          axes[axis] = Number(select.value);
          scatter.refresh();
        },
      },
      columns.map((name, value) => h("option", { value, selected: value === axis }, name)),
    );
    return select;
  };
  store.follow(["results", "open"], () => {
    const { results } = store.state;
    const columns = results?.kind === "codes" ? results.columns : [];
    axes = [0, Math.min(1, Math.max(0, columns.length - 1))];
    selects.hidden = columns.length < 3;
    fill(selects, axisSelect(0, columns), axisSelect(1, columns));
  });
  store.follow(["results", "live", "hidden", "open"], () => scatter.refresh());
  store.follow(["arrived"], scatter.chart.schedule);
  const update = () => {
    const run = store.openRun;
    element.hidden = !store.state.results && !session.path.size;
    setText(title, !run || run.task === "locate" ? "Path" : "Code");
  };
  return { element, update, points };
}

/** Kernels of the first layer. @param {Store} store */
function kernelCard(store) {
  const image = h("img.kernels", { alt: "Kernels of the first layer", testid: "kernels" });
  const element = card("Kernels of the first layer", null, image);
  const update = () => {
    const kernels = store.state.live?.kernels;
    element.hidden = !kernels;
    if (kernels && image.getAttribute("src") !== kernels) image.src = kernels;
  };
  return { element, update };
}
