"""The part video of the benchmarks: the profile of `ul learn`, and OpenCV beside us."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import experiments.bench.video as video
from experiments.bench.timing import BenchOptions, Row
from tests.command import UlCommand
from tests.films import write_ball
from ullayers.video.sources import Reading, Source, find_sources


def inner() -> FrameType:
    return sys._getframe()


def outer() -> FrameType:
    return inner()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize(
    ("functions", "stage"),
    [({"inner", "outer"}, "inner"), ({"outer"}, "outer"), ({"other"}, video.REST)],
)
def test_the_innermost_function_with_a_stage_counts(
    functions: set[str], stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "STAGES", {(__name__, name): name for name in functions})
    assert video.stage_of(outer()) == stage


def test_a_module_may_be_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = {(__name__, video.ANY_FUNCTION): "all", (__name__, "inner"): "inner"}
    monkeypatch.setattr(video, "STAGES", stages)
    assert video.stage_of(outer()) == "inner"
    assert video.stage_of(outer().f_back) == "all"
    assert video.stage_of(None) == video.REST


def test_all_time_is_assigned_to_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "STAGES", {(__name__, "sleep"): "sleeping"})
    begin = time.perf_counter()
    with video.StageSampler() as sampler:
        sleep(0.2)
    total = time.perf_counter() - begin
    assert sampler.seconds["sleeping"] > 0.1
    assert sum(sampler.seconds.values()) <= total
    assert sum(sampler.seconds.values()) >= 0.2


def test_the_functions_of_all_stages_exist() -> None:
    for module, function in video.STAGES:
        loaded = importlib.import_module(module)
        assert function == video.ANY_FUNCTION or function == "clips" or hasattr(loaded, function)
    assert hasattr(Source, "clips")


def test_every_read_is_recorded_and_can_be_repeated(tmp_path: Path) -> None:
    [source] = find_sources([str(write_ball(tmp_path / "ball.mp4", 12))])
    with video.recorded_reads() as reads:
        assert sum(len(clip.index) for clip in source.clips(5, Reading(stride=2))) == 6
        next(source.clips(5))
    assert reads == [
        video.Read(source, 5, Reading(stride=2), 6),
        video.Read(source, 5, Reading(), 5),
    ]
    assert [read.again() for read in reads] == [6, 5]
    assert len(reads) == 2  # repeating is not recorded


def test_the_command_learns_reads_and_locates(
    monkeypatch: pytest.MonkeyPatch, bench: UlCommand
) -> None:
    def same_process(path: str, folder: str, options: Sequence[str]) -> Row:
        row = video.profile_here(path, folder, options)
        assert row["stages"].keys() >= {video.WAITING, "learning", "report"}
        assert sum(row["stages"].values()) == pytest.approx(row["seconds"], rel=0.1)
        assert row["reading"]["passes"] >= 2  # to learn and to apply
        assert row["reading"]["frames"] >= 2 * 60
        return row

    monkeypatch.setattr(video, "profile", same_process)
    code, out, errors = bench("video", "--quick")
    assert code == 0
    assert all(line.startswith("ul learn: warning: ") for line in errors.splitlines())
    assert "the bottleneck is " in out
    assert "waiting for frames" in out
    assert "ullayers decode, resize, locate" in out
    assert "OpenCV decode, resize, MOG2" in out
    assert out.count("median") == 4


def test_positions_are_scored_where_there_is_a_truth(tmp_path: Path) -> None:
    [source] = find_sources([str(write_ball(tmp_path / "ball.mp4", 3))])
    positions, truth = np.full((3, 2), 0.5), np.full((4, 2), 0.5)
    assert video.accuracy(positions, truth, source) == {"median": 0, "within": 0}
    assert video.accuracy(positions, None, source) == {"median": None, "within": None}


def test_films(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = video.choose_film(BenchOptions(video="a/b.mp4"), tmp_path)
    assert given == ("b.mp4", "a/b.mp4", None)
    monkeypatch.setenv("ULLAYERS_DATA", str(tmp_path))  # which has no mouse
    film = video.choose_film(BenchOptions(quick=True), tmp_path)
    assert film.truth is not None
    assert film.truth.shape == (60, 2)
    for name in (video.MOUSE, video.MOUSE_TRACK):
        (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / video.MOUSE).touch()
    (tmp_path / video.MOUSE_TRACK).write_text("pos_x,pos_y\n320,240\n")
    film = video.choose_film(BenchOptions(), tmp_path)
    assert film.truth is not None
    assert film.truth.tolist() == [[0.5, 0.5]]
