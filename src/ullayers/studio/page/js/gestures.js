/** Pointer and wheel on a picture: drag to pan, wheel or pinch to zoom, click to pick. */

const CLICK = 5; // CSS pixels that a pointer may move in a click

/**
 * @param {import("./viewer.js").Viewer} viewer
 * @param {{onclick: (x: number, y: number, scale: number, event: PointerEvent) => void,
 *     onstep: (count: number) => void}} handlers
 */
export function addGestures(viewer, { onclick, onstep }) {
  const { canvas, viewport } = viewer;
  /** @type {Map<number, {x: number, y: number}>} */
  const pointers = new Map();
  let travelled = 0;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1) return;
    canvas.setPointerCapture(event.pointerId);
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  });

  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const dx = event.clientX - before.x;
    const dy = event.clientY - before.y;
    travelled += Math.hypot(dx, dy);
    if (pointers.size === 2) pinch(event, before);
    else if (travelled > CLICK) pan(dx, dy);
    pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  });

  canvas.addEventListener("pointerup", (event) => {
    const alone = pointers.size === 1;
    if (!pointers.delete(event.pointerId) || !alone || travelled > CLICK) return;
    const { x, y, scale } = viewer.pixelAt(event.clientX, event.clientY);
    onclick(x, y, scale, event);
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("dblclick", () => viewport.fit());

  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      if (event.shiftKey) {
        // With shift, browsers report a wheel as moving sideways.
        onstep(Math.sign(event.deltaY || event.deltaX));
        return;
      }
      zoomUnder(
        event.clientX,
        event.clientY,
        Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)),
      );
    },
    { passive: false },
  );

  /** @param {number} dx @param {number} dy */
  function pan(dx, dy) {
    if (!viewer.scene || viewport.zoom === 1) return;
    const { scale } = viewer.placement();
    viewport.set(
      viewport.zoom,
      viewport.x - dx / (scale * viewer.scene.width),
      viewport.y - dy / (scale * viewer.scene.height),
    );
  }

  /** @param {PointerEvent} event @param {{x: number, y: number}} before */
  function pinch(event, before) {
    const [other] = [...pointers]
      .filter(([id]) => id !== event.pointerId)
      .map(([, point]) => point);
    const old = Math.hypot(before.x - other.x, before.y - other.y);
    const now = Math.hypot(event.clientX - other.x, event.clientY - other.y);
    if (old > 0) zoomUnder((event.clientX + other.x) / 2, (event.clientY + other.y) / 2, now / old);
    pan((event.clientX - before.x) / 2, (event.clientY - before.y) / 2);
  }

  /** @param {number} clientX @param {number} clientY @param {number} factor */
  function zoomUnder(clientX, clientY, factor) {
    if (!viewer.scene) return;
    const { x, y } = viewer.pixelAt(clientX, clientY);
    viewport.zoomAt(factor, x / viewer.scene.width, y / viewer.scene.height);
  }
}
