/** Tabs of the inspector, as WAI-ARIA describes them: arrows move, the open tab has the focus. */

import { h, icon } from "../dom.js";

/**
 * @param {Element} root
 * @param {import("../store.js").Store} store
 * @param {{id: string, label: string, icon: any, panel: HTMLElement}[]} tabs
 */
export function buildTabs(root, store, tabs) {
  const buttons = tabs.map(({ id, label, icon: name, panel }) => {
    panel.id = `panel-${id}`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", `tab-${id}`);
    panel.tabIndex = 0;
    panel.classList.add("panel");
    return h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${id}`,
        "aria-controls": panel.id,
        testid: `tab-${id}`,
        onclick: () => store.set({ tab: id }),
      },
      icon(name),
      label,
    );
  });
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": "Inspector" }, ...buttons);
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const now = tabs.findIndex(({ id }) => id === store.state.tab);
    const next = (now + step + tabs.length) % tabs.length;
    store.set({ tab: tabs[next].id });
    buttons[next].focus();
  });
  root.append(list, ...tabs.map(({ panel }) => panel));
  store.follow(["tab"], () => {
    tabs.forEach(({ id, panel }, place) => {
      const open = id === store.state.tab;
      panel.hidden = !open;
      buttons[place].setAttribute("aria-selected", String(open));
      buttons[place].tabIndex = open ? 0 : -1;
    });
  });
}
