/** The frame of the page: side panels that can be hidden, and the tabs at the bottom of a phone. */

import { byId, h, icon } from "./dom.js";
import { percent } from "./format.js";

/** @type {[string, string, keyof typeof import("./icons.js").ICONS][]} */
const PANELS = [
  ["library", "Library", "film"],
  ["time", "Time", "chart"],
  ["watch", "Learn", "learn"],
  ["objects", "Objects", "objects"],
  ["export", "Export", "download"],
];

/** @param {import("./store.js").Store} store */
export function buildShell(store) {
  for (const [name, icons] of /** @type {const} */ ([
    ["library", "panelLeft"],
    ["inspector", "panelRight"],
  ])) {
    const button = byId(`toggle-${name}`);
    button.append(icon(icons));
    const show = () => {
      const away = document.body.classList.contains(`no-${name}`);
      button.setAttribute("aria-pressed", String(!away));
      button.setAttribute("aria-label", `${away ? "Show" : "Hide"} the ${name}`);
      button.title = `${away ? "Show" : "Hide"} the ${name}`;
    };
    button.addEventListener("click", () => {
      document.body.classList.toggle(`no-${name}`);
      show();
    });
    show();
  }
  const buttons = PANELS.map(([id, label, name]) =>
    h(
      "button",
      {
        type: "button",
        onclick: () => showPanel(store, id),
        testid: `panel-${id}`,
        "data-panel": id,
      },
      icon(name),
      label,
    ),
  );
  byId("bottom").append(...buttons);
  showPanel(store, "library");
  store.follow(["open", "sources", "runs"], () => {
    const { open, sources, runs } = store.state;
    // There is no time to move in yet.
    document.body.classList.toggle("no-player", open.kind === "none" || open.kind === "camera");
    if (open.kind !== "none") delete document.body.dataset.empty;
    else document.body.dataset.empty = sources.length || runs.length ? "listed" : "blank";
  });
}

/** The title of the browser's tab says how far a run is. @param {import("./store.js").Store} store */
export function followTitle(store) {
  store.follow(["open", "runs", "sources"], () => {
    const run = store.openRun;
    const share = run?.state === "running" && run.total ? percent(run.done / run.total) : "";
    const name = run?.name ?? store.openSource?.name ?? "";
    document.title = [share, name, "ullayers studio"].filter(Boolean).join(" · ");
  });
}

/** @param {import("./store.js").Store} store @param {string} id */
export function showPanel(store, id) {
  document.body.dataset.panel = id;
  if (id !== "library" && id !== "time") store.set({ tab: id });
  for (const button of byId("bottom").children) {
    if (/** @type {HTMLElement} */ (button).dataset.panel === id)
      button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}
