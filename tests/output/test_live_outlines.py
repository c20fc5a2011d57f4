"""Outlines of `ul watch`: of every frame, also after a kill and a resume."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from ullayers.locate.tracking.live import LiveObject
from ullayers.run.watcher import WatchResult, keep_outlines
from ullayers.tracks.masks import OUTLINES, PARTIAL, find_outlines, read_outlines

SIZE = (160, 120)
SQUARE = np.array([[0.25, 0.25], [0.5, 0.25], [0.5, 0.5], [0.25, 0.5]])


def sightings(
    first: int, last: int, *, several: bool = False, shift: int = 0
) -> Generator[WatchResult, None, None]:
    """One object, a square of 20 x 20 pixels that moves by a pixel per frame; or two."""
    for frame in range(first, last + 1):
        mask = np.zeros((30, 40), np.uint8)
        mask[5:10, 5 + shift : 10 + shift] = 255
        pair = [LiveObject(n, 0.4, 0.4, 0.9, SQUARE + 0.1 * n) for n in (1, 2)]
        gone = LiveObject(3, 0.1, 0.1, 0.0, np.zeros((0, 2)))
        yield WatchResult(
            sequence="a",
            frame=frame,
            seconds=frame / 25,
            columns=("x", "y", "confidence"),
            values=(0.2, 0.25, 0.9),
            objective=0.0,
            mask=mask,
            size=SIZE,
            objects=(*pair, gone) if several else None,
        )


def boxes(folder: Path, frame: int) -> dict[int, list[int]]:
    """Return left, top, right and bottom of each object."""
    path = find_outlines(folder)
    assert path is not None
    found = read_outlines(path, "a", frame, frame).get(frame, [])
    return {
        each.object: [*each.points.min(0).tolist(), *each.points.max(0).tolist()] for each in found
    }


@pytest.mark.parametrize("several", [False, True])
def test_all_frames_can_be_read_while_and_after_they_arrive(tmp_path: Path, several: bool) -> None:
    seen = keep_outlines(sightings(0, 9, several=several), tmp_path)
    for sighting in seen:
        found = boxes(tmp_path, sighting.frame)
        assert list(found) == ([1, 2] if several else [1])
        wanted = [[56, 42, 96, 72], [72, 54, 112, 84]] if several else [[20, 20, 40, 40]]
        assert np.abs(np.array(list(found.values())) - wanted).max() <= 2
    assert [path.name for path in tmp_path.iterdir()] == [OUTLINES]
    assert all(boxes(tmp_path, frame) for frame in range(10))
    assert not boxes(tmp_path, 10)


def test_writing_outlines_resumes_after_a_kill(tmp_path: Path) -> None:
    """Frames after the checkpoint are seen again; those before it keep their outlines."""
    running, killed = tmp_path / "running", tmp_path / "killed"
    running.mkdir()
    seen = keep_outlines(sightings(0, 9), running)
    for _ in range(6):
        next(seen)
    shutil.copytree(running, killed)  # what a process that is killed leaves
    seen.close()
    assert (killed / PARTIAL).exists()
    for folder in (killed, running):  # after a stop as well
        for _ in keep_outlines(sightings(4, 7, shift=8), folder):
            pass
        lefts = [boxes(folder, frame)[1][0] for frame in range(8)]
        assert lefts == [lefts[0]] * 4 + [lefts[0] + 32] * 4
        assert [path.name for path in folder.iterdir()] == [OUTLINES]


def test_codes_have_none(tmp_path: Path) -> None:
    code = WatchResult("a", 0, 0.0, ("y0", "y1"), (0.1, 0.2), 0.0)
    assert list(keep_outlines((each for each in [code]), tmp_path)) == [code]
    assert find_outlines(tmp_path) is None
