"""A range of time: the frames, times and numbers of a full decode, without decoding all of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ullayers.video.files.decoding as decoding
from tests.video.samples import cut, read, write_images, write_video
from tests.video.seek_films import CHANGED, FRAMES, GOP, SEEKABLE, UNSEEKABLE
from ullayers.video.clips import Clip, Info, Reading, VideoError, info_between
from ullayers.video.files.decoding import read_video
from ullayers.video.files.opening import open_video
from ullayers.video.files.seeking import find_key_frame
from ullayers.video.sources import open_live, read_all


def check_part(whole: Clip, part: Clip, start: float, end: float = 1e9) -> None:
    keep = (whole.seconds >= start) & (whole.seconds < end)
    assert torch.equal(part.index, whole.index[keep])
    assert torch.equal(part.seconds, whole.seconds[keep])
    assert torch.equal(part.frames, whole.frames[keep])


@pytest.mark.parametrize("name", [*SEEKABLE, *UNSEEKABLE, *CHANGED])
def test_a_range_equals_that_of_a_full_decode(seek_films: Path, name: str) -> None:
    path = str(seek_films / name)
    whole = read(path)
    count = CHANGED.get(name, FRAMES)
    assert len(whole.index) == count
    first = float(whole.seconds[0])
    for number in (1, GOP - 1, GOP, GOP + 1, 2 * GOP + 7, 3 * GOP - 1, count - 1):
        start = float(whole.seconds[number])
        check_part(whole, read(path, start=start), start)
        start = first + (number - 0.4) / 25
        check_part(whole, read(path, start=start, end=start + 0.5), start, start + 0.5)
    check_part(whole, read(path, start=2.5, end=3.1), 2.5, 3.1)
    check_part(whole, read(path, end=first + 1.0), 0, first + 1.0)


@pytest.mark.parametrize("name", [*SEEKABLE, *UNSEEKABLE])
def test_frames_have_the_times_at_which_they_are_shown(seek_films: Path, name: str) -> None:
    seconds = read(str(seek_films / name)).seconds
    steps = torch.diff(seconds)
    assert (steps - 1 / 25).abs().max() < 2e-3  # Matroska has milliseconds


@pytest.mark.parametrize("name", SEEKABLE)
def test_what_comes_before_the_range_is_not_decoded(
    seek_films: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    decode = decoding._decode_packet

    def counting(packet: Any, damage: Any) -> Any:
        decoded.append(packet.pts)
        return decode(packet, damage)

    monkeypatch.setattr(decoding, "_decode_packet", counting)
    path = str(seek_films / name)
    start = (3 * GOP + 10) / 25 + float(read(path, max_frames=1).seconds[0])
    decoded.clear()
    assert len(read(path, start=start).index) == FRAMES - 3 * GOP - 10
    assert len(decoded) <= FRAMES - GOP


@pytest.mark.parametrize("name", [*UNSEEKABLE, "open_start.mkv"])
def test_where_numbers_are_not_certain_nothing_is_skipped(seek_films: Path, name: str) -> None:
    with open_video(str(seek_films / name)) as video:
        assert find_key_frame(video, 6.0) is None


@given(
    start=st.floats(0, 7.9, allow_nan=False),
    duration=st.floats(0.05, 9),
    stride=st.integers(1, 9),
    most=st.one_of(st.none(), st.integers(1, 9)),
)
def test_stride_and_limit_count_from_the_start(
    seek_films: Path, start: float, duration: float, stride: int, most: int | None
) -> None:
    path = str(seek_films / "open.mp4")
    expected = [n for n in range(FRAMES) if start <= n / 25 < start + duration]
    reading = {"start": start, "end": start + duration, "stride": stride, "max_frames": most}
    if expected:
        assert read(path, size=(8, 8), **reading).index.tolist() == expected[::stride][:most]
    else:
        with pytest.raises(VideoError, match="has no frame from"):
            read(path, size=(8, 8), **reading)


def test_variable_frame_rates(tmp_path: Path) -> None:
    pts = [0, 10, 20, 500, 510, 2000, 2001, 2500]
    path = write_video(tmp_path / "a.mkv", 8, pts=pts)
    assert read(path, start=0.5, end=2.001).index.tolist() == [3, 4, 5]


def test_a_file_that_is_played_as_a_stream(seek_films: Path) -> None:
    source = open_live(str(seek_films / "closed.mp4"))
    assert read_all(source, Reading(start=5, end=5.1)).index.tolist() == [125, 126, 127]


def test_pictures_have_the_times_of_their_table(tmp_path: Path) -> None:
    path = write_images(tmp_path / "in", 30)
    part = read(path, start=0.2, end=0.5)
    assert part.index.tolist() == list(range(5, 13))
    assert part.seconds.tolist() == [number / 25 for number in range(5, 13)]
    assert read(path, start=0.21, stride=10).index.tolist() == [6, 16, 26]


def test_an_empty_range_says_where_the_video_ends(seek_films: Path, tmp_path: Path) -> None:
    pictures = write_images(tmp_path / "in", 30)
    for path, end in ((str(seek_films / "closed.mp4"), "7.96"), (pictures, "1.16")):
        with pytest.raises(VideoError) as caught:
            read(path, start=60, end=90.5)
        assert str(caught.value) == (
            f"{path}: has no frame from 60 s to 90.5 s; its last frame is at {end} s; "
            "change --start or --end"
        )


def test_damage_outside_the_range_does_not_matter(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 75, movflags="faststart")
    whole = read(path)
    cut(path, 0.8)
    check_part(whole, read(path, end=1.0), 0, 1.0)
    with pytest.raises(VideoError, match="broken"):
        read(path, start=1.0)


def test_times_that_make_no_sense() -> None:
    for start, end in ((-1.0, None), (float("nan"), None), (2.0, 2.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="expected 0 <= start < end"):
            Reading(start=start, end=end)


def test_number_of_frames_in_a_range() -> None:
    film = Info(64, 48, 25.0, 100)
    assert info_between(film) == film
    assert info_between(film, 1.0, 2.0).frames == 25
    assert info_between(film, 0.28).frames == 93
    assert info_between(film, 9.0).frames == 0
    assert info_between(Info(64, 48, 25.0, None), 1.0).frames is None
    assert info_between(Info(64, 48, 25.0, None), 1.0, 2.0).frames == 25
    assert info_between(Info(64, 48, None, 100), 1.0).frames is None


def test_a_reader_that_is_stopped_says_nothing_of_an_empty_range(seek_films: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert list(read_video(str(seek_films / "closed.mp4"), False, Reading(start=1.0), stop)) == []
