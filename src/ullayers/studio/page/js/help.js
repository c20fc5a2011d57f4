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
      "In the picture, the wheel or a pinch zooms, dragging pans, and shift with the wheel steps through frames. In the time lines, the wheel zooms, dragging moves in time, and dragging with shift marks a range.",
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
