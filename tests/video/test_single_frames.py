"""Single frames by their times are those that reading in order gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ullayers.run.reports as run_report
from tests.films import ball, write_ball, write_film, write_pictures
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.reader import Clip, Reading, Source, VideoError, find_sources
from ullayers.video.single_frames import frames_at

SIZE = (48, 64)


def in_order(source: Source) -> Clip:
    return Clip.join(list(source.clips(64, Reading(size=SIZE))))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("seek")
    return find_sources([write_ball(folder / "ball.mp4", 600)])[0]


def test_the_same_frames_as_in_order(source: Source) -> None:
    whole = in_order(source)
    rows = [599, 0, 251, 300, 7]
    found = frames_at(source, whole.seconds[rows].tolist(), SIZE, most=600)
    assert found is not None
    assert torch.equal(torch.stack(found), whole.frames[rows])


def test_what_cannot_be_had_is_left_to_others(source: Source, tmp_path: Path) -> None:
    whole = in_order(source)
    between = float(whole.seconds[100:102].mean())
    assert frames_at(source, [between], SIZE, most=600) is None
    assert frames_at(source, [1e6], SIZE, most=600) is None
    assert frames_at(source, [float(whole.seconds[249])], SIZE, most=5) is None  # too far
    pictures = write_pictures(tmp_path / "p", ball(5, 48, 64, 0)[0])
    assert frames_at(find_sources([pictures])[0], [0.0], SIZE, most=9) is None


def test_a_damaged_file_is_left_to_others(source: Source, tmp_path: Path) -> None:
    content = Path(source.path).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) // 2])
    broken = Source("cut", str(tmp_path / "cut.mp4"), "video")
    try:
        assert frames_at(broken, [20.0], SIZE, most=600) is None
    except VideoError:
        pass  # it cannot even be opened


@pytest.mark.parametrize("frames", [1, 5, 40])
def test_samples_are_the_same_either_way(
    frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [short] = find_sources([write_film(tmp_path / "a.mp4", ball(frames, 48, 64, 0)[0])])
    whole = in_order(short)
    found = Answer("a", whole.index.numpy(), whole.seconds.numpy(), TRACK, np.ones((frames, 3)))

    def samples() -> list[Any]:
        every = max(1, frames // 9)
        return run_report._read_samples(short, found, {}, 1, 8, every)

    at_once = samples()
    monkeypatch.setattr(run_report, "frames_at", lambda *_, **__: None)
    read = samples()
    assert len(at_once) == len(read) == min(8, max(1, frames - 1))
    for one, other in zip(at_once, read, strict=True):
        assert one.seconds == other.seconds
        assert np.array_equal(one.picture, other.picture)
