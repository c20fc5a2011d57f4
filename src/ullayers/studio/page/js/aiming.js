/** Moving an object with the keyboard: arrows move a cross, Enter puts the object there. */

/**
 * @param {import("./store.js").Store} store
 * @param {import("./stage.js").Stage} stage
 * @param {import("./corrections.js").Corrector} corrector
 * @param {import("./session.js").Session} session
 */
export function addAiming(store, stage, corrector, session) {
  store.follow(["moving", "picked"], () => {
    const places = session.placesHere();
    const place = places.find(({ object }) => object === store.state.picked[0]) ?? places[0];
    const scene = stage.main.scene;
    if (!store.state.moving || !scene) stage.aim = null;
    else
      stage.aim = place ? { x: place.x, y: place.y } : { x: scene.width / 2, y: scene.height / 2 };
    stage.redraw();
  });
  addEventListener(
    "keydown",
    (event) => {
      const { aim } = stage;
      const scene = stage.main.scene;
      if (
        !aim ||
        !scene ||
        event.ctrlKey ||
        event.altKey ||
        event.metaKey ||
        event.target instanceof HTMLInputElement
      )
        return;
      const step = event.shiftKey ? 10 : 1;
      /** @type {Record<string, [number, number]>} */
      const moves = {
        ArrowLeft: [-step, 0],
        ArrowRight: [step, 0],
        ArrowUp: [0, -step],
        ArrowDown: [0, step],
      };
      if (moves[event.key]) {
        aim.x = Math.min(scene.width - 1, Math.max(0, aim.x + moves[event.key][0]));
        aim.y = Math.min(scene.height - 1, Math.max(0, aim.y + moves[event.key][1]));
        stage.redraw();
      } else if (event.key === "Enter") corrector.move(aim.x, aim.y);
      else return;
      event.preventDefault();
      event.stopPropagation(); // the arrows do not move in time now
    },
    { capture: true },
  );
}
