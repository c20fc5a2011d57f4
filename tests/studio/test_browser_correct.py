"""Correcting in a real browser, in two pages at once; exports contain the corrections."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np

from tests.studio.browser import OpenTab, Server, Tab
from tests.studio.numbered import FRAMES, OUTLINE, SEQUENCE, made_tracks, places
from ullayers.tracks.masks import identity_colour
from ullayers.tracks.reading import read_tracks

HISTORY = "[data-testid=history]"


def clear_frame() -> int:
    """Return a frame in which all objects are sure and far from each other."""
    tracks = made_tracks()
    for frame in range(160, FRAMES):
        here = list(places(tracks, frame).values())
        apart = min(math.dist(a, b) for a in here for b in here if a is not b)
        sure = all(track.confidence[track.frame == frame] > 0.5 for track in tracks)
        if apart > 80 and sure:
            return frame
    raise AssertionError("no such frame")


def number_at(tab: Tab, place: tuple[float, float]) -> int | None:
    """Return the object whose marker is drawn at a place."""
    _, [colour] = tab.picture(np.array([place]))
    for number in range(1, 6):
        if np.abs(colour - identity_colour(number)).max() < 12:
            return number
    return None


def outline_at(tab: Tab, place: tuple[float, float]) -> int | None:
    """Return the object whose outline is drawn around a place."""
    return number_at(tab, (round(place[0]) - OUTLINE, round(place[1])))


def wait_for_history(tab: Tab, *sentences: str) -> None:
    """Wait until the list of corrections is this one."""
    tab.wait_for_texts(f"{HISTORY} li:not(.undone)", *sentences)
    tab.wait("ulStudio.ready")


def test_corrections_in_two_pages_and_in_exports(
    gallery: Server, open_tab: OpenTab, tmp_path: Path
) -> None:
    frame = clear_frame()
    one, two = open_tab(gallery), open_tab(gallery)
    for tab in (one, two):
        tab.open_run("corrected")
        tab.part("frame-input").fill(str(frame))
        tab.press("Enter", "t")  # no trails, which would cover markers
        tab.wait_for_frame(frame)
    where = places(made_tracks(), frame)
    run = next(path for path in gallery.inputs if path.name == "corrected")
    kept = run / "corrections.json"
    table = (run / "tracks.csv").read_bytes()
    for look in (number_at, outline_at):
        assert [look(one, where[number]) for number in (1, 2, 3)] == [1, 2, 3]

    # With the keyboard; the other page follows.
    one.press("1", "Shift+2")
    assert one.studio("picked") == [1, 2]
    one.press("s")
    swapped = f"Swapped 1 and 2 from frame {frame} on"
    for tab in (one, two):
        wait_for_history(tab, swapped)
        for look in (number_at, outline_at):
            assert [look(tab, where[number]) for number in (1, 2, 3)] == [2, 1, 3]
    swap = {"op": "swap", "sequence": SEQUENCE, "objects": [1, 2], "first": frame}
    assert json.loads(kept.read_text())["applied"] == [swap]

    # Undone on the other page, redone on the first.
    two.press("z")
    for tab in (one, two):
        wait_for_history(tab)
        assert number_at(tab, where[1]) == 1
    one.press("Shift+Z")
    for tab in (one, two):
        wait_for_history(tab, swapped)

    # Moved with the mouse, from the frame before.
    one.press("Escape", "ArrowLeft")
    before = places(made_tracks(), frame - 1)
    one.page.mouse.click(*one.point(*before[3]))
    assert one.studio("picked") == [3]
    one.part("correct-move").click()
    one.page.mouse.click(*one.point(320, 20))
    moved = f"Moved 3 in frame {frame - 1}"
    wait_for_history(two, swapped, moved)
    wait_for_history(one, swapped, moved)
    assert number_at(one, (320, 20)) == 3
    assert number_at(one, before[3]) is None
    assert outline_at(one, before[3]) is None  # it belongs to the place that was wrong

    # Moved with the keyboard.
    one.press("m", *["Shift+ArrowDown"] * 3, "ArrowRight", "Enter")
    wait_for_history(one, swapped, moved, moved)
    last = json.loads(kept.read_text())["applied"][-1]
    assert abs(last["x"] - 321) < 1
    assert abs(last["y"] - 50) < 1

    check_export(one, tmp_path, frame, last)
    check_figures(one, tmp_path)
    check_other_corrections(one)
    assert (run / "tracks.csv").read_bytes() == table


def check_export(tab: Tab, folder: Path, frame: int, last: dict[str, Any]) -> None:
    """The table that the page exports has the corrections."""
    tab.press("Escape")
    tab.part("tab-export").click()
    tab.part("format").select_option("csv")
    tab.part("export").click()
    with tab.page.expect_download() as download:
        tab.part("exports").locator("a[download]").first.click()
    download.value.save_as(folder / "table.csv")
    tracks = {track.object: track for track in read_tracks(folder / "table.csv")}
    where = places(list(tracks.values()), frame)
    found = places(made_tracks(), frame)
    assert math.dist(where[1], found[2]) < 0.01
    assert math.dist(where[2], found[1]) < 0.01
    assert places(list(tracks.values()), frame - 1)[3] == (last["x"], last["y"])


def check_figures(tab: Tab, folder: Path) -> None:
    """Saved figures have a legend of the colours of the objects."""
    for figure in ("figure-timeline", "figure-scatter"):
        for kind in ("svg", "png"):
            with tab.page.expect_download() as download:
                tab.part(f"{figure}-{kind}").click()
            download.value.save_as(folder / f"{figure}.{kind}")
        text = (folder / f"{figure}.svg").read_text(encoding="utf-8")
        assert [f">Object {number}<" in text for number in (1, 2, 3)] == [True] * 3
        svg = ElementTree.fromstring(text)
        picture = cv2.imread(str(folder / f"{figure}.png"))
        assert picture is not None
        assert picture.shape[0] == 2 * float(svg.attrib["height"]), "with the legend"


def check_other_corrections(tab: Tab) -> None:
    """Split, merge, delete in a range, and mark frames as empty; then undo all of it."""
    tab.part("tab-objects").click()
    tab.part("object-3").click()
    tab.press("d")
    tab.wait("ulStudio.objects.join() === '1,2,3,4'")
    tab.press("Escape", "3", "Shift+4", "g")
    tab.wait("ulStudio.objects.join() === '1,2,3'")
    tab.press("Home", "i", "End", "o", "Escape", "2", "Delete")
    tab.wait("ulStudio.objects.join() === '1,3'")
    tab.press("x", "b")
    tab.wait_for_texts(f"{HISTORY} li:last-child", f"Nothing in frame {FRAMES - 1}")
    tab.wait("ulStudio.ready")
    assert number_at(tab, places(made_tracks(), FRAMES - 1)[1]) is None
    for _ in range(4):
        tab.part("undo").click()
    tab.wait("ulStudio.objects.join() === '1,2,3'")
    tab.wait(f"document.querySelectorAll('{HISTORY} .undone').length === 4")
