/** The line above the picture: what is open, which parts are drawn, zoom, and what it is compared with. */

import { fill, h, icon, iconButton, setText } from "./dom.js";
import { isAtWork } from "./store.js";

/** @type {[keyof import("./store.js").State["layers"], string, string][]} */
const LAYERS = [
  ["outlines", "Outlines", "l"],
  ["centroids", "Centroids", "p"],
  ["trails", "Trails", "t"],
  ["names", "Names", "n"],
];

/**
 * @param {Element} root
 * @param {import("./store.js").Store} store
 * @param {import("./session.js").Session} session
 * @param {import("./viewport.js").Viewport} viewport
 */
export function buildViewbar(root, store, session, viewport) {
  const title = h("h2", { class: "view-title", testid: "title" });
  const sequences = /** @type {HTMLSelectElement} */ (
    h("select", { "aria-label": "Sequence", class: "quiet-select", testid: "sequence" })
  );
  sequences.addEventListener("change", () => session.openSequence(sequences.value));
  const live = h(
    "button",
    {
      type: "button",
      class: "live-pill",
      testid: "live",
      onclick: () => store.set({ follow: true }),
    },
    h("span", { class: "pulse", "aria-hidden": "true" }),
    "Live",
  );
  const layers = layerMenu(store);
  const compare = compareSelect(store, session);
  const zoom = h("button", {
    type: "button",
    class: "quiet numeric zoom",
    title: "Fit (0)",
    "aria-label": "Zoom; press to fit",
    onclick: () => viewport.fit(),
    testid: "zoom",
  });
  root.append(
    title,
    sequences,
    live,
    h("span", { class: "spacer" }),
    compare,
    layers,
    h(
      "div",
      { class: "group" },
      iconButton("minus", "Zoom out (-)", () => viewport.zoomAt(1 / 1.5), { class: "wide-only" }),
      zoom,
      iconButton("plus", "Zoom in (+)", () => viewport.zoomAt(1.5), { class: "wide-only" }),
    ),
  );
  const showZoom = () => {
    setText(zoom, `${Math.round(100 * viewport.zoom)} %`);
    zoom.setAttribute("aria-label", `${zoom.textContent} zoom; press to fit`);
  };
  viewport.addEventListener("change", showZoom);
  showZoom();

  store.follow(["open", "runs", "sources", "details", "sequence", "follow", "live"], () => {
    const run = store.openRun;
    const { open, details, sequence, follow } = store.state;
    root.toggleAttribute("hidden", open.kind === "none");
    setText(title, open.kind === "camera" ? "Camera" : (run?.name ?? store.openSource?.name ?? ""));
    const names = details?.sequences.map((entry) => entry.name) ?? [];
    sequences.hidden = names.length < 2;
    if (names.join("\n") !== [...sequences.options].map((option) => option.value).join("\n")) {
      fill(sequences, ...names.map((name) => h("option", { value: name }, name)));
    }
    if (sequence) sequences.value = sequence;
    live.hidden = !run || !isAtWork(run) || !store.state.live?.preview;
    live.setAttribute("aria-pressed", String(follow));
    live.title = follow ? "The picture follows the run" : "Follow the run again";
  });
}

/** @param {import("./store.js").Store} store @param {keyof import("./store.js").State["layers"]} name */
export function toggleLayer(store, name) {
  store.set({ layers: { ...store.state.layers, [name]: !store.state.layers[name] } });
}

/** @param {import("./store.js").Store} store */
function layerMenu(store) {
  const boxes = LAYERS.map(([name, label, key]) => {
    const box = /** @type {HTMLInputElement} */ (
      h("input", { type: "checkbox", testid: `layer-${name}` })
    );
    box.addEventListener("change", () => toggleLayer(store, name));
    store.follow(["layers"], () => (box.checked = store.state.layers[name]));
    return h("label", {}, box, h("span", {}, label), h("kbd", {}, key));
  });
  const menu = h(
    "details",
    { class: "menu" },
    h(
      "summary",
      { class: "quiet", title: "What is drawn" },
      icon("eye"),
      h("span", { class: "wide-only" }, "Show"),
    ),
    h("div", { class: "menu-body", role: "group", "aria-label": "What is drawn" }, ...boxes),
  );
  closeOutside(/** @type {HTMLDetailsElement} */ (menu));
  return menu;
}

/** A menu closes when something else is clicked, and with Escape. @param {HTMLDetailsElement} menu */
function closeOutside(menu) {
  addEventListener("pointerdown", (event) => {
    if (menu.open && !menu.contains(/** @type {Node} */ (event.target))) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    /** @type {HTMLElement} */ (menu.firstElementChild).focus();
    event.stopPropagation();
  });
}

/** @param {import("./store.js").Store} store @param {import("./session.js").Session} session */
function compareSelect(store, session) {
  const select = /** @type {HTMLSelectElement} */ (
    h("select", {
      class: "quiet-select compare",
      "aria-label": "Compare with",
      title: "Compare with another run (v)",
      testid: "compare",
    })
  );
  select.addEventListener("change", () => session.compare(select.value || null));
  store.follow(["runs", "open", "other", "results"], () => {
    const { runs, open, other, results } = store.state;
    const sources = store.openRun?.sources ?? [];
    const near = (/** @type {import("./store.js").Run} */ run) =>
      run.sources.some((id) => sources.includes(id)) ? 0 : 1;
    const choices = runs
      .filter((run) => run.state === "done" && run.id !== open.id)
      .sort((a, b) => near(a) - near(b) || b.created - a.created);
    select.hidden = !results || !choices.length;
    fill(
      select,
      h("option", { value: "" }, other ? "Compare: off" : "Compare"),
      ...choices.map((run) => h("option", { value: run.id }, run.name)),
    );
    select.value = other?.run.id ?? "";
  });
  return select;
}
