"""Reading, locating and the profile of `ul learn`: what is counted is what is done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ullayers.research.bench.profile as profile
import ullayers.research.bench.video as video
from tests.command import UlCommand
from tests.films import write_ball
from ullayers.learn.config import Config
from ullayers.learn.training import Trial
from ullayers.research.bench.timing import How, Row
from ullayers.video.reader import Reading, Source, find_sources


def test_a_stage_inside_another_stops_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    stages = profile.Stages()
    clock = 1.0
    with stages("a"):
        clock = 3.0
        with stages("b"):
            clock = 7.0
        clock = 15.0
    clock = 31.0
    assert stages.end() == {profile.REST: 1 + 16, "a": 2 + 8, "b": 4}


def test_every_read_is_noted_and_everything_is_as_before_after_it(tmp_path: Path) -> None:
    [source] = find_sources([str(write_ball(tmp_path / "ball.mp4", 12))])
    before = Source.clips, Trial.step
    stages = profile.Stages()
    with profile.watched(stages) as reads:
        assert sum(len(clip.index) for clip in source.clips(5, Reading(stride=2))) == 6
        next(source.clips(5))
    assert reads[0] == profile.Read(source, 5, Reading(stride=2), 6)
    assert [read.again() for read in reads] == [6, 5]
    assert stages.end()[profile.WAITING] > 0
    assert (Source.clips, Trial.step) == before


def test_the_command_learns_reads_and_locates(
    monkeypatch: pytest.MonkeyPatch, here: UlCommand
) -> None:
    def same_process(path: str, folder: str, **brief: Any) -> Row:
        return profile.learn(path, folder, Config(**brief))

    monkeypatch.setattr(video, "profile", same_process)
    code, out, errors = here("bench", "video", "--quick")
    assert (code, errors) == (0, "")
    assert "the bottleneck is " in out
    assert "waiting for frames" in out
    assert "ullayers decode, resize, locate" in out
    assert "OpenCV decode, resize, MOG2" in out
    assert out.count("median") == 4


def test_places_are_scored_where_there_is_a_truth(tmp_path: Path) -> None:
    [source] = find_sources([str(write_ball(tmp_path / "ball.mp4", 3))])
    places, truth = np.full((3, 2), 0.5), np.full((4, 2), 0.5)
    assert video.accuracy(places, truth, source) == {"median": 0, "within": 0}
    assert video.accuracy(places, None, source) == {"median": None, "within": None}


def test_films(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert video.choose(How(video="a/b.mp4"), tmp_path) == ("b.mp4", "a/b.mp4", None)
    monkeypatch.setenv("ULLAYERS_DATA", str(tmp_path))  # which has no mouse
    film = video.choose(How(quick=True), tmp_path)
    assert film.truth is not None
    assert film.truth.shape == (60, 2)
    for name in (video.MOUSE, video.TRACK):
        (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / video.MOUSE).touch()
    (tmp_path / video.TRACK).write_text("pos_x,pos_y\n320,240\n")
    film = video.choose(How(), tmp_path)
    assert film.truth is not None
    assert film.truth.tolist() == [[0.5, 0.5]]
