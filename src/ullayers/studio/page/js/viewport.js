/** Which part of the picture is seen: shared by all viewers, so that compared runs move together. */

const LARGEST = 32;

export class Viewport extends EventTarget {
  constructor() {
    super();
    this.zoom = 1; // 1 shows the whole picture
    this.x = 0.5; // centre of the view, in 0..1 of the picture
    this.y = 0.5;
  }

  fit() {
    this.set(1, 0.5, 0.5);
  }

  /** @param {number} zoom @param {number} x @param {number} y */
  set(zoom, x, y) {
    this.zoom = Math.min(LARGEST, Math.max(1, zoom));
    // The view never leaves the picture.
    const margin = 0.5 / this.zoom;
    this.x = Math.min(1 - margin, Math.max(margin, x));
    this.y = Math.min(1 - margin, Math.max(margin, y));
    this.dispatchEvent(new Event("change"));
  }

  /**
   * Zoom so that a point of the picture stays where it is on the screen.
   *
   * @param {number} factor
   * @param {number} x In 0..1 of the picture.
   * @param {number} y
   */
  zoomAt(factor, x = this.x, y = this.y) {
    const zoom = Math.min(LARGEST, Math.max(1, this.zoom * factor));
    const share = this.zoom / zoom;
    this.set(zoom, x + (this.x - x) * share, y + (this.y - y) * share);
  }

  /**
   * How pixels of a video are placed on a canvas.
   *
   * @param {number} width Of the video.
   * @param {number} height
   * @param {number} canvasWidth
   * @param {number} canvasHeight
   * @returns {{scale: number, left: number, top: number}}
   */
  place(width, height, canvasWidth, canvasHeight) {
    const scale = this.zoom * Math.min(canvasWidth / width, canvasHeight / height);
    return {
      scale,
      left: canvasWidth / 2 - scale * width * this.x,
      top: canvasHeight / 2 - scale * height * this.y,
    };
  }
}
