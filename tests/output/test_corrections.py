"""Corrections: reading and writing them, and what they do to tracks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.output.made_tracks import FPS, HEIGHT, WIDTH, track_of
from ullayers.errors import Error, RunError
from ullayers.run.folder import check_free, clear_run
from ullayers.tracks.corrections import (
    CORRECTIONS,
    Correction,
    Corrections,
    Delete,
    MarkEmpty,
    Merge,
    Move,
    Split,
    Swap,
    apply_corrections,
    check_correction,
    corrected_numbers,
    correction_from_json,
    read_corrections,
    write_corrections,
)
from ullayers.tracks.measures import speed
from ullayers.tracks.reading import NAMES, Crossing, Track
from ullayers.tracks.tracked_video import TrackedVideo

FRAMES = 40
ALL: list[Correction] = [
    Swap("a", (1, 2), 10),
    Merge("a", (1, 3)),
    Split("a", 2, 20),
    Delete("a", 2, 0, 5),
    Delete("a", 4),
    Move("a", 1, 7, 100.5, 20.0),
    MarkEmpty("a", 30, 32),
]


def video_of(tracks: list[Track], count: int = FRAMES) -> TrackedVideo:
    crossings = [Crossing("a", 8, 12, 8 / FPS, 12 / FPS, (1, 2), 0.9)]
    return TrackedVideo("a", WIDTH, HEIGHT, FPS, count, tracks, crossings=crossings)


@pytest.fixture(name="video")
def fixture_video() -> TrackedVideo:
    """Two objects in all frames, and a third one in frames 25 to 34."""
    time = np.arange(FRAMES, dtype=np.float64)
    tracks = [
        track_of(100 + 2 * time, 100 + 0 * time, number=1, length=20),
        track_of(400 - 3 * time, 200 + 0 * time, number=2, length=20),
        track_of(50 + 0 * time[:10], 300 + 4 * time[:10], number=3, frame=np.arange(25, 35)),
    ]
    known = [track.changed(speed=speed(track.x_px, track.y_px, track.time)) for track in tracks]
    return video_of(known)


def corrected(video: TrackedVideo, *corrections: Correction) -> dict[int, Track]:
    [found] = apply_corrections([video], Corrections(corrections))
    return {track.object: track for track in found.tracks}


def test_a_file_keeps_every_correction(tmp_path: Path) -> None:
    corrections = Corrections(tuple(ALL), (ALL[0],))
    write_corrections(tmp_path, corrections)
    assert read_corrections(tmp_path) == corrections
    content = json.loads((tmp_path / CORRECTIONS).read_text())
    assert content["applied"][5] == {
        "op": "move",
        "sequence": "a",
        "object": 1,
        "frame": 7,
        "x": 100.5,
        "y": 20.0,
    }


def test_a_folder_without_a_file_has_no_corrections(tmp_path: Path) -> None:
    assert read_corrections(tmp_path) == Corrections()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"version": 1}',
        '{"version": 2, "applied": [], "undone": []}',
        '{"version": 1, "applied": {}, "undone": []}',
        '{"version": 1, "applied": [{"op": "explode"}], "undone": []}',
        '{"version": 1, "applied": [{"op": ["swap"]}], "undone": []}',
        '{"version":1, "applied":[], "undone":[{"op": "merge", "sequence": "a", "objects": [1]}]}',
        '{"version": 1, "applied": [{"op": "move", "sequence": "a", "object": 1, "frame": 0, '
        '"x": NaN, "y": 1}], "undone": []}',
        '{"version": 1, "applied": [{"op": "nothing", "sequence": "a", "first": true, "last": 1}], '
        '"undone": []}',
    ],
)
def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / CORRECTIONS).write_text(content)
    with pytest.raises(RunError) as error:
        read_corrections(tmp_path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside.json", tmp_path / "run"
    run.mkdir()
    outside.write_text("mine")
    (run / CORRECTIONS).symlink_to(outside)
    for access in (read_corrections, lambda folder: write_corrections(folder, Corrections())):
        with pytest.raises(RunError, match="link"):
            access(run)
    assert outside.read_text() == "mine"


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / CORRECTIONS)
    with pytest.raises(RunError, match="regular"):
        read_corrections(tmp_path)


def test_undo_and_redo() -> None:
    edited = Corrections().add(ALL[0]).add(ALL[1])
    undone = edited.undo()
    assert undone == Corrections((ALL[0],), (ALL[1],))
    assert undone.redo() == edited
    assert undone.undo().redo().redo() == edited
    assert undone.add(ALL[2]) == Corrections((ALL[0], ALL[2]))
    with pytest.raises(Error, match="no correction to undo"):
        Corrections().undo()
    with pytest.raises(Error, match="no correction to redo"):
        edited.redo()


def test_swap(video: TrackedVideo) -> None:
    found = corrected(video, Swap("a", (1, 2), 10))
    one, two = video.tracks[:2]
    np.testing.assert_array_equal(found[1].x_px, np.r_[one.x_px[:10], two.x_px[10:]])
    np.testing.assert_array_equal(found[2].y, np.r_[two.y[:10], one.y[10:]])
    np.testing.assert_array_equal(found[3].x_px, video.tracks[2].x_px)


def test_merge_keeps_the_rows_of_the_first_object(video: TrackedVideo) -> None:
    early = corrected(video, Delete("a", 1, 25, 29), Merge("a", (1, 3)))
    assert set(early) == {1, 2}
    expected = np.where((np.arange(40) >= 25) & (np.arange(40) < 30), 50, video.tracks[0].x_px)
    np.testing.assert_array_equal(early[1].x_px, expected)


def test_split_takes_a_number_that_was_never_used(video: TrackedVideo) -> None:
    found = corrected(video, Delete("a", 3), Split("a", 2, 20))
    assert set(found) == {1, 2, 4}
    assert found[2].frame.tolist() == list(range(20))
    assert found[4].frame.tolist() == list(range(20, 40))


def test_delete_removes_rows(video: TrackedVideo) -> None:
    found = corrected(video, Delete("a", 1, 3, 5), Delete("a", 2, 30, None), Delete("a", 3))
    assert set(found) == {1, 2}
    assert found[1].frame.tolist() == [0, 1, 2, *range(6, 40)]
    assert found[2].frame.tolist() == list(range(30))


def test_move_near_keeps_what_belongs_to_the_mask(video: TrackedVideo) -> None:
    near, far = (
        corrected(video, Move("a", 1, 7, 120, 104))[1],
        corrected(video, Move("a", 1, 7, 0, 0))[1],
    )
    assert (near.x_px[7], near.y_px[7], near.confidence[7], near.length[7]) == (120, 104, 1, 20)
    assert near.x[7] == pytest.approx(120 / WIDTH)
    assert far.confidence[7] == 1
    assert np.isnan([far.length[7], far.heading[7], far.width[7], far.area[7]]).all()
    others = np.arange(FRAMES) != 7
    for name in set(NAMES) - {"speed"}:
        np.testing.assert_array_equal(
            getattr(far, name)[others], getattr(video.tracks[0], name)[others]
        )


def test_move_adds_a_row_where_the_object_has_none(video: TrackedVideo) -> None:
    found = corrected(video, Move("a", 3, 20, 60, 310))[3]
    assert found.frame.tolist() == [20, *range(25, 35)]
    assert found.time[0] == pytest.approx(20 / FPS)
    assert np.isnan(found.length[0])


def test_nothing_leaves_rows_without_a_place(video: TrackedVideo) -> None:
    found = corrected(video, MarkEmpty("a", 30, 32))
    for number in (1, 2, 3):
        inside = (found[number].frame >= 30) & (found[number].frame <= 32)
        assert inside.sum() == 3
        assert (found[number].confidence[inside] == 0).all()
        for name in ("x", "y", "x_px", "y_px", "speed", "heading", "length", "width", "area"):
            assert np.isnan(getattr(found[number], name)[inside]).all()
        assert (found[number].confidence[~inside] == 0.9).all()


def test_speed_follows_the_places_and_stays_elsewhere(video: TrackedVideo) -> None:
    marked = video.tracks[0].changed(speed=np.full(FRAMES, -1.0))
    video = replace(video, tracks=[marked, *video.tracks[1:]])
    found = corrected(video, Move("a", 1, 7, 300, 300), Delete("a", 1, 20, 39))[1]
    expected = speed(found.x_px, found.y_px, found.time)
    near = np.isin(found.frame, [5, 6, 7, 8, 9, 18, 19])  # two frames on either side, and the end
    np.testing.assert_allclose(found.speed[near], expected[near])
    far = np.isin(found.frame, [0, 1, 2, 3, 11, 12, 13, 14, 15, 16])
    assert (found.speed[far] == -1).all()


def test_numbers_of_masks_follow(video: TrackedVideo) -> None:
    corrections = Corrections(
        (
            Swap("a", (1, 2), 10),
            MarkEmpty("a", 30, 32),
            Move("a", 1, 5, 0, 0),
            Delete("a", 2, 35, None),
        )
    )
    numbers = corrected_numbers(video, corrections)
    frames = np.array([0, 5, 9, 10, 29, 30, 33, 35, 99])
    assert numbers(frames, np.ones_like(frames)).tolist() == [1, 0, 1, 2, 2, 0, 2, 0, 0]
    assert numbers(frames, np.full_like(frames, 2)).tolist() == [2, 2, 2, 1, 1, 0, 1, 1, 0]
    assert numbers([[26], [24]], [[3], [3]]).tolist() == [[3], [0]]


def test_crossings_have_the_new_numbers(video: TrackedVideo) -> None:
    [split] = apply_corrections([video], Corrections((Split("a", 2, 8),)))
    assert [crossing.objects for crossing in split.crossings] == [(1, 4)]
    [alone] = apply_corrections([video], Corrections((Delete("a", 2),)))
    assert alone.crossings == []


def test_frames_that_were_processed_stay(video: TrackedVideo) -> None:
    late = [track.changed(frame=track.frame + 500) for track in video.tracks]
    late_video = video_of(late)
    [found] = apply_corrections([late_video], Corrections((Delete("a", 1, 530, None),)))
    assert found.frames.tolist() == list(range(500, 540))


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        (Swap("b", (1, 2), 3), "no sequence b"),
        (Swap("a", (1, 9), 3), "no object 9; its objects are 1, 2, 3"),
        (Swap("a", (1, 1), 3), "1 twice"),
        (Swap("a", (1, 2), 40), "frames 0 to 39"),
        (Merge("a", (0, 1)), "no object 0"),
        (Split("a", 3, 25), "split it after frame 25"),
        (Split("a", 3, 36), "not after frame 34"),
        (Delete("a", 3, 0, 10), "no row in frames 0 to 10"),
        (Delete("a", 1, 9, 8), "no row in frames 9 to 8"),
        (Move("a", 1, -1, 5, 5), "no frame -1"),
        (Move("a", 1, 1, float("nan"), 5), "outside"),
        (Move("a", 1, 1, 641, 5), "640 x 480"),
        (MarkEmpty("a", 5, 2**60), f"no frame {2**60}"),
        (MarkEmpty("a", 5, 4), "no object has a row"),
    ],
)
def test_what_does_not_fit_is_refused(
    video: TrackedVideo, correction: Correction, message: str
) -> None:
    with pytest.raises(Error, match=message):
        check_correction([video], Corrections(), correction)
    with pytest.raises(
        Error, match=rf"corrections\.json: correction 2 \({correction.op}\): .*{message}"
    ):
        apply_corrections([video], Corrections((Swap("a", (1, 2), 5), correction)))


def test_a_correction_is_checked_after_the_others(video: TrackedVideo) -> None:
    corrections = check_correction([video], Corrections(), Split("a", 1, 10))
    corrections = check_correction([video], corrections, Merge("a", (4, 3)))
    with pytest.raises(Error, match="no object 3"):
        check_correction([video], corrections, Delete("a", 3))
    assert len(corrections.applied) == 2


def test_frames_between_those_processed_are_refused(video: TrackedVideo) -> None:
    thinned = [track.changed(frame=5 * track.frame) for track in video.tracks]
    with pytest.raises(Error, match="frame 12 of a was not processed"):
        check_correction([video_of(thinned)], Corrections(), Move("a", 1, 12, 5, 5))


def corrections_of_any_kind() -> st.SearchStrategy[Correction]:
    number, frame = st.integers(1, 6), st.integers(0, FRAMES - 1)
    pair, end = st.tuples(number, number), st.none() | frame
    place = st.floats(0, HEIGHT)
    kinds: list[tuple[Callable[..., Correction], tuple[Any, ...]]] = [
        (Swap, (pair, frame)),
        (Merge, (pair,)),
        (Split, (number, frame)),
        (Delete, (number, end, end)),
        (Move, (number, frame, place, place)),
        (MarkEmpty, (frame, frame)),
    ]
    return st.one_of([st.builds(kind, st.just("a"), *parts) for kind, parts in kinds])


@given(st.lists(corrections_of_any_kind(), max_size=12))
def test_any_corrections_leave_tracks_in_order(wanted: list[Correction]) -> None:
    time = np.arange(FRAMES, dtype=np.float64)
    tracks = [track_of(9 * time, 5 * time, number=k, length=15) for k in (1, 2)]
    before = video_of(tracks)
    corrections = Corrections()
    for correction in wanted:
        try:
            corrections = check_correction([before], corrections, correction)
        except Error:
            continue
    [after] = apply_corrections([before], corrections)
    rows = [(frame, track.object) for track in after.tracks for frame in track.frame.tolist()]
    assert len(set(rows)) == len(rows)
    for track in after.tracks:
        assert (np.diff(track.frame) > 0).all()
        assert np.isfinite(track.time).all()
        assert (np.isnan(track.x_px) <= (track.confidence == 0)).all()
        assert all(len(each) == len(track.frame) for each in track.columns.values())
    assert (tracks[0].x_px == 9 * time).all()  # what was found stays


def test_any_correction_survives_json() -> None:
    for correction in ALL:
        content = json.loads(json.dumps(Corrections((correction,)).to_json()))["applied"][0]
        assert correction_from_json(content) == correction


def test_force_removes_corrections_of_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"learn": {}}')
    write_corrections(tmp_path, Corrections((ALL[0],)))
    check_free(tmp_path, force=True)
    clear_run(tmp_path)
    assert not (tmp_path / CORRECTIONS).exists()
