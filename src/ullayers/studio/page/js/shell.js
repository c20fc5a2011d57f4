/**
 * The frame of the page: its theme, side panels that can be hidden, the tabs of the inspector and
 * of a phone, the title, and the banner of a lost connection.
 */

import { button, byId, h, setIcon, setText } from "./dom.js";
import { percent } from "./format.js";

/** @import {IconName} from "./dom.js" */
/** @import {Store} from "./store.js" */

const THEME = "ul-studio-theme"; // where the choice is kept

/** @type {[string, string, IconName][]} */
const PANELS = [
  ["library", "Library", "film"],
  ["time", "Time", "chart"],
  ["watch", "Learn", "learn"],
  ["objects", "Objects", "objects"],
  ["export", "Export", "download"],
];

/** @param {Store} store */
export function buildShell(store) {
  addToggle("library", "panelLeft");
  addToggle("inspector", "panelRight");
  addThemeSwitch(byId("theme"));
  const buttons = PANELS.map(([id, label, name]) =>
    button(label, () => showPanel(store, id), {
      icon: name,
      testid: `panel-${id}`,
      "data-panel": id,
    }),
  );
  byId("bottom").append(...buttons);
  showPanel(store, "library");
  store.follow(["open", "sources", "runs"], () => {
    const { open, sources, runs } = store.state;
    // There is no time to move in yet.
    document.body.classList.toggle("no-player", open.kind === "none" || open.kind === "camera");
    if (open.kind !== "none") delete document.body.dataset.empty;
    else document.body.dataset.empty = sources.length || runs.length ? "listed" : "blank";
    // The title of the browser's tab says how far a run is.
    const run = store.openRun;
    const share = run?.state === "running" && run.total ? percent(run.done / run.total) : "";
    const name = run?.name ?? store.openSource?.name ?? "";
    document.title = [share, name, "ullayers studio"].filter(Boolean).join(" · ");
  });
  const banner = byId("banner");
  store.follow(["connection"], () => {
    banner.hidden = store.state.connection !== "lost";
    setText(banner, banner.hidden ? "" : "Connection lost, trying again");
  });
}

/** A button that hides and shows a side panel. @param {string} name @param {IconName} iconName */
function addToggle(name, iconName) {
  const toggle = byId(`toggle-${name}`);
  const show = () => {
    const away = document.body.classList.contains(`no-${name}`);
    toggle.setAttribute("aria-pressed", String(!away));
    setIcon(toggle, iconName, `${away ? "Show" : "Hide"} the ${name}`);
  };
  toggle.addEventListener("click", () => {
    document.body.classList.toggle(`no-${name}`);
    show();
  });
  show();
}

/** Light or dark: as the computer has it, or as chosen here. @param {HTMLElement} control */
function addThemeSwitch(control) {
  const { dataset } = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (dataset.theme ? dataset.theme === "dark" : system.matches);
  const show = () => {
    if (isDark()) setIcon(control, "sun", "Use the light theme");
    else setIcon(control, "moon", "Use the dark theme");
    // Canvases read their colours when they draw.
    dispatchEvent(new Event("themechange"));
  };
  const chosen = storage((kept) => kept.getItem(THEME));
  if (chosen === "dark" || chosen === "light") dataset.theme = chosen;
  control.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    dataset.theme = next;
    storage((kept) => kept.setItem(THEME, next)); // else the choice lasts until the page is closed
    show();
  });
  system.addEventListener("change", show);
  show();
}

/** Null if keeping things is forbidden. @template T @param {(kept: Storage) => T} use */
function storage(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}

/** @param {Store} store @param {string} id */
export function showPanel(store, id) {
  document.body.dataset.panel = id;
  if (id !== "library" && id !== "time") store.set({ tab: id });
  for (const control of byId("bottom").querySelectorAll("button")) {
    if (control.dataset.panel === id) control.setAttribute("aria-current", "true");
    else control.removeAttribute("aria-current");
  }
}

/**
 * Tabs of the inspector, as WAI-ARIA describes them: arrows move, the open tab has the focus.
 *
 * @param {Element} root
 * @param {Store} store
 * @param {Record<string, HTMLElement>} panels By their ids.
 */
export function buildTabs(root, store, panels) {
  const tabs = PANELS.filter(([id]) => id in panels).map(([id, label, name]) => {
    const panel = panels[id];
    panel.id = `panel-${id}`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", `tab-${id}`);
    panel.tabIndex = 0;
    panel.classList.add("panel");
    const control = button(label, () => store.set({ tab: id }), {
      icon: name,
      role: "tab",
      id: `tab-${id}`,
      "aria-controls": panel.id,
      testid: `tab-${id}`,
    });
    return { id, panel, control };
  });
  const list = h(
    "div.tabs",
    { role: "tablist", "aria-label": "Inspector" },
    tabs.map(({ control }) => control),
  );
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const now = tabs.findIndex(({ id }) => id === store.state.tab);
    const next = tabs[(now + step + tabs.length) % tabs.length];
    store.set({ tab: next.id });
    next.control.focus();
  });
  root.append(list, ...tabs.map(({ panel }) => panel));
  store.follow(["tab"], () => {
    for (const { id, panel, control } of tabs) {
      const open = id === store.state.tab;
      panel.hidden = !open;
      control.setAttribute("aria-selected", String(open));
      control.tabIndex = open ? 0 : -1;
    }
  });
}
