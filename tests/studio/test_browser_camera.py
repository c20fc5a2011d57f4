"""The camera of the browser, which shows a file here: learned from live, then kept."""

from __future__ import annotations

import re

import numpy as np

from tests.studio.browser import OpenTab, Server
from ullayers.tracks.masks import identity_colour

# Distance of what is drawn from the red ball, in radii of the ball; null if one is missing.
OFFSET = """(colour) => {
  const canvas = document.querySelector("[data-testid=camera-picture]");
  const {width, height} = canvas;
  const context = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  const {data} = context.getImageData(0, 0, width, height);
  const ball = [0, 0, 0], drawn = [0, 0, 0]; // pixels, sums of x and y
  for (let i = 0; i < data.length; i += 4) {
    const [red, green, blue] = [data[i], data[i + 1], data[i + 2]];
    const away = [red, green, blue].map((value, place) => Math.abs(value - colour[place]));
    const sums = Math.max(...away) < 20 ? drawn
      : red > 180 && green < 90 && blue < 90 ? ball : null;
    if (!sums) continue;
    sums[0] += 1;
    sums[1] += (i / 4) % width;
    sums[2] += Math.floor(i / 4 / width);
  }
  const [across, down] = [1, 2].map((axis) => ball[axis] / ball[0] - drawn[axis] / drawn[0]);
  return ball[0] && drawn[0] ? Math.hypot(across, down) / Math.sqrt(ball[0] / Math.PI) : null;
}"""


def test_the_camera_is_learned_from_and_kept(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    tab.part("camera").click()
    tab.wait("ulStudio.camera")
    tab.press("t")  # no trail, which is drawn in the same colour
    tab.wait("document.querySelector('.camera-numbers')?.textContent.includes('learning')")
    tab.wait("ulStudio.cameraFrames > 40")  # until then, an object may be uncertain
    offsets = []
    for _ in range(20):
        tab.page.wait_for_timeout(100)
        assert re.match(r"\d+ ms", tab.part("camera-numbers").inner_text())
        offsets.append(tab.get(OFFSET, identity_colour(1)))
    found = [value for value in offsets if value is not None]
    assert len(found) > 0.8 * len(offsets)
    assert np.median(found) < 1  # it is on the ball

    tab.part("camera-stop").click()
    tab.wait("ulStudio.open.kind === 'run' && ulStudio.objects.length === 1 && ulStudio.ready")
    assert not tab.studio("camera")
    assert tab.studio("shown") is not None  # the recording is there to look at
    assert len(list((gallery.folder / "recordings").glob("*.mp4"))) == 1
    formats = tab.part("format").locator("option").all_inner_texts()
    assert not any("Report" in text for text in formats)  # its network has no learning curve
    tab.part("tab-export").click()
    tab.part("export").click()
    tab.part("exports").locator("a[download]").first.wait_for()
