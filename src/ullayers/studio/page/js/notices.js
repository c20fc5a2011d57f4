/** Short messages, the banner of a lost connection, and questions before something is deleted. */

import { byId, h, iconButton, setText } from "./dom.js";

const STAY = 4500; // ms

/**
 * Say one sentence in a corner of the page, for a few seconds.
 *
 * @param {string} text
 * @param {{label: string, run: () => void}|null} [action]
 */
export function say(text, action = null) {
  const root = byId("toasts");
  for (const old of root.children) if (old.firstChild?.textContent === text) old.remove();
  const toast = h(
    "div",
    { class: "toast", testid: "toast" },
    h("span", {}, text),
    action &&
      h(
        "button",
        { type: "button", class: "link", onclick: () => (action.run(), toast.remove()) },
        action.label,
      ),
    iconButton("close", "Close this message", () => toast.remove(), { class: "tiny" }),
  );
  root.append(toast);
  while (root.children.length > 4) root.firstChild?.remove();
  let timer = window.setTimeout(() => toast.remove(), STAY);
  // It stays while the pointer or the focus is on it.
  for (const [enter, leave] of [
    ["pointerenter", "pointerleave"],
    ["focusin", "focusout"],
  ]) {
    toast.addEventListener(enter, () => clearTimeout(timer));
    toast.addEventListener(leave, () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => toast.remove(), STAY);
    });
  }
}

/** @param {unknown} error */
export function sayError(error) {
  say(error instanceof Error ? error.message : String(error));
}

/** @param {import("./store.js").Store} store */
export function followConnection(store) {
  const banner = byId("banner");
  store.follow(["connection"], () => {
    const lost = store.state.connection === "lost";
    banner.hidden = !lost;
    setText(banner, lost ? "Connection lost, trying again" : "");
  });
}

/**
 * Ask before something is lost.
 *
 * @param {string} question
 * @param {string} detail
 * @param {string} label Of the button that does it.
 * @returns {Promise<boolean>}
 */
export function ask(question, detail, label) {
  return new Promise((resolve) => {
    const no = h(
      "button",
      { type: "submit", value: "no", class: "plain", testid: "dialog-no" },
      "Cancel",
    );
    const yes = h(
      "button",
      { type: "submit", value: "yes", class: "danger", testid: "dialog-yes" },
      label,
    );
    const dialog = /** @type {HTMLDialogElement} */ (
      h(
        "dialog",
        { class: "question", "aria-labelledby": "question-title" },
        h(
          "form",
          { method: "dialog" },
          h("h2", { id: "question-title" }, question),
          h("p", {}, detail),
          h("div", { class: "buttons" }, no, yes),
        ),
      )
    );
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
    no.focus();
  });
}
