"""Summaries of an export: summary.json, summary lines and the report, without reading twice."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import ullayers.run.reports as run_report
from tests.exports import of_kind, sources_in, with_metrics
from tests.films import (
    BALL,
    ball,
    still,
    write_film,
    write_pictures,
)
from tests.pages import read as read_page
from ullayers.errors import RunError
from ullayers.run.plan import Plan
from ullayers.run.reports import report_run
from ullayers.run.summary import Exported, Totals, summary_lines, trust_sentence, write_summary
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.measures import measure_motion
from ullayers.tracks.table import TRACK, Answer, code_columns
from ullayers.video.sources import Clip, Info, Reading, Source, find_sources, read_all


def test_summary(either: Plan, tmp_path: Path) -> None:
    done = export(either, sources_in(tmp_path / "in", 30, 12), tmp_path / "out", ExportOptions())
    locate = either.config.task == "locate"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["task"] == either.config.task
    assert summary["frames"] == 42
    size = {"width": BALL[1], "height": BALL[0], "fps": 25.0}
    measures = ("distance_px", "median_speed_px_per_s")
    if locate:
        size["objects"] = 1
        for answer, sequence in zip(done.answers, summary["sequences"], strict=True):
            motion = measure_motion(answer, BALL[1], BALL[0])
            found = [sequence.pop(name) for name in measures]
            assert found == pytest.approx([motion.distance, motion.speed_quantile(0.5)], abs=0.01)
    counts = {"film0": 30, "film1": 12}
    sequences = [
        {"name": name, "frames": count, **size, **({"rows": count} if locate else {})}
        for name, count in counts.items()
    ]
    assert summary["sequences"] == sequences
    confidence = np.concatenate([answer.values[:, -1] for answer in done.answers])
    assert summary["found"] == (np.mean(confidence >= 0.5) if locate else None)
    assert summary["trusted"] == (not summary["reasons"])
    assert "objective" not in summary, "J is that of the training, not of these videos"
    [line] = summary_lines(either, done)
    assert line.startswith("42 frames")
    trained = "40 frames" if locate else "30 frames (10 held out)"
    assert f"; trained on {trained}, evaluation J {either.outcome.objective:.2f}" in line
    assert ("(confidence of at least 0.5)" in line) == locate


def test_an_untrusted_code_is_not_a_ring(codes: Plan, tmp_path: Path) -> None:
    done = Exported()
    done.add(answer_of(circle(90)), {}, Info(64, 48, 25.0, 90))
    assert codes.result is not None
    trusted = replace(codes.result, held_out_correlation=[0.9, 0.9], held_out_frames=9, start=0.0)
    for correlation, expected in ((0.9, True), (0.1, False)):
        result = replace(trusted, held_out_correlation=[correlation] * 2)
        write_summary(tmp_path / "summary.json", replace(codes, result=result), done)
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert (summary["trusted"], summary["ring"]) == (expected, expected)


def circle(count: int) -> NDArray[np.float64]:
    turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
    return np.stack([np.cos(turn), np.sin(turn)], 1)


def answer_of(codes: NDArray[np.float64]) -> Answer:
    count = len(codes)
    return Answer("film", np.arange(count), np.arange(float(count)), ("y0", "y1"), codes)


def test_a_summary_of_one_frame(run: Plan, tmp_path: Path) -> None:
    done = export(run, sources_in(tmp_path / "in", 1), tmp_path / "out", ExportOptions())
    assert summary_lines(run, done)[0].startswith("1 frame, object found")


def test_a_summary_says_why_results_are_not_trusted(run: Plan, tmp_path: Path) -> None:
    sources = find_sources([write_film(tmp_path / "a.mp4", still(9))])
    rising = replace(run, result=replace(run.outcome, start=-2.0, objective=-1.0))
    export(rising, sources, tmp_path, ExportOptions())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["found"] == 0
    assert summary["sequences"][0]["distance_px"] is None, "nothing was found that could move"
    assert summary["sequences"][0]["median_speed_px_per_s"] is None
    assert summary["trusted"] is False
    assert summary["reasons"] == [
        "J rose during training, from -2.00 to -1.00.",
        "The confidence is below 0.5 in 100.0% of the frames.",
    ]


@pytest.mark.parametrize("folded", [None, 0.02, 0.8])
def test_a_folded_code_is_not_a_ring(codes: Plan, folded: float | None, tmp_path: Path) -> None:
    outcome = replace(codes.outcome, folded=folded, held_out_correlation=[0.9, 0.9], start=None)
    run = replace(codes, result=outcome)
    turn = np.arange(72) * 2 * np.pi / 72
    values = np.stack([np.cos(turn), np.sin(turn)], 1)
    ring = Answer("a", np.arange(72), np.arange(72.0), code_columns(2), values)
    write_summary(tmp_path / "summary.json", run, Exported([ring], infos=[Info(64, 48, 25.0, 72)]))
    summary = json.loads((tmp_path / "summary.json").read_text())
    is_folded = folded == 0.8
    assert summary["ring"] == summary["trusted"] == (not is_folded)
    assert [reason[:36] for reason in summary["reasons"]] == (
        ["The code is folded: 80.0% of the fra"] if is_folded else []
    )


def several_in(shown: NDArray[np.bool_]) -> Answer:
    """Return two objects, both in the frames that are marked."""
    index = np.arange(len(shown))
    frames = np.repeat(np.flatnonzero(shown), 2)
    values = np.tile([0.5, 0.5, 0.9], (len(frames), 1))
    rows = Answer(
        "a", frames, frames / 25, TRACK, values, objects=np.tile([1, 2], len(frames) // 2)
    )
    main = np.where(shown[:, None], [0.5, 0.5, 0.9], [0.5, 0.5, 0])
    return Answer("a", index, index / 25, TRACK, main, several=rows)


def test_frames_without_any_object() -> None:
    shown = np.arange(200) % 5 > 0
    assert Totals.of(several_in(shown)) == Totals(200, round(200 * 320 / 360))
    shown = np.arange(200) < 50  # they left
    assert Totals.of(several_in(shown)) == Totals(200, 50, absent=150)


def test_several_equal_objects_are_named(run: Plan, tmp_path: Path) -> None:
    frames, _ = ball(40, 48, 64)
    mirrored = ball(40, 48, 64)[0][:, ::-1, ::-1]
    is_ball = (mirrored[..., 0] > 200) & (mirrored[..., 1] < 60)
    frames[is_ball] = 250, 30, 30
    alone = find_sources([write_film(tmp_path / "one.mp4", ball(40, 48, 64)[0])])
    both = find_sources([write_film(tmp_path / "two.mp4", frames)])
    reasons = []
    for name, sources in (("one", alone), ("two", both)):
        export(run, sources, tmp_path / name, ExportOptions())
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        reasons.append([reason for reason in summary["reasons"] if "something else" in reason])
    assert reasons[0] == []
    assert len(reasons[1]) == 1


@contextmanager
def counted_frames() -> Iterator[list[int]]:
    """Count the frames that every reader hands on, a number for each pass over a source."""
    counts: list[int] = []
    clips = Source.clips

    def counting(*arguments: Any, **named: Any) -> Generator[Clip, None, None]:
        counts.append(0)
        number = len(counts) - 1
        with closing(clips(*arguments, **named)) as read:
            for clip in read:
                counts[number] += len(clip.index)
                yield clip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "clips", counting)
        patch.setattr(run_report, "FrameAccess", unexpected)
        yield counts


def unexpected(*_: Any, **__: Any) -> None:
    raise AssertionError("frames are read again")


def test_overlay_and_report_do_not_read_frames_again(either: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 40)
    locate = either.config.task == "locate"
    options = ExportOptions(overlay=30, samples=True, masks=locate)
    with counted_frames() as counts:
        done = export(of_kind(either, "clip"), sources, tmp_path / "out", options)
        assert counts == [40]
        report_run(replace(either, folder=with_metrics(either, tmp_path)), sources, done)
    assert counts == [40], "the report uses frames that were kept"
    images = read_page(tmp_path / "report.html").images
    assert len(images) > 8


@pytest.mark.usefixtures("full_reports")
def test_frames_kept_for_the_report_are_those_of_the_video(run: Plan, tmp_path: Path) -> None:
    """Of files and of pictures, at the size and with the stride that they are shown with."""
    frames = ball(70, 48, 64)[0]
    for name in (write_film(tmp_path / "a.mp4", frames), write_pictures(tmp_path / "b", frames)):
        sources = find_sources([name])
        options = ExportOptions(samples=True, stride=2)
        done = export(run, sources, tmp_path / "out", options)
        kept = done.frames_to_show[sources[0].name]
        assert sorted(kept) == list(range(0, 35, 4))
        whole = read_all(sources[0], Reading(size=(336, 448), stride=2)).frames
        assert all(torch.equal(frame, whole[row]) for row, frame in kept.items())


def test_damaged_metrics_are_reported(run: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    done = export(run, sources, tmp_path / "out", ExportOptions())
    for line in ({"step": 1}, {"trial": run.outcome.trial, "step": 9, "rank": "x"}):
        (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        with pytest.raises(RunError, match=r"metrics\.jsonl"):
            report_run(replace(run, folder=tmp_path), sources, done)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("there", "trusted"), [(40, True), (5, False)])
def test_an_object_that_comes_late_and_leaves_early_is_trusted(
    run: Plan, there: int, trusted: bool, tmp_path: Path
) -> None:
    values = np.full((200, 3), 0.5)
    values[:, 2] = 0.0
    values[80 : 80 + there, 2] = 0.9
    found = Answer("a", np.arange(200), np.arange(200.0), TRACK, values)
    done = Exported([found], infos=[Info(64, 48, 25.0, 200)])
    write_summary(tmp_path / "summary.json", run, done)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["found"] == there / 200
    assert summary["trusted"] is trusted, summary["reasons"]
    if trusted:
        assert trust_sentence(run, done).endswith("and nothing in 80.0%.")
