/** Light or dark: as the computer has it, or as chosen here. */

import { icon } from "./dom.js";

const KEY = "ul-studio-theme";

/** @param {HTMLElement} button */
export function addThemeSwitch(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => {
    const dark = isDark();
    const label = dark ? "Use the light theme" : "Use the dark theme";
    button.replaceChildren(icon(dark ? "sun" : "moon"));
    button.setAttribute("aria-label", label);
    button.title = label;
    // Canvases read their colours when they draw.
    dispatchEvent(new Event("themechange"));
  };
  const chosen = read();
  if (chosen) document.documentElement.dataset.theme = chosen;
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    write(next);
    show();
  });
  system.addEventListener("change", show);
  show();
}

function read() {
  try {
    const value = localStorage.getItem(KEY);
    return value === "dark" || value === "light" ? value : null;
  } catch {
    return null; // storage may be forbidden
  }
}

/** @param {string} value */
function write(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // The choice then lasts until the page is closed.
  }
}
