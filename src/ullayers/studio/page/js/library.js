/** The list of videos and runs on the left. */

import { api } from "./api.js";
import { fill, h, icon, iconButton, setText } from "./dom.js";
import { clock, duration, moment, percent, whole } from "./format.js";
import { ask, say, sayError } from "./notices.js";
import { isAtWork } from "./store.js";

const STAGES = {
  reading: "Reading",
  training: "Learning",
  applying: "Applying",
  report: "Writing the report",
};
const ORIGINS = { opened: "", upload: "uploaded", recording: "recorded", demo: "demo" };

/** What a run at work does now. @param {import("./store.js").Run} run */
export function stageSentence(run) {
  if (run.state === "stopping") return "Stopping";
  return run.stage ? STAGES[run.stage] : "Starting";
}

/** @param {import("./store.js").Run} run */
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
 * @param {import("./store.js").Run[]} runs
 */
export function inOrder(runs) {
  const waits = (/** @type {import("./store.js").Run} */ run) => run.state === "queued";
  const rank = (/** @type {import("./store.js").Run} */ run) =>
    waits(run) ? 1 : isAtWork(run) ? 0 : 2;
  return [...runs].sort(
    (a, b) => rank(a) - rank(b) || (waits(a) ? a.created - b.created : b.created - a.created),
  );
}

/** @param {import("./store.js").Source} source */
export function sourceSentence(source) {
  if (source.error) return source.error;
  return [
    source.seconds ? clock(source.seconds, 0) : "",
    source.frames === null ? "" : `${whole(source.frames)} frames`,
  ]
    .filter(Boolean)
    .join(" · ");
}

export class Library {
  /**
   * @param {Element} root
   * @param {import("./store.js").Store} store
   * @param {import("./session.js").Session} session
   * @param {{upload: () => void, camera: () => void, opened: () => void}} handlers
   */
  constructor(root, store, session, handlers) {
    this.store = store;
    this.session = session;
    this.handlers = handlers;
    /** @type {Map<string, {element: HTMLElement, update: (entry: any) => void}>} */
    this.items = new Map();
    this.sources = h("ul", { class: "items", "aria-label": "Videos", testid: "sources" });
    this.runs = h("ul", { class: "items", "aria-label": "Runs", testid: "runs" });
    this.uploads = h("ul", { class: "items", "aria-label": "Uploads", testid: "uploads" });
    this.makingDemo = false;
    this.noSources = h(
      "p",
      { class: "hint" },
      "Drop a video anywhere on this page, or try the demo.",
    );
    this.noRuns = h(
      "p",
      { class: "hint" },
      "Choose a video and learn from it. Runs are listed here.",
    );
    root.append(
      this.actions(),
      h("section", {}, h("h2", {}, "Videos"), this.uploads, this.sources, this.noSources),
      h("section", {}, h("h2", {}, "Runs"), this.runs, this.noRuns),
    );
    store.follow(["sources", "runs", "open", "loaded"], () => this.update());
    store.follow(["uploads"], () => this.updateUploads());
  }

  actions() {
    return h(
      "div",
      { class: "library-actions" },
      h(
        "button",
        { type: "button", class: "plain", onclick: this.handlers.upload, testid: "upload" },
        icon("upload"),
        "Add video",
      ),
      h(
        "button",
        { type: "button", class: "plain", onclick: this.handlers.camera, testid: "camera" },
        icon("camera"),
        "Camera",
      ),
      h(
        "button",
        { type: "button", class: "plain", onclick: () => this.demo(), testid: "demo" },
        icon("spark"),
        "Demo",
      ),
    );
  }

  async demo() {
    if (this.makingDemo) return;
    this.makingDemo = true;
    const slow = setTimeout(() => say("The video of the demo is being made …"), 400);
    try {
      const source = await api.demo();
      const { sources } = this.store.state;
      if (!sources.some((entry) => entry.id === source.id))
        this.store.set({ sources: [...sources, source] });
      this.open("source", source.id);
    } catch (error) {
      sayError(error);
    } finally {
      clearTimeout(slow);
      this.makingDemo = false;
    }
  }

  update() {
    const { sources, runs, loaded } = this.store.state;
    this.arrange(this.sources, "source", sources, () => this.sourceItem());
    this.arrange(this.runs, "run", inOrder(runs), () => this.runItem());
    this.noSources.hidden = !loaded || sources.length > 0;
    this.noRuns.hidden = !loaded || runs.length > 0;
  }

  /**
   * Put items in order, keeping the elements of those that were there: a rebuilt list would lose
   * the focus and reload its pictures.
   *
   * @param {Element} list
   * @param {"source"|"run"} kind
   * @param {{id: string}[]} entries
   * @param {() => {element: HTMLElement, update: (entry: any) => void}} make
   */
  arrange(list, kind, entries, make) {
    const keys = new Set(entries.map(({ id }) => `${kind} ${id}`));
    for (const [key, { element }] of this.items) {
      if (key.startsWith(`${kind} `) && !keys.has(key)) {
        element.remove();
        this.items.delete(key);
      }
    }
    entries.forEach((entry, place) => {
      const key = `${kind} ${entry.id}`;
      const item = this.items.get(key) ?? make();
      this.items.set(key, item);
      item.update(entry);
      if (list.children[place] !== item.element)
        list.insertBefore(item.element, list.children[place] ?? null);
    });
  }

  /** @param {"source"|"run"} kind @param {string} id */
  open(kind, id) {
    if (kind === "source") this.session.openSource(id);
    else this.session.openRun(id);
    this.handlers.opened();
  }

  sourceItem() {
    /** @type {import("./store.js").Source} */
    let source;
    const thumb = /** @type {HTMLImageElement} */ (
      h("img", { class: "thumb", alt: "", loading: "lazy" })
    );
    const broken = h("span", { class: "thumb broken" }, icon("warning"));
    const name = h("span", { class: "item-name" });
    const meta = h("span", { class: "item-meta" });
    const button = h(
      "button",
      { type: "button", class: "item", onclick: () => this.open("source", source.id) },
      thumb,
      broken,
      h("span", { class: "item-text" }, name, meta),
    );
    const remove = iconButton("trash", "Delete this video", () => this.deleteSource(source), {
      class: "tiny",
    });
    const element = h(
      "li",
      { testid: "source" },
      button,
      h("span", { class: "item-tools" }, remove),
    );
    const update = (/** @type {import("./store.js").Source} */ entry) => {
      source = entry;
      setText(name, entry.name);
      setText(meta, sourceSentence(entry));
      button.title = [
        entry.name,
        entry.error ? "" : `${entry.width} × ${entry.height}`,
        ORIGINS[entry.origin],
      ]
        .filter(Boolean)
        .join(", ");
      element.dataset.id = entry.id;
      meta.classList.toggle("bad", Boolean(entry.error));
      thumb.hidden = Boolean(entry.error);
      broken.hidden = !entry.error;
      const picture = `/api/sources/${encodeURIComponent(entry.id)}/frame/0?width=96`;
      if (!entry.error && thumb.getAttribute("src") !== picture) thumb.src = picture;
      remove.hidden = entry.origin === "opened";
      this.mark(button, "source", entry.id);
    };
    return { element, update };
  }

  runItem() {
    /** @type {import("./store.js").Run} */
    let run;
    const dot = h("span", { class: "dot", "aria-hidden": "true" });
    const name = h("span", { class: "item-name" });
    const when = h("time", { class: "item-meta" });
    const meta = h("span", { class: "item-meta" });
    const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span"));
    const button = h(
      "button",
      { type: "button", class: "item", onclick: () => this.open("run", run.id) },
      dot,
      h("span", { class: "item-text" }, h("span", { class: "item-line" }, name, when), meta, bar),
    );
    const act = (/** @type {(id: string) => Promise<any>} */ call) => call(run.id).catch(sayError);
    const stop = iconButton("stop", "Stop this run", () => act(api.stopRun), { class: "tiny" });
    const resume = iconButton("resume", "Continue this run", () => act(api.resumeRun), {
      class: "tiny",
    });
    const remove = iconButton("trash", "Delete this run", () => this.deleteRun(run), {
      class: "tiny",
    });
    const element = h(
      "li",
      { testid: "run" },
      button,
      h("span", { class: "item-tools" }, stop, resume, remove),
    );
    const update = (/** @type {import("./store.js").Run} */ entry) => {
      run = entry;
      setText(name, entry.name);
      setText(meta, runSentence(entry));
      setText(when, moment(entry.created));
      element.dataset.id = entry.id;
      element.dataset.state = entry.state;
      button.title = entry.error ?? entry.name;
      dot.className = `dot ${entry.state}${entry.trusted === false ? " doubtful" : ""}`;
      const running = entry.state === "running" && Boolean(entry.total);
      bar.hidden = !running;
      if (running)
        /** @type {HTMLElement} */ (bar.firstChild).style.width = percentCss(
          entry.done / (entry.total ?? 1),
        );
      stop.hidden = entry.opened || !(entry.state === "queued" || entry.state === "running");
      resume.hidden = entry.opened || !["stopped", "failed", "interrupted"].includes(entry.state);
      remove.hidden = entry.opened || isAtWork(entry);
      this.mark(button, "run", entry.id);
    };
    return { element, update };
  }

  /** @param {HTMLElement} button @param {string} kind @param {string} id */
  mark(button, kind, id) {
    const { open } = this.store.state;
    if (open.kind === kind && open.id === id) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }

  updateUploads() {
    const { uploads } = this.store.state;
    this.uploads.hidden = !uploads.length;
    fill(
      this.uploads,
      ...uploads.map((entry) => {
        const bar = h("span", { class: "bar" }, h("span"));
        /** @type {HTMLElement} */ (bar.firstChild).style.width = percentCss(entry.share);
        return h(
          "li",
          { class: "uploading", testid: "uploading" },
          h(
            "span",
            { class: "item" },
            h("span", { class: "thumb broken" }, icon(entry.error ? "warning" : "upload")),
            h(
              "span",
              { class: "item-text" },
              h("span", { class: "item-name" }, entry.name),
              h(
                "span",
                { class: `item-meta${entry.error ? " bad" : ""}` },
                entry.error ?? (entry.share < 1 ? `Sending, ${percent(entry.share)}` : "Checking"),
              ),
              entry.error ? null : bar,
            ),
          ),
          h(
            "span",
            { class: "item-tools always" },
            iconButton("close", entry.error ? "Close" : "Cancel this upload", entry.cancel, {
              class: "tiny",
            }),
          ),
        );
      }),
    );
  }

  /** @param {import("./store.js").Run} run */
  async deleteRun(run) {
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

  /** @param {import("./store.js").Source} source */
  async deleteSource(source) {
    const sure = await ask(
      `Delete “${source.name}”?`,
      "The copy of the video in the studio's folder is permanently deleted. Runs are kept, without its pictures.",
      "Delete video",
    );
    if (sure) await api.deleteSource(source.id).catch(sayError);
  }
}

/** @param {number} share */
function percentCss(share) {
  return `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
}
