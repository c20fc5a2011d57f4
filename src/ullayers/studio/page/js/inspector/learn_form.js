/** What to learn from a video. It keeps what was typed while the rest of the page changes. */

import { api } from "../api.js";
import { fill, h, icon } from "../dom.js";
import { readClock } from "../format.js";
import { sayError } from "../notices.js";

const TASKS = [
  ["locate", "Where things are", "Position, outline and confidence of each moving object"],
  ["orient", "Which way it faces", "A code that follows the orientation of the object"],
  ["features", "Slow features", "The slowest features of the frame, slowest first"],
];

export class LearnForm {
  /**
   * @param {import("../store.js").Store} store
   * @param {import("../session.js").Session} session
   */
  constructor(store, session) {
    this.store = store;
    this.session = session;
    this.name = input({ placeholder: "As the video", maxlength: 80, testid: "run-name" });
    this.objects = input({ inputmode: "numeric", placeholder: "Find out", testid: "objects" });
    this.outputs = input({ inputmode: "numeric", placeholder: "Default", testid: "outputs" });
    this.start = input({ placeholder: "0:00", testid: "start" });
    this.end = input({ placeholder: "End", testid: "end" });
    this.watch = /** @type {HTMLInputElement} */ (
      h("input", { type: "checkbox", testid: "kind-watch" })
    );
    this.masks = /** @type {HTMLInputElement} */ (
      h("input", { type: "checkbox", testid: "masks" })
    );
    this.error = h("p", { class: "form-error", role: "alert", hidden: true, testid: "form-error" });
    this.submit = /** @type {HTMLButtonElement} */ (
      h(
        "button",
        { type: "submit", class: "primary wide", testid: "learn" },
        icon("learn"),
        "Learn from this video",
      )
    );
    this.others = h("div", { class: "checks" });
    this.othersField = h(
      "fieldset",
      { class: "field" },
      h("legend", {}, "Together with"),
      this.others,
    );
    this.objectsField = field("Number of objects", this.objects);
    this.outputsField = field("Number of outputs", this.outputs);
    this.form = this.build();
    this.element = this.form;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.form.addEventListener("change", () => this.showFields());
    this.showFields();
    store.follow(["open", "sources"], () => this.listOthers());
  }

  build() {
    const tasks = TASKS.map(([value, title, text]) => {
      const radio = h("input", {
        type: "radio",
        name: "task",
        value,
        checked: value === "locate",
        testid: `task-${value}`,
      });
      return h(
        "label",
        { class: "choice" },
        radio,
        h("span", {}, h("strong", {}, title), h("small", {}, text)),
      );
    });
    return /** @type {HTMLFormElement} */ (
      h(
        "form",
        { class: "learn-form", novalidate: true },
        h("fieldset", { class: "field" }, h("legend", {}, "What to learn"), ...tasks),
        h(
          "div",
          { class: "pair" },
          this.objectsField,
          this.outputsField,
          field("Name of the run", this.name),
        ),
        h(
          "details",
          { class: "more" },
          h("summary", {}, "More settings"),
          h(
            "div",
            { class: "pair" },
            field("From (m:ss)", this.start),
            field("To (m:ss)", this.end),
          ),
          h(
            "div",
            { class: "checks" },
            h("label", {}, this.watch, h("span", {}, "Learn while watching, in one pass")),
            h("label", {}, this.masks, h("span", {}, "Write masks as images")),
          ),
          this.othersField,
        ),
        this.error,
        this.submit,
      )
    );
  }

  get task() {
    return String(new FormData(this.form).get("task"));
  }

  showFields() {
    this.objectsField.hidden = this.task !== "locate";
    this.outputsField.hidden = this.task === "locate";
  }

  listOthers() {
    const { open, sources } = this.store.state;
    const chosen = new Set(this.chosenOthers());
    const list = sources.filter(
      (source) => source.id !== open.id && !source.error && source.kind !== "live",
    );
    this.othersField.hidden = !list.length;
    fill(
      this.others,
      ...list.map(({ id, name }) =>
        h(
          "label",
          {},
          h("input", { type: "checkbox", value: id, checked: chosen.has(id) }),
          h("span", {}, name),
        ),
      ),
    );
  }

  chosenOthers() {
    return [...this.others.querySelectorAll("input")]
      .filter((box) => box.checked)
      .map((box) => box.value);
  }

  /** @returns {any} What to ask the server for; throws a sentence if something typed is wrong. */
  request() {
    const { open } = this.store.state;
    const kind = this.watch.checked ? "watch" : "learn";
    /** @type {{sources: (string|null)[], kind: string, task: string, objects: number|null}} */
    const body = {
      sources: [open.id, ...this.chosenOthers()],
      kind,
      task: this.task,
      objects: null,
    };
    if (this.task === "locate") body.objects = positive(this.objects, "The number of objects");
    const outputs = this.task === "locate" ? null : positive(this.outputs, "The number of outputs");
    const start = time(this.start, "From");
    const end = time(this.end, "To");
    if (start !== null && end !== null && end <= start)
      throw new Error("The end must be later than the start.");
    return {
      ...body,
      ...(outputs === null ? {} : { outputs }),
      ...(start === null ? {} : { start }),
      ...(end === null ? {} : { end }),
      ...(this.name.value.trim() ? { name: this.name.value.trim() } : {}),
      ...(this.masks.checked ? { masks: true } : {}),
    };
  }

  async send() {
    this.show(null);
    this.submit.disabled = true;
    try {
      const run = await api.startRun(this.request());
      const { runs } = this.store.state;
      if (!runs.some((entry) => entry.id === run.id)) this.store.set({ runs: [...runs, run] });
      this.name.value = "";
      await this.session.openRun(run.id);
    } catch (error) {
      this.show(/** @type {Error} */ (error).message);
      if (!this.form.isConnected) sayError(error);
    } finally {
      this.submit.disabled = false;
    }
  }

  /** @param {string|null} message */
  show(message) {
    this.error.hidden = !message;
    this.error.textContent = message ?? "";
  }
}

/** @param {Record<string, any>} props */
function input(props) {
  return /** @type {HTMLInputElement} */ (
    h("input", { type: "text", autocomplete: "off", ...props })
  );
}

/** @param {string} label @param {HTMLElement} control */
function field(label, control) {
  return h("label", { class: "field" }, h("span", {}, label), control);
}

/** @param {HTMLInputElement} control @param {string} what @returns {number|null} */
function positive(control, what) {
  const text = control.value.trim();
  if (!text) return null;
  if (!/^[1-9]\d{0,3}$/.test(text)) throw new Error(`${what} must be a whole number from 1 on.`);
  return Number(text);
}

/** @param {HTMLInputElement} control @param {string} what @returns {number|null} */
function time(control, what) {
  if (!control.value.trim()) return null;
  const seconds = readClock(control.value);
  if (seconds === null) throw new Error(`${what}: write a time as 1:30, or seconds.`);
  return seconds;
}
