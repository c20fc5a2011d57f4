/** The list of videos and runs on the left, and sending files, which may be dropped anywhere. */

import { api, upload } from "./api.js";
import { arrange, ask, button, byId, fill, h, icon, iconButton } from "./dom.js";
import { say, sayError, setText } from "./dom.js";
import { clock, duration, fileSize, moment, percent, whole } from "./format.js";
import { isAtWork } from "./store.js";

/** @import {App, Run, Source, Upload} from "./store.js" */
/** @typedef {"source"|"run"} Kind */
/** @typedef {{element: HTMLElement, update: (entry: any) => void}} Item */

const STAGES = {
  reading: "Reading",
  training: "Learning",
  applying: "Applying",
  report: "Writing the report",
};
const ORIGINS = { opened: "", upload: "uploaded", recording: "recorded", demo: "demo" };

/** What a run at work does now. @param {Run} run */
export function stageSentence(run) {
  if (run.state === "stopping") return "Stopping";
  return run.stage ? STAGES[run.stage] : "Starting";
}

/** @param {Run} run */
export function runSentence(run) {
  if (run.state === "queued") return "Waiting";
  if (run.state === "stopping") return stageSentence(run);
  if (run.state === "stopped") return "Stopped";
  if (run.state === "failed") return "Failed";
  if (run.state === "interrupted") return "Interrupted";
  if (run.state === "running") {
    const share = run.total ? `, ${percent(run.done / run.total)}` : "";
    const left = run.left ? ` · ${duration(run.left)} left` : "";
    return stageSentence(run) + share + left;
  }
  if (run.trusted === false) return `${run.task} · check the results`;
  return run.found === null ? run.task : `${run.task} · found in ${percent(run.found)}`;
}

/**
 * The run at work, then those that wait, in the order of the queue, then all others, newest first.
 *
 * @param {Run[]} runs
 */
export function inOrder(runs) {
  const waits = (/** @type {Run} */ run) => run.state === "queued";
  const rank = (/** @type {Run} */ run) => (waits(run) ? 1 : isAtWork(run) ? 0 : 2);
  return runs.toSorted(
    (a, b) => rank(a) - rank(b) || (waits(a) ? a.created - b.created : b.created - a.created),
  );
}

/** @param {Source} source */
function sourceSentence(source) {
  if (source.error) return source.error;
  const seconds = source.seconds ? clock(source.seconds, 0) : "";
  const frames = source.frames === null ? "" : `${whole(source.frames)} frames`;
  return [seconds, frames].filter(Boolean).join(" · ");
}

/**
 * @param {Element} root
 * @param {App} app
 * @param {{upload: () => void, camera: () => void, opened: () => void}} handlers
 * @returns {{demo: () => void}} Opens the demo.
 */
export function buildLibrary(root, { store, session }, handlers) {
  const sources = h("ul.items", { "aria-label": "Videos", testid: "sources" });
  const runs = h("ul.items", { "aria-label": "Runs", testid: "runs" });
  const uploads = h("ul.items", { "aria-label": "Uploads", testid: "uploads" });
  const hint = (/** @type {string} */ text) => h("p.hint", text);
  const noSources = hint("Drop a video anywhere on this page, or try the demo.");
  const noRuns = hint("Choose a video and learn from it. Runs are listed here.");
  let makingDemo = false;

  const demo = async () => {
    if (makingDemo) return;
    makingDemo = true;
    const slow = setTimeout(() => say("The video of the demo is being made …"), 400);
    try {
      const source = await api.demo();
      store.add("sources", source);
      open("source", source.id);
    } catch (error) {
      sayError(error);
    } finally {
      clearTimeout(slow);
      makingDemo = false;
    }
  };
  /** @param {Kind} kind @param {string} id */
  const open = (kind, id) => {
    if (kind === "source") session.openSource(id);
    else session.openRun(id);
    handlers.opened();
  };
  /** A listed thing, which opens with a click. @param {Kind} kind @param {...Node} content */
  const itemOf = (kind, ...content) => {
    const choose = () => open(kind, element.dataset.id ?? "");
    const choice = button(content, choose, { class: "item" });
    const tools = h("span.item-tools");
    const element = h("li", { testid: kind }, choice, tools);
    const mark = (/** @type {string} */ id) => {
      const { open } = store.state;
      element.dataset.id = id;
      if (open.kind === kind && open.id === id) choice.setAttribute("aria-current", "true");
      else choice.removeAttribute("aria-current");
    };
    return { element, choice, tools, mark };
  };

  /** @returns {Item} */
  const sourceItem = () => {
    /** @type {Source} */
    let source;
    const thumb = h("img.thumb", { alt: "", loading: "lazy" });
    const broken = h("span.thumb.broken", icon("warning"));
    const name = h("span.item-name");
    const meta = h("span.item-meta");
    const texts = h("span.item-text", name, meta);
    const { element, choice, tools, mark } = itemOf("source", thumb, broken, texts);
    const remove = tinyButton("trash", "Delete this video", () => deleteSource(source));
    tools.append(remove);
    const update = (/** @type {Source} */ entry) => {
      source = entry;
      const size = entry.error ? "" : `${entry.width} × ${entry.height}`;
      setText(name, entry.name);
      setText(meta, sourceSentence(entry));
      choice.title = [entry.name, size, ORIGINS[entry.origin]].filter(Boolean).join(", ");
      meta.classList.toggle("bad", Boolean(entry.error));
      thumb.hidden = Boolean(entry.error);
      broken.hidden = !entry.error;
      const picture = `/api/sources/${encodeURIComponent(entry.id)}/frame/0?width=96`;
      if (!entry.error && thumb.getAttribute("src") !== picture) thumb.src = picture;
      remove.hidden = entry.origin === "opened";
      mark(entry.id);
    };
    return { element, update };
  };

  /** @returns {Item} */
  const runItem = () => {
    /** @type {Run} */
    let run;
    const dot = h("span.dot", { "aria-hidden": "true" });
    const name = h("span.item-name");
    const when = h("time.item-meta");
    const meta = h("span.item-meta");
    const filling = h("span");
    const bar = h("span.bar", { "aria-hidden": "true" }, filling);
    const line = h("span.item-line", name, when);
    const texts = h("span.item-text", line, meta, bar);
    const { element, choice, tools, mark } = itemOf("run", dot, texts);
    const act = (/** @type {"stop"|"resume"} */ what) => () =>
      api.act(run.id, what).catch(sayError);
    const stop = tinyButton("stop", "Stop this run", act("stop"));
    const resume = tinyButton("resume", "Continue this run", act("resume"));
    const remove = tinyButton("trash", "Delete this run", () => deleteRun(run));
    tools.append(stop, resume, remove);
    const update = (/** @type {Run} */ entry) => {
      run = entry;
      const { state, opened } = entry;
      setText(name, entry.name);
      setText(meta, runSentence(entry));
      setText(when, moment(entry.created));
      element.dataset.state = state;
      choice.title = entry.error ?? entry.name;
      dot.className = `dot ${state}${entry.trusted === false ? " doubtful" : ""}`;
      bar.hidden = state !== "running" || !entry.total;
      if (entry.total) filling.style.width = percentCss(entry.done / entry.total);
      stop.hidden = opened || !(state === "queued" || state === "running");
      resume.hidden = opened || !["stopped", "failed", "interrupted"].includes(state);
      remove.hidden = opened || isAtWork(entry);
      mark(entry.id);
    };
    return { element, update };
  };

  const actions = h(
    "div.library-actions",
    button("Add video", handlers.upload, { icon: "upload", class: "plain", testid: "upload" }),
    button("Camera", handlers.camera, { icon: "camera", class: "plain", testid: "camera" }),
    button("Demo", demo, { icon: "spark", class: "plain", testid: "demo" }),
  );
  root.append(
    actions,
    h("section", h("h2", "Videos"), uploads, sources, noSources),
    h("section", h("h2", "Runs"), runs, noRuns),
  );
  const listSources = keptItems(sources, sourceItem);
  const listRuns = keptItems(runs, runItem);
  store.follow(["sources", "runs", "open", "loaded"], () => {
    const { state } = store;
    listSources(state.sources);
    listRuns(inOrder(state.runs));
    noSources.hidden = !state.loaded || state.sources.length > 0;
    noRuns.hidden = !state.loaded || state.runs.length > 0;
  });
  store.follow(["uploads"], () => {
    uploads.hidden = !store.state.uploads.length;
    fill(uploads, store.state.uploads.map(uploadItem));
  });
  return { demo };
}

/** Makes a function that lists entries. @param {Element} list @param {() => Item} make */
function keptItems(list, make) {
  /** @type {Map<string, Item>} */
  const items = new Map();
  return (/** @type {{id: string}[]} */ entries) => {
    const elements = entries.map((entry) => {
      const item = items.get(entry.id) ?? make();
      items.set(entry.id, item);
      item.update(entry);
      return item.element;
    });
    for (const id of [...items.keys()])
      if (!entries.some((entry) => entry.id === id)) items.delete(id);
    arrange(list, elements);
  };
}

/** @param {Parameters<typeof icon>[0]} name @param {string} label @param {() => void} run */
function tinyButton(name, label, run) {
  return iconButton(name, label, run, { class: "tiny" });
}

/** @param {Upload} entry */
function uploadItem({ name, share, error, cancel }) {
  const filling = h("span");
  filling.style.width = percentCss(share);
  const text = error ?? (share < 1 ? `Sending, ${percent(share)}` : "Checking");
  return h(
    "li.uploading",
    { testid: "uploading" },
    h(
      "span.item",
      h("span.thumb.broken", icon(error ? "warning" : "upload")),
      h(
        "span.item-text",
        h("span.item-name", name),
        h("span", { class: `item-meta${error ? " bad" : ""}` }, text),
        error ? null : h("span.bar", filling),
      ),
    ),
    h(
      "span.item-tools.always",
      tinyButton("close", error ? "Close" : "Cancel this upload", cancel),
    ),
  );
}

/** @param {Run} run */
async function deleteRun(run) {
  const sure = await ask(
    `Delete “${run.name}”?`,
    "Its results, corrections and exports are permanently deleted. The video is kept.",
    "Delete run",
  );
  if (!sure) return;
  try {
    await api.deleteRun(run.id);
    say(`${run.name} was deleted.`);
  } catch (error) {
    sayError(error);
  }
}

/** @param {Source} source */
async function deleteSource(source) {
  const sure = await ask(
    `Delete “${source.name}”?`,
    "The copy of the video in the studio's folder is permanently deleted. Runs are kept, without its pictures.",
    "Delete video",
  );
  if (sure) await api.deleteSource(source.id).catch(sayError);
}

/** @param {number} share */
function percentCss(share) {
  return `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
}

/**
 * Sending files.
 *
 * @param {App} app
 * @returns {() => void} Lets the user choose files.
 */
export function addUploads({ store, session }) {
  const input = /** @type {HTMLInputElement} */ (byId("file-input"));
  let count = 0;

  /** @param {number} key @param {Partial<Upload>} patch */
  const change = (key, patch) => {
    const entries = store.state.uploads;
    store.set({
      uploads: entries.map((entry) => (entry.key === key ? { ...entry, ...patch } : entry)),
    });
  };
  /** @param {number} key */
  const remove = (key) =>
    store.set({ uploads: store.state.uploads.filter((entry) => entry.key !== key) });

  /** @param {File} file */
  const enter = (file) => {
    const key = (count += 1);
    const { uploads, uploadLimit } = store.state;
    const tooLarge = `${file.name} is larger than ${fileSize(uploadLimit)}.`;
    const error = file.size > uploadLimit ? tooLarge : null;
    const entry = { key, name: file.name, share: 0, error, cancel: () => remove(key) };
    store.set({ uploads: [...uploads, entry] });
    return { file, key };
  };
  /** @param {File} file @param {number} key */
  const sendOne = async (file, key) => {
    const { done, cancel } = upload(file, (share) => change(key, { share }));
    const giveUp = () => {
      cancel();
      remove(key);
    };
    change(key, { cancel: giveUp });
    try {
      const source = await done;
      remove(key);
      arrived(source);
    } catch (error) {
      const { message } = /** @type {Error} */ (error);
      if (message === "Cancelled.") return;
      const reason = message.replace(`${file.name}: `, ""); // the list has the name already
      change(key, { error: reason, cancel: () => remove(key) });
      say(message);
    }
  };
  /** @param {Source} source */
  const arrived = (source) => {
    store.add("sources", source);
    const open = () => session.openSource(source.id);
    // If something else is open, stay there.
    if (store.state.open.kind === "none") open();
    else say(`${source.name} was added.`, { label: "Open", run: open });
  };
  /** One after the other: together would only be slower. @param {FileList|null} [files] */
  const send = async (files) => {
    for (const { file, key } of [...(files ?? [])].map(enter)) {
      const entry = store.state.uploads.find((upload) => upload.key === key);
      if (entry && !entry.error) await sendOne(file, key); // it may be cancelled while it waits
    }
  };
  input.addEventListener("change", () => {
    send(input.files);
    input.value = ""; // so that the same file can be chosen again
  });
  addEventListener("beforeunload", (event) => {
    if (store.state.uploads.some((entry) => !entry.error)) event.preventDefault();
  });
  addDropping(send);
  return () => input.click();
}

/** @param {(files: FileList|undefined) => void} send */
function addDropping(send) {
  let depth = 0; // enter and leave come for every element below the pointer
  const veil = byId("drop-veil");
  /** @param {"dragenter"|"dragover"|"dragleave"|"drop"} name @param {() => number} depthAfter */
  const listen = (name, depthAfter) =>
    addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      if (name !== "dragleave") event.preventDefault();
      depth = Math.max(0, depthAfter());
      veil.hidden = depth === 0;
      if (name === "drop") send(event.dataTransfer.files);
    });
  listen("dragenter", () => depth + 1);
  listen("dragover", () => depth);
  listen("dragleave", () => depth - 1);
  listen("drop", () => 0);
}
