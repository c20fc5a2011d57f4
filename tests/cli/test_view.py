"""The live view fits the terminal, whatever its size."""

from __future__ import annotations

import io
import re
import unicodedata
from dataclasses import replace

import numpy as np
import pytest

from ullayers.cli.watch import View
from ullayers.locate.tracking.live import LiveObject
from ullayers.run.watcher import WatchResult


def sighting(name: str = "a very long name of a camera") -> WatchResult:
    mask = np.full((24, 32), 255, np.uint8)
    columns = ("x", "y", "confidence")
    return WatchResult(name, 12345, 500.0, columns, (0.99, 0.99, 0.9), -1.0, True, mask)


def pictures(screen: io.StringIO) -> list[list[str]]:
    """The lines of each picture, without control sequences."""
    parts = re.split(r"\x1b\[\d+F", screen.getvalue())
    return [re.sub(r"\x1b\[[KJ]", "", part).splitlines() for part in parts]


def width_of(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 20, 49, 50, 51, 200])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 6, 20, 21, 50])
def test_clipped_to_the_terminal(columns: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    screen = io.StringIO()
    view = View(screen, period=0.0)
    for _ in range(2):
        view.show(sighting())
    for lines in pictures(screen):
        assert max(map(width_of, lines)) <= max(1, columns - 1)
        assert len(lines) <= max(1, rows - 1)
    full = columns >= 51 and rows >= 21
    assert (len(lines) == 20 and len(lines[0]) == 50) == full
    assert ("O" in "".join(lines)) == (columns >= 4 and rows >= 6)
    assert f"\x1b[{len(lines)}F" in screen.getvalue()


def test_wide_characters_are_clipped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = io.StringIO()
    View(screen).show(sighting("カメラ一号の長い名前です"))
    [lines] = pictures(screen)
    assert max(map(width_of, lines)) <= 19
    assert lines[-2].startswith("カメラ一号")


def test_a_terminal_that_shrinks_keeps_nothing_of_the_larger_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    view = View(screen, period=0.0)
    monkeypatch.setenv("LINES", "30")
    view.show(sighting())
    monkeypatch.setenv("LINES", "10")
    view.show(sighting())
    assert screen.getvalue().endswith("\x1b[J")
    assert [len(lines) for lines in pictures(screen)] == [20, 9]


def test_no_objective_before_the_first_step() -> None:
    screen = io.StringIO()
    view = View(screen, period=0.0)
    view.show(replace(sighting(), objective=float("nan")))
    assert "J -  " in screen.getvalue()
    assert "nan" not in screen.getvalue()


def test_a_mask_of_a_region_is_drawn_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    screen = io.StringIO()
    whole = replace(sighting(), values=(0.6, 0.6, 0.9))
    View(screen, period=0.0).show(replace(whole, box=(0.5, 0.5, 0.25, 0.25)))
    [lines] = pictures(screen)
    shaded = [
        (row, column)
        for row, line in enumerate(lines[1:17])
        for column in range(1, 49)
        if line[column] == "*"
    ]
    assert {row for row, _ in shaded} == {8, 9, 10, 11}
    assert {column for _, column in shaded} == set(range(25, 37))
    View(screen := io.StringIO(), period=0.0).show(whole)
    [lines] = pictures(screen)
    assert all(set(line[1:-1]) <= {"*", "O"} for line in lines[1:17])


def test_several_objects_are_shown_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    labels = np.zeros((24, 32), np.int32)
    labels[:6, :8] = 12
    outline = np.zeros((0, 2))
    objects = LiveObject(3, 0.9, 0.9, 0.8, outline), LiveObject(12, 0.05, 0.05, 0.8, outline)
    several = replace(sighting(), objects=objects, labels=labels)
    view = View(screen := io.StringIO(), period=0.0)
    view.show(several)
    view.show(replace(several, objects=objects[:1]))
    both, one = pictures(screen)
    assert (both[1][3], both[15][44]) == ("2", "3"), "the last digit of each number"
    assert both[2][2] == "*"
    assert "objects 2" in both[-1]
    assert "2" not in "".join(one[1:17])
    assert "objects 1" in one[-1]
