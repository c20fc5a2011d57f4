"""Looking at results in a real browser: every way to move shows exactly the frame it names."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.output.made_tracks import HEIGHT, WIDTH, wanderers, write_tables
from tests.studio.browser import NEXT_PAINT, PATIENCE, LocalServer, OpenTab, Server, Tab
from tests.studio.conftest import write_video
from tests.studio.numbered import (
    FRAMES,
    OTHER_SEED,
    SEQUENCE,
    made_tracks,
    number_points,
    places,
    read_number,
    write_run,
)
from ullayers.tracks.masks import identity_colour

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Response, Route

SCATTER_PAD = (2, 2, 4, 20)  # left, right, top, bottom


# Pixels of the time lines in the colour of an object, and where the needle is, as a share.
TIME_LINES = """async (object) => {
  const {chartColour, screenPalette} = await import("/js/colours.js");
  const [red, green, blue] = chartColour(object, screenPalette());
  const canvas = document.querySelector("[data-testid=timeline]");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const {data} = copy.getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    if (Math.abs(data[i] - red) + Math.abs(data[i + 1] - green) + Math.abs(data[i + 2] - blue) < 60)
      count += 1;
  const box = canvas.getBoundingClientRect();
  const needle = document.querySelector(".needle").getBoundingClientRect();
  const [gutter, margin] = [88, 14];
  const share = (needle.x + needle.width / 2 - box.x - gutter) / (box.width - gutter - margin);
  return [count, share];
}"""


def shown_number(tab: Tab, pane: int = 0) -> int:
    """Return the number in the picture, which the page must say, too."""
    frame, colours = tab.picture(number_points(), pane)
    assert read_number(colours) == frame
    return frame


def check_frame(tab: Tab, number: int) -> None:
    """The page is at a frame, and the picture is that frame."""
    tab.wait_for_frame(number)
    assert shown_number(tab) == number
    assert tab.part("frame-input").input_value() == str(number)


def test_every_way_to_move_shows_exactly_that_frame(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    tab.open_run("plain")
    check_frame(tab, 0)
    keys = [("ArrowRight", 1), ("Shift+ArrowRight", 11), ("ArrowLeft", 10), ("End", FRAMES - 1)]
    for key, number in keys:
        tab.press(key)
        check_frame(tab, number)

    entry = tab.part("frame-input")
    for typed, number in (("123", 123), ("99999", FRAMES - 1), ("-5", 0), ("64", 64)):
        entry.fill(typed)
        entry.press("Enter")
        check_frame(tab, number)
    tab.part("step-forward").click()
    check_frame(tab, 65)

    picture, scrubber = tab.part("picture").first, tab.part("scrubber")
    scrubber.hover()
    tab.page.mouse.wheel(0, 100)
    check_frame(tab, 66)
    picture.hover()
    tab.page.keyboard.down("Shift")
    tab.page.mouse.wheel(0, -100)
    tab.page.keyboard.up("Shift")
    check_frame(tab, 65)
    check_drag(tab, "scrubber")
    check_drag(tab, "timeline")


def check_drag(tab: Tab, name: str) -> None:
    """A drag passes through pictures and ends at the one below the pointer."""
    box: Any = tab.part(name).bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    tab.page.mouse.down()
    began = tab.studio("frame")
    tab.page.mouse.move(box["x"] + 0.8 * box["width"], middle, steps=12)
    tab.page.mouse.up()
    frame = tab.studio("frame")
    assert began < frame - 100
    assert abs(frame - 0.8 * FRAMES) < 0.03 * FRAMES  # the time lines have a margin
    check_frame(tab, frame)


def test_slow_videos_show_key_frames_on_the_way(
    gallery: Server, open_tab: OpenTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drag ends at exactly the frame below the pointer; what it passes are frames as well."""
    monkeypatch.setattr("ullayers.video.access.QUICK_SECONDS", -1.0)  # all are slow
    tab = open_tab(gallery)
    near: list[int] = []

    def note(answer: Response) -> None:
        if "near=1" in answer.url:
            near.append(int(answer.headers["x-frame"]))

    tab.page.on("response", note)
    tab.open_run("plain")
    check_drag(tab, "scrubber")
    assert near
    assert len(set(near)) < FRAMES / 12  # key frames: fewer than there are frames


def test_jumps_ranges_and_the_scatter(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    tab.open_run("plain")
    tab.press("u")
    check_frame(tab, next(first for first, _ in tab.studio("unsure") if first > 0))
    tab.press("Home", "c")
    tab.wait("ulStudio.frame > 0 && ulStudio.ready")
    crossing = tab.studio("frame")
    tab.part("next-crossing").click(modifiers=["Shift"])
    assert tab.toast() == "There is no crossing before this frame."
    check_frame(tab, crossing)

    tab.press("i", *["ArrowRight"] * 5, "o")
    assert tab.studio("range") == [crossing, crossing + 5]
    assert tab.part("range").inner_text() == f"{crossing}\u2013{crossing + 5}"
    tab.press("x")
    assert tab.studio("range") is None

    check_scatter(tab)


def check_scatter(tab: Tab) -> None:
    """A click on a point of the scatter shows the frame of that point."""
    scatter = tab.part("scatter")
    box: Any = scatter.bounding_box()
    left, right, top, bottom = SCATTER_PAD
    scale = min((box["width"] - left - right) / WIDTH, (box["height"] - top - bottom) / HEIGHT)
    x0 = left + (box["width"] - left - right - scale * WIDTH) / 2
    y0 = top + (box["height"] - top - bottom - scale * HEIGHT) / 2
    x, y = places(made_tracks(), 250)[1]
    scatter.click(position={"x": x0 + scale * x, "y": y0 + scale * y})
    tab.wait("ulStudio.ready")
    frame = shown_number(tab)
    nearest = min(math.dist((x, y), place) for place in places(made_tracks(), frame).values())
    assert scale * nearest < 1.5  # pixels of the screen


def test_another_video_is_not_asked_for_a_frame_of_the_last_one(
    tmp_path: Path, numbered: Path, open_tab: OpenTab
) -> None:
    """The browser would log an error, as the other video is shorter."""
    server = LocalServer(tmp_path / "studio", numbered, write_video(tmp_path / "short.mp4"))
    try:
        tab = open_tab(server)
        for name, last in (("numbered", FRAMES - 1), ("short", 11)):
            tab.part("source").filter(has_text=name).locator("button.item").click()
            tab.wait_for_frame(0)
            tab.press("End")
            tab.wait_for_frame(last)
    finally:
        server.kill()


def test_two_runs_side_by_side(gallery: Server, open_tab: OpenTab) -> None:
    """Both pictures are the same frame, each with its own objects; one cursor moves both curves."""
    tab = open_tab(gallery)
    tab.open_run("plain")
    colour = list(identity_colour(1))
    alone, _ = tab.get(TIME_LINES, 1)
    tab.part("compare").select_option(label="other")
    tab.wait("document.querySelectorAll('[data-testid=picture]').length === 2 && ulStudio.ready")
    assert tab.texts(".pane-label") == ["plain", "other (dashed below)"]
    for frame in (40, 210):
        tab.part("frame-input").fill(str(frame))
        tab.press("Enter")
        tab.wait_for_frame(frame)
        assert [shown_number(tab, pane) for pane in (0, 1)] == [frame, frame]
        for pane, seed in enumerate((0, OTHER_SEED)):
            [x, y] = places(made_tracks(seed), frame)[1]
            _, [at] = tab.picture(np.array([[x, y]]), pane)
            assert np.abs(at - colour).max() < 40  # the marker of object 1
        both, needle = tab.get(TIME_LINES, 1)
        assert both > 1.2 * alone
        assert needle == pytest.approx(frame / (FRAMES - 1), abs=0.005)
    tab.part("compare").select_option(index=0)
    tab.wait("document.querySelectorAll('[data-testid=picture]').length === 1")


def test_playing_shows_the_frames_it_says(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    tab.open_run("plain")
    tab.press(".", ".", " ")
    end = time.monotonic() + PATIENCE
    seen = [0]
    while seen[-1] <= 25 or len(set(seen)) <= 5:
        seen.append(shown_number(tab))
        assert time.monotonic() < end, seen
    tab.press(" ")
    assert not tab.studio("playing")
    assert seen == sorted(seen)


def test_the_page_keeps_little_in_memory(gallery: Server, open_tab: OpenTab) -> None:
    """The frames that are passed, decoded, would be 98 MB."""
    tab = open_tab(gallery)
    tab.open_run("plain")
    for _ in range(8):
        tab.press(*["ArrowRight"] * 10)
        tab.wait("ulStudio.ready")
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    metrics = session.send("Performance.getMetrics")["metrics"]
    heap = {entry["name"]: entry["value"] for entry in metrics}["JSHeapUsedSize"]
    pictures = tab.studio("cachedBytes")
    assert 20e6 < pictures < 80e6  # some are kept, but not all
    assert heap < 50e6


# Counts how often the time lines are drawn.
COUNT_DRAWINGS = """() => {
  const context = document.querySelector("[data-testid=timeline]").getContext("2d");
  window.drawings = 0;
  context.clearRect = (...box) => {
    window.drawings += 1;
    window.drawnTexts = [];
    CanvasRenderingContext2D.prototype.clearRect.apply(context, box);
  };
  context.fillText = (...text) => {
    window.drawnTexts.push(text[0]);
    CanvasRenderingContext2D.prototype.fillText.apply(context, text);
  };
}"""


class Hold:
    """Holds back the requests of a page with certain addresses, until they are released."""

    def __init__(self, tab: Tab, pattern: str) -> None:
        self.tab = tab
        self.held: list[Route] = []
        self.released = False
        tab.page.route(pattern, self.take)

    def take(self, route: Route) -> None:
        """Hold back a request."""
        if self.released:
            route.continue_()
        else:
            self.held.append(route)

    def release(self) -> None:
        """Wait until a request is held back and nothing else happens; then answer all requests."""
        while not self.held:
            self.tab.page.wait_for_timeout(20)
        for _ in range(3):
            self.tab.get(NEXT_PAINT)
        self.tab.get("window.drawings = 0")
        self.released = True
        for route in self.held:
            route.continue_()


def test_outlines_do_not_change_the_time_lines(gallery: Server, open_tab: OpenTab) -> None:
    tab = open_tab(gallery)
    tab.open_run("plain")
    tab.get(COUNT_DRAWINGS)
    hold = Hold(tab, "**/outlines/**")
    tab.part("frame-input").fill("250")
    tab.part("frame-input").press("Enter")
    hold.release()
    tab.wait("ulStudio.shown === 250 && ulStudio.outlined")
    tab.get(NEXT_PAINT)
    assert tab.get("drawings") == 0


def test_time_lines_get_finer_when_their_rows_arrive(
    tmp_path: Path, numbered: Path, open_tab: OpenTab
) -> None:
    run = write_run(tmp_path / "long", numbered)
    tracks, crossings = wanderers(1, 20 * FRAMES, SEQUENCE)
    write_tables(run, [each.changed(time=each.time + 3600) for each in tracks], crossings)
    server = LocalServer(tmp_path / "studio", run)
    try:
        tab = open_tab(server)
        tab.wait("ulStudio.objects.length > 0 && ulStudio.ready")
        tab.get(COUNT_DRAWINGS)
        hold = Hold(tab, "**/extremes/**")
        tab.part("timeline").hover()
        tab.page.mouse.wheel(0, -500)
        hold.release()
        tab.wait("drawings > 0")
        times = [text for text in tab.get("drawnTexts") if text.startswith("1:0")]
        assert len(times) > 2  # the axis has the times of the table, which begins after an hour
        assert tab.part("time").inner_text().startswith("1:0")
    finally:
        server.kill()


# Messages of the server come late, after the tables of a run.
LATE_MESSAGES = """Object.defineProperty(WebSocket.prototype, "onmessage", {
  set(take) { this.addEventListener("message", (event) => setTimeout(() => take(event), 1500)); },
})"""


def test_the_learning_curve_can_be_saved_when_it_has_come(
    tmp_path: Path, numbered: Path, open_tab: OpenTab
) -> None:
    run = write_run(tmp_path / "learned", numbered)
    record = {"trial": 0, "step": 1, "objective": -0.5, "rank": 2.0, "features": 2}
    lines = [json.dumps(record | {"step": step, "held_out": None}) for step in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    server = LocalServer(tmp_path / "studio", run)
    try:
        tab = open_tab(server)
        tab.page.add_init_script(LATE_MESSAGES)
        tab.page.reload()
        tab.wait("ulStudio.objects.length > 0 && ulStudio.ready")
        tab.part("objective").wait_for()
        tab.part("tab-export").click()
        with tab.page.expect_download() as download:
            tab.part("figure-curve-svg").click()
        assert ">step<" in Path(download.value.path()).read_text(encoding="utf-8")
    finally:
        server.kill()


def test_the_first_picture_does_not_wait_for_the_socket(gallery: Server, browser: Browser) -> None:
    page = browser.new_page()
    page.add_init_script("window.WebSocket = class { readyState = 0; close() {} }")
    page.goto(gallery.address)
    page.locator("[data-testid=source]").first.locator("button.item").click()
    end = time.monotonic() + PATIENCE
    while page.evaluate("ulStudio.shown") != 0:
        assert time.monotonic() < end
    assert page.evaluate("ulStudio.connection") == "connecting"
    page.close()
