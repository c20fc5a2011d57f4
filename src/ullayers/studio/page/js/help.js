/** The overlay that lists all keys. */

import { byId, h, iconButton } from "./dom.js";

/** @param {import("./keys.js").Key[]} table @returns {() => void} Opens or closes it. */
export function buildHelp(table) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("help"));
  const groups = [...new Set(table.map(({ group }) => group))];
  dialog.append(
    h(
      "header",
      {},
      h("h2", {}, "Keyboard"),
      iconButton("close", "Close", () => dialog.close(), { testid: "help-close" }),
    ),
    h(
      "div",
      { class: "help-groups" },
      ...groups.map((group) =>
        h(
          "section",
          {},
          h("h3", {}, group),
          h(
            "dl",
            {},
            ...table
              .filter((key) => key.group === group)
              .map((key) =>
                h(
                  "div",
                  {},
                  h(
                    "dt",
                    {},
                    ...key.shown
                      .split(" ")
                      .map((part) => (part === "–" ? " – " : h("kbd", {}, part))),
                  ),
                  h("dd", {}, key.text),
                ),
              ),
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "note" },
      "Wheel or pinch zooms the picture, drag pans it, and shift and the wheel step through frames. In the time lines, the wheel zooms, a drag moves in time, and shift and a drag mark a range.",
    ),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside the text
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "?") {
      event.preventDefault();
      event.stopPropagation(); // else the page, which has no open dialog then, opens it again
      dialog.close();
    }
  });
  return () => (dialog.open ? dialog.close() : dialog.showModal());
}
