/** Play, step, speed, frame number and time; the marked range, and jumps to what needs a look. */

import { h, icon, iconButton, setText } from "./dom.js";
import { clock, whole } from "./format.js";
import { SPEEDS } from "./playhead.js";
import { timeOf } from "./results.js";

/**
 * @param {Element} root
 * @param {import("./store.js").Store} store
 * @param {import("./playhead.js").Playhead} playhead
 * @param {import("./session.js").Session} session
 */
export function buildTransport(root, store, playhead, session) {
  const play = iconButton("play", "Play (space)", () => playhead.toggle(), {
    testid: "play",
    class: "play",
  });
  const back = iconButton("stepBack", "One frame back (left arrow)", () => playhead.step(-1), {
    testid: "step-back",
  });
  const forward = iconButton(
    "stepForward",
    "One frame forward (right arrow)",
    () => playhead.step(1),
    { testid: "step-forward" },
  );
  const input = frameInput(playhead);
  const total = h("span", { class: "soft numeric", testid: "frame-total" });
  const time = h("span", { class: "numeric", testid: "time" });
  const end = h("span", { class: "numeric roomy" });
  const speed = speedSelect(playhead);
  const doubts = jumpButton("doubt", "uncertain stretch", "u", (direction) =>
    session.jumpUnsure(direction),
  );
  const crossings = jumpButton("crossing", "crossing", "c", (direction) =>
    session.jumpCrossing(direction),
  );
  const range = rangeChip(store);
  root.append(
    h("div", { class: "group" }, back, play, forward),
    h(
      "label",
      { class: "group frame-field" },
      h("span", { class: "soft roomy" }, "Frame"),
      input,
      total,
    ),
    h("span", { class: "time" }, time, " ", end),
    h("span", { class: "spacer" }),
    range,
    h("div", { class: "group" }, doubts.element, crossings.element),
    speed,
  );

  const place = () => {
    if (document.activeElement !== input) input.value = String(playhead.frame);
    const { results } = store.state;
    const usable = playhead.last > playhead.first;
    setText(time, usable ? clock(timeOf(results, playhead.frame, playhead.fps)) : "");
    setText(end, usable ? `/ ${clock(timeOf(results, playhead.last, playhead.fps))}` : "");
  };
  const rangeChanged = () => {
    input.min = String(playhead.first);
    input.max = String(playhead.last);
    const usable = playhead.last > playhead.first;
    setText(total, usable ? `/ ${whole(playhead.last)}` : "");
    for (const node of [play, back, forward, input, speed])
      node.toggleAttribute("disabled", !usable);
    place();
  };
  playhead.addEventListener("frame", place);
  playhead.addEventListener("range", rangeChanged);
  playhead.addEventListener("playing", () => {
    play.replaceChildren(icon(playhead.playing ? "pause" : "play"));
    play.setAttribute("aria-label", playhead.playing ? "Pause (space)" : "Play (space)");
    play.title = playhead.playing ? "Pause (space)" : "Play (space)";
    speed.value = String(playhead.speed);
  });
  store.follow(["arrived"], place);
  store.follow(["results"], () => {
    const { results } = store.state;
    doubts.show(results?.kind === "tracks" ? results.unsure.length : null);
    crossings.show(
      results?.kind === "tracks" && results.objects.length > 1 ? results.crossings.length : null,
    );
    rangeChanged();
  });
}

/** @param {import("./playhead.js").Playhead} playhead */
function frameInput(playhead) {
  const input = /** @type {HTMLInputElement} */ (
    h("input", {
      type: "number",
      inputmode: "numeric",
      step: "1",
      "aria-label": "Frame number",
      testid: "frame-input",
    })
  );
  const go = () => {
    if (input.value !== "" && Number.isFinite(input.valueAsNumber)) {
      playhead.pause();
      playhead.seek(input.valueAsNumber);
    }
    input.value = String(playhead.frame);
  };
  input.addEventListener("change", go);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      go();
      input.blur();
    }
    if (event.key === "Escape") {
      input.value = String(playhead.frame);
      input.blur();
    }
  });
  return input;
}

/** @param {import("./playhead.js").Playhead} playhead */
function speedSelect(playhead) {
  const select = /** @type {HTMLSelectElement} */ (
    h(
      "select",
      {
        "aria-label": "Speed",
        title: "Speed (, slower, . faster)",
        testid: "speed",
        class: "speed",
      },
      ...SPEEDS.map((value) => h("option", { value, selected: value === 1 }, `${value}×`)),
    )
  );
  select.addEventListener("change", () => playhead.setSpeed(Number(select.value)));
  return select;
}

/**
 * @param {"doubt"|"crossing"} name
 * @param {string} what
 * @param {string} key
 * @param {(direction: 1|-1) => void} jump
 */
function jumpButton(name, what, key, jump) {
  const count = h("span", { class: "count numeric" });
  const element = h(
    "button",
    {
      type: "button",
      class: `quiet jump ${name}`,
      title: `Next ${what} (${key}); with shift, the previous one`,
      testid: `next-${name}`,
    },
    icon(name),
    count,
  );
  element.addEventListener("click", (event) => jump(event.shiftKey ? -1 : 1));
  return {
    element,
    /** @param {number|null} number */
    show(number) {
      element.hidden = number === null;
      element.toggleAttribute("disabled", !number);
      setText(count, number === null ? "" : whole(number));
      element.setAttribute("aria-label", `${count.textContent}: go to the next ${what} (${key})`);
    },
  };
}

/** @param {import("./store.js").Store} store */
function rangeChip(store) {
  const text = h("span", { class: "numeric" });
  const chip = h(
    "span",
    { class: "chip", hidden: true, testid: "range" },
    text,
    iconButton("close", "Clear the marked range (x)", () => store.set({ range: null }), {
      class: "tiny",
    }),
  );
  store.follow(["range"], () => {
    const { range } = store.state;
    chip.hidden = !range;
    setText(text, range ? `${range[0]}–${range[1]}` : "");
  });
  return chip;
}
