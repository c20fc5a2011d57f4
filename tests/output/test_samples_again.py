"""Frames of the report that are read again, as after a resumed export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ullayers.run.reports as reports
from tests.films import ball, write_film
from ullayers.report.overlay import display_size
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.sources import Reading, find_sources, read_all


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("frames", [1, 5, 40])
def test_they_are_those_of_the_rows(frames: int, stride: int, tmp_path: Path) -> None:
    [short] = find_sources([write_film(tmp_path / "a.mp4", ball(frames, 48, 64, 0)[0])])
    whole = read_all(short, Reading(size=display_size(short.probe()), stride=stride))
    count = len(whole.index)
    found = Answer("a", whole.index.numpy(), whole.seconds.numpy(), TRACK, np.ones((count, 3)))
    every = max(1, count // 9)
    samples = reports._read_samples(short, found, {}, 8, every)
    rows = [round(each.seconds * 25 / stride) for each in samples]
    assert rows == (list(range(every, count, every))[:8] or [0])
    for row, each in zip(rows, samples, strict=True):
        assert np.array_equal(each.picture, whole.frames[row].permute(1, 2, 0).numpy())
