/** Sending files: by the button, or dropped anywhere on the page. */

import { upload } from "./api.js";
import { byId } from "./dom.js";
import { fileSize } from "./format.js";
import { say } from "./notices.js";

export class Uploads {
  /**
   * @param {import("./store.js").Store} store
   * @param {(source: import("./store.js").Source) => void} ondone
   */
  constructor(store, ondone) {
    this.store = store;
    this.ondone = ondone;
    this.count = 0;
    this.input = /** @type {HTMLInputElement} */ (byId("file-input"));
    this.input.addEventListener("change", () => {
      this.send([...(this.input.files ?? [])]);
      this.input.value = ""; // so that the same file can be chosen again
    });
    this.addDropping();
    addEventListener("beforeunload", (event) => {
      if (this.store.state.uploads.some((entry) => !entry.error)) event.preventDefault();
    });
  }

  choose() {
    this.input.click();
  }

  addDropping() {
    let depth = 0; // enter and leave come for every element below the pointer
    const veil = byId("drop-veil");
    const files = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
    const show = (/** @type {number} */ change) => {
      depth = Math.max(0, depth + change);
      veil.hidden = depth === 0;
    };
    addEventListener("dragenter", (event) => files(event) && (event.preventDefault(), show(1)));
    addEventListener("dragover", (event) => files(event) && event.preventDefault());
    addEventListener("dragleave", (event) => files(event) && show(-1));
    addEventListener("drop", (event) => {
      if (!files(event)) return;
      event.preventDefault();
      show(-depth);
      this.send([...(event.dataTransfer?.files ?? [])]);
    });
  }

  /** One after the other: together they would only be slower. @param {File[]} files */
  async send(files) {
    const entries = files.map((file) => this.enter(file));
    for (const [place, file] of files.entries()) {
      if (!this.store.state.uploads.find((entry) => entry.key === entries[place])?.error) {
        await this.sendOne(file, entries[place]);
      }
    }
  }

  /** @param {File} file */
  enter(file) {
    const key = (this.count += 1);
    const limit = this.store.state.uploadLimit;
    const error = file.size > limit ? `${file.name} is larger than ${fileSize(limit)}.` : null;
    const entry = { key, name: file.name, share: 0, error, cancel: () => this.remove(key) };
    this.store.set({ uploads: [...this.store.state.uploads, entry] });
    return key;
  }

  /** @param {File} file @param {number} key */
  async sendOne(file, key) {
    if (!this.store.state.uploads.some((entry) => entry.key === key)) return; // cancelled while it waited
    const { done, cancel } = upload(file, (share) => this.change(key, { share }));
    this.change(key, { cancel: () => (cancel(), this.remove(key)) });
    try {
      const source = await done;
      this.remove(key);
      this.ondone(source);
    } catch (error) {
      const message = /** @type {Error} */ (error).message;
      if (message === "Cancelled.") return;
      const reason = message.replace(`${file.name}: `, ""); // the list has the name already
      this.change(key, { error: reason, cancel: () => this.remove(key) });
      say(message);
    }
  }

  /** @param {number} key @param {Partial<import("./store.js").State["uploads"][0]>} patch */
  change(key, patch) {
    this.store.set({
      uploads: this.store.state.uploads.map((entry) =>
        entry.key === key ? { ...entry, ...patch } : entry,
      ),
    });
  }

  /** @param {number} key */
  remove(key) {
    this.store.set({ uploads: this.store.state.uploads.filter((entry) => entry.key !== key) });
  }
}
