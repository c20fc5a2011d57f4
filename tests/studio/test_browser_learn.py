"""Learning in a real browser: watched, reloaded, and with a server that is killed in between."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.command import lines_of
from tests.studio.browser import PATIENCE, OpenTab, Server, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Route

STEPS = 6  # of training, instead of 240
SECONDS = "2"  # of the demo that are learned from
REACH = 12.0  # pixels: half of the length of the beetle
LOST = ("net::ERR_", "WebSocket connection")  # while there is no server

# Where the page draws a layer (by its key), in pixels of the video: the middle of the pixels that
# change when the layer is switched off. Other layers are switched off meanwhile.
DRAWN = """async (layer) => {
  const canvas = document.querySelector("[data-testid=picture]");
  const {width, height} = canvas;
  const context = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  const press = async (...keys) => {
    for (const key of keys) dispatchEvent(new KeyboardEvent("keydown", {key}));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  };
  const grab = () => {
    context.drawImage(canvas, 0, 0);
    return context.getImageData(0, 0, width, height).data;
  };
  const others = ["l", "p", "t", "n"].filter((key) => key !== layer);
  await press(...others);
  const [frame, before] = [ulStudio.shown, grab()];
  await press(layer);
  const [same, after] = [ulStudio.shown === frame, grab()];
  await press(layer, ...others);
  let [count, x, y] = [0, 0, 0];
  for (let i = 0; i < before.length; i += 4) {
    const change = [0, 1, 2].map((place) => Math.abs(before[i + place] - after[i + place]));
    if (Math.max(...change) < 25) continue;
    count += 1;
    x += (i / 4) % width;
    y += Math.floor(i / 4 / width);
  }
  const {scale, left, top} = ulStudio.placement;
  const ratio = width / canvas.clientWidth;
  return count && same
    ? {frame, x: (x / count / ratio - left) / scale, y: (y / count / ratio - top) / scale} : null;
}"""


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Server]:
    """A studio in which nothing is yet; processes that it leaves behind are ended."""
    server = Server(tmp_path / "studio")
    yield server
    server.kill()
    send(server, signal.SIGKILL)


def send(server: Server, number: signal.Signals) -> None:
    """Send a signal to the processes that learn."""
    for path in server.folder.glob("jobs/*/state.json"):
        if pid := json.loads(path.read_text())["pid"]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def shorten(route: Route) -> None:
    """Let a run take fewer steps than the page asks for."""
    assert route.request.post_data_json
    route.continue_(post_data=json.dumps(route.request.post_data_json | {"steps": STEPS}))


def offset(tab: Tab, layer: str) -> float:
    """Return the distance of what is drawn from the beetle, in pixels of the video."""
    end = time.monotonic() + PATIENCE
    while (drawn := tab.get(DRAWN, layer)) is None:
        assert time.monotonic() < end, "nothing is drawn"
    with open(tab.server.folder / "demo" / "truth.csv", newline="") as file:
        truth = list(csv.DictReader(file))[drawn["frame"]]
    place = 160 * float(truth["x"]), 120 * float(truth["y"])
    return math.dist(place, (drawn["x"], drawn["y"]))


def test_the_demo_from_the_first_click_to_the_end(
    empty: Server, open_tab: OpenTab, tmp_path: Path
) -> None:
    tab = open_tab(empty, reduced_motion="reduce")  # so that the live picture holds still
    tab.page.route("**/api/runs", shorten)
    tab.part("welcome-spark").click()
    tab.wait("ulStudio.open.kind === 'source' && ulStudio.shown === 0")
    tab.page.get_by_text("More settings").click()
    tab.part("end").fill(SECONDS)
    tab.part("objects").fill("1")
    tab.part("learn").click()
    tab.wait("ulStudio.live && ulStudio.shown !== null")
    run = tab.studio("open")
    assert run == {"kind": "run", "id": "scene-locate"}
    send(empty, signal.SIGSTOP)  # a fast computer would be done before all of this is looked at
    check_watched(tab)
    assert offset(tab, "l") < REACH
    assert offset(tab, "p") < REACH

    tab.page.reload()
    tab.wait("ulStudio.connection === 'open' && ulStudio.live && ulStudio.shown !== null")
    assert tab.studio("open") == run
    check_watched(tab)
    assert offset(tab, "l") < REACH

    check_survival(tab)
    tab.wait("ulStudio.objects.length === 1 && ulStudio.ready")
    assert not tab.studio("live")
    assert tab.part("status").inner_text().startswith("Finished")
    assert tab.texts("[data-testid=source] .item-name") == ["scene"]
    for frame in (3, 25, 46):
        tab.part("frame-input").fill(str(frame))
        tab.press("Enter")
        tab.wait_for_frame(frame)
        tab.wait("ulStudio.outlined")
        assert offset(tab, "l") < REACH
        assert offset(tab, "p") < REACH
    check_report(tab, tmp_path)


def check_report(tab: Tab, folder: Path) -> None:
    """The report that the page exports has the corrections, and says so."""
    tab.press("b")
    tab.wait_for_texts("[data-testid=history] li:not(.undone)", "Nothing in frame 46")
    tab.part("tab-export").click()
    tab.part("format").select_option("report")
    assert tab.part("export-range").is_disabled()
    tab.part("export").click()
    with tab.page.expect_download() as download:
        tab.part("exports").locator("a[download]").first.click()
    download.value.save_as(folder / "report.html")
    page = " ".join((folder / "report.html").read_text(encoding="utf-8").split())
    assert "Object location: scene (corrected)" in page
    assert "These results include 1 correction by a person" in page


def check_watched(tab: Tab) -> None:
    """The curves, the kernels and the numbers of training are shown."""
    tab.wait("document.querySelector('[data-testid=kernels]')?.naturalWidth > 0")
    folder = tab.server.folder / "runs" / "scene-locate"
    tab.wait("/\\d/.test(document.querySelector('[data-testid=objective]').textContent)")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    shown = float(tab.part("objective").inner_text().replace("\u2212", "-"))
    assert min(abs(shown - json.loads(line)["objective"]) for line in lines) < 0.006  # two digits
    status = tab.part("status").inner_text()
    assert "Learn" in status
    assert "Time left" in status


def check_survival(tab: Tab) -> None:
    """Learning goes on without a server, and the page comes back by itself."""
    server = tab.server
    tab.allowed += LOST
    metrics = server.folder / "runs" / "scene-locate" / "metrics.jsonl"
    server.kill()
    tab.wait("!document.querySelector('#banner').hidden")
    done, end = lines_of(metrics), time.monotonic() + PATIENCE
    send(server, signal.SIGCONT)
    while lines_of(metrics) == done:
        assert time.monotonic() < end, "learning has stopped"
        time.sleep(0.05)
    server.start()
    tab.wait("ulStudio.connection === 'open'")
    assert tab.get("document.querySelector('#banner').hidden")
