"""Footage: bounded, evenly spread, and with a backdrop and a camera's path that fit it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.films import (
    BALL,
    ball,
    still,
    write_ball,
    write_film,
    write_pictures,
    write_raw,
    write_truncated,
)
from ullayers.learning.footage import (
    PIECE,
    Footage,
    Spread,
    cut,
    expected_frames,
    gather,
    gathering,
    make_piece,
    natural_reading,
    open_sources,
)
from ullayers.learning.survey import open_recording, outline_reading, plan_survey
from ullayers.locate.recording.windows import StillRecording
from ullayers.video.sources import Clip, Info, Reading, Source, VideoError, find_sources


def clip_of(frames: torch.Tensor, first: int = 0) -> Clip:
    number = first + torch.arange(len(frames))
    return Clip(frames, number / 25.0, number)


@given(most=st.integers(1, 9), count=st.integers(0, 200), pieces=st.integers(1, 50))
def test_what_is_kept_is_evenly_spread_and_bounded(most: int, count: int, pieces: int) -> None:
    kept = Spread[int](most)
    for start in range(0, count, pieces):
        kept.extend(range(start, min(count, start + pieces)))
    assert all(number == item for number, item in kept.items.items())
    assert len(kept.items) <= most
    assert list(kept.items) == list(range(0, count, kept.every))
    assert len(kept.items) >= min(count, most) / 2


@pytest.mark.parametrize("count", [1, 5, 20, 24, 25, 30, 31, 59])
def test_cut_loses_nothing_and_leaves_no_short_rest(tmp_path: Path, count: int) -> None:
    [source] = find_sources([write_pictures(tmp_path / "a", still(count, 8, 8))])
    clips = list(cut(source, Reading(), 20))
    assert torch.cat([clip.index for clip in clips]).tolist() == list(range(count))
    for clip in clips:
        assert len(clip.frames) == len(clip.index) == len(clip.seconds)
        assert len(clip.index) < 30
        assert len(clip.index) >= min(count, 10)


def test_a_broken_source_gives_what_can_be_read(tmp_path: Path) -> None:
    [source] = find_sources([write_truncated(tmp_path / "a.mp4")])
    read = []
    with pytest.raises(VideoError, match="broken after frame"):  # noqa: PT012
        for clip in cut(source, Reading()):
            read += clip.index.tolist()
    assert 3 < len(read) < 40
    footage = gather([source], Reading(), skip_bad=True)
    assert footage.seen == len(read)
    assert "broken" in footage.bad["a"]
    with pytest.raises(VideoError, match="broken"):
        gather([source], Reading())


def test_footage_fits_its_room_and_is_spread_over_everything(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_pictures(tmp_path / name, still(4 * PIECE, 4, 4), "bmp")
    sources, room = find_sources([str(tmp_path)]), 3 * PIECE * 48
    footage = gather(sources, Reading(), room=room)
    assert footage.seen == list(gathering(sources, Reading(), room=room))[-1] == 8 * PIECE
    assert footage.size() <= room
    starts = [(piece.source, int(piece.clip.index[0])) for piece in footage.pieces]
    assert starts == [(0, 0), (1, 0)], "the first and the fifth of eight"


def test_one_piece_is_kept_however_little_room_there_is(tmp_path: Path) -> None:
    sources = find_sources([write_pictures(tmp_path / "a", still(5, 8, 8))])
    assert len(gather(sources, Reading(), room=1).pieces) == 1


def test_sources_of_all_sizes_come_out_alike(tmp_path: Path) -> None:
    write_ball(tmp_path / "wide.mp4", 5, 24, 64)
    write_ball(tmp_path / "tall.mp4", 5, 64, 24)
    footage = gather(find_sources([str(tmp_path)]), Reading(size=(16, 24)))
    assert footage.names == ["tall", "wide"]
    assert [piece.clip.frames.shape for piece in footage.pieces] == [(5, 3, 16, 24)] * 2


def test_sequences_that_are_too_short_are_left_out(tmp_path: Path) -> None:
    for name, count in (("a", 2), ("b", 3)):
        write_pictures(tmp_path / name, still(count, 8, 8))
    footage = gather(find_sources([str(tmp_path)]), Reading())
    assert footage.seen == 5
    assert [piece.source for piece in footage.pieces] == [1]


def panned(count: int, right: int) -> torch.Tensor:
    """A ball in front of a ground that moves to the right, uint8 (count, 3, 192, 256)."""
    generator = torch.Generator().manual_seed(0)
    scales = [torch.rand(1, 3, side, 3 * side, generator=generator) for side in (9, 24)]
    wide = sum(F.interpolate(x, (192, 640), mode="bicubic", align_corners=False) for x in scales)
    assert isinstance(wide, torch.Tensor)
    frames = []
    for t in range(count):
        left = 200 - round(right * t)
        frame = wide[0, ..., left : left + 256] / 2
        x, y = torch.arange(256), torch.arange(192)[:, None]
        hit = (x - 128 - 80 * np.sin(t / 6)) ** 2 + (y - 96) ** 2 < 320
        frames.append(torch.where(hit, torch.tensor([1.0, 0.1, 0.1])[:, None, None], frame))
    return (torch.stack(frames).clamp(0, 1) * 255).byte()


@pytest.mark.parametrize("right", [0, 3])
def test_a_moving_camera_is_compensated_and_a_static_one_left_alone(
    tmp_path: Path, right: int
) -> None:
    film = panned(40, right).permute(0, 2, 3, 1).numpy()
    footage = gather(find_sources([write_film(tmp_path / "a.mp4", film)]), Reading(longest=64))
    [piece] = footage.pieces
    if right == 0:
        assert piece.path is None
        assert list(footage.backdrops()) == [0]
    else:
        truth = torch.arange(40)[:, None] * torch.tensor([0.0, right / 4])
        assert piece.path is not None
        assert float((piece.path - truth).abs().max()) < 2  # of a way of 29 pixels
        assert not footage.backdrops(), "another camera position has another backdrop"
    energy = piece.foreground().square().sum(1)
    centre = (energy.square().sum(1) @ torch.arange(64.0)) / energy.square().sum((1, 2))
    expected = 32 + 20 * torch.sin(torch.arange(40.0) / 6)
    assert float((centre - expected).abs().median()) < 1.5, "only the ball is left"


def test_parts_of_a_piece_have_the_foreground_of_the_whole() -> None:
    for right in (0, 3):
        piece = make_piece(0, clip_of(panned(24, right)[..., ::4, ::4]))
        whole = piece.foreground()
        assert torch.equal(piece.foreground(slice(5, 9)), whole[5:9])
        other = torch.full_like(whole[0], 0.5)
        changed = not torch.equal(piece.foreground(behind=other), whole)
        assert changed == (right == 0), "a moving camera keeps its own backdrop"


def test_the_backdrop_of_a_source_is_that_of_all_its_pieces() -> None:
    levels = [(0, 10), (0, 30), (0, 200), (1, 90)]
    pieces = [
        make_piece(source, clip_of(torch.full((4, 1, 8, 8), level, dtype=torch.uint8)))
        for source, level in levels
    ]
    found = Footage(["a", "b"], pieces).backdrops()
    assert {s: round(255 * float(b.mean())) for s, b in found.items()} == {0: 30, 1: 90}


def test_bad_sources_are_listed_or_raised(tmp_path: Path) -> None:
    write_ball(tmp_path / "good.mp4", 3)
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "1.png").write_bytes(b"no picture")
    nowhere = str(tmp_path / "nowhere.mp4")
    paths = [str(tmp_path / name) for name in ("good.mp4", "empty.mp4", "pictures")] + [nowhere]
    sources, infos, bad = open_sources(paths, skip_bad=True)
    assert [source.name for source in sources] == ["good"]
    assert infos == [Info(BALL[1], BALL[0], 25.0, 3)]
    assert set(bad) == set(paths[1:])
    for path in paths[1:]:
        with pytest.raises(VideoError):
            open_sources([paths[0], path])
        with pytest.raises(VideoError):
            open_sources([path], skip_bad=True)


@pytest.mark.parametrize(
    ("rate", "frames", "most", "stride", "kept"),
    [
        (30.0, 10_000, None, 5, None),
        (30.0, 1200, None, 2, None),  # five would leave too few
        (30.0, 999, None, 1, None),
        (30.0, 10_000, 600, 1, 600),
        (30.0, 10_000, 2001, 4, 501),
        (120.0, 10_000, None, 20, None),
        (None, None, None, 1, None),
        (4.0, 10_000, None, 1, None),
        (30.0, None, None, 5, None),
    ],
)
def test_stride_follows_the_rate_if_enough_is_left(
    rate: float | None, frames: int | None, most: int | None, stride: int, kept: int | None
) -> None:
    reading = natural_reading(Reading(max_frames=most), Info(64, 48, rate, frames))
    assert (reading.stride, reading.max_frames) == (stride, kept)


def test_short_sequences_are_not_thinned_however_many_there_are(tmp_path: Path) -> None:
    lengths = [13] * 40 + [1200]
    for number, count in enumerate(lengths):
        write_pictures(tmp_path / f"{number:02d}", still(count, 4, 4), "bmp")
    footage = gather(find_sources([str(tmp_path)]), Reading(), natural=True)
    steps = [piece.clip.index.diff().unique().tolist() for piece in footage.pieces]
    assert steps == [[1]] * 40 + [[2]] * 2
    assert [reading.stride for reading in footage.readings.values()] == [1] * 40 + [2]
    assert footage.seen == 40 * 13 + 600


def test_a_source_that_is_shorter_than_its_header_says_is_not_thinned(tmp_path: Path) -> None:
    [source] = find_sources([write_raw(tmp_path / "a.h264", ball(90, 16, 16)[0])])
    assert natural_reading(Reading(), source.probe()).stride > 1
    footage = gather([source], Reading(), natural=True)
    assert (footage.seen, footage.readings[0].stride) == (90, 1)
    path = Path(write_truncated(tmp_path / "b.mp4", 1000))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])
    [broken] = find_sources([str(path)])
    assert natural_reading(Reading(), broken.probe()).stride > 1
    footage = gather([broken], Reading(), natural=True, skip_bad=True)
    assert 100 < footage.seen < 500
    assert footage.readings[0].stride == 1
    assert "broken" in footage.bad["b"]


def test_pictures_that_change_size_need_one_to_be_given(tmp_path: Path) -> None:
    folder = Path(write_pictures(tmp_path / "a", ball(4)[0]))
    Image.fromarray(ball(1, 24, 20)[0][0]).save(folder / "img9.png")
    sources = find_sources([str(folder)])
    with pytest.raises(VideoError, match=r"img9.png: 20 x 24 pixels, but .*img0.png has 40 x 30"):
        gather(sources, Reading(size=(16, 16), mixed=False))
    assert gather(sources, Reading(size=(16, 16))).seen == 5


def test_a_long_source_is_cut_at_the_usual_length(tmp_path: Path) -> None:
    sources = find_sources([write_pictures(tmp_path / "a", still(2 * PIECE + 3, 4, 4))])
    assert [len(piece) for piece in gather(sources, Reading()).pieces] == [PIECE, PIECE + 3]


def test_neighbours_have_colours_of_their_own(tmp_path: Path) -> None:
    red, blue = (220, 30, 30), (30, 30, 220)
    picture = np.full((96, 128, 3), blue, np.uint8)
    picture[:, : 4 * 15] = red  # an edge between an even column and an odd one
    film = write_film(tmp_path / "a.mp4", np.repeat(picture[None], 3, 0))
    [piece] = gather(find_sources([film]), Reading(longest=32)).pieces
    columns = piece.clip.frames[0, :, 4:20].float().mean(1).T
    for number, colour in ((13, red), (14, red), (15, blue), (16, blue)):
        assert np.abs(columns[number].numpy() - colour).max() < 40, number


@pytest.mark.parametrize("stride", [1, 2, 3, 7])
@pytest.mark.parametrize("most", [None, 1, 4, 100])
@pytest.mark.parametrize("start", [0, 5, 50])
def test_expected_frames_are_those_that_are_read(
    tmp_path_factory: pytest.TempPathFactory, stride: int, most: int | None, start: int
) -> None:
    folder = tmp_path_factory.mktemp("in")
    for name, count in (("a", 20), ("b", 7)):
        write_pictures(folder / name, still(count, 8, 8))
    sources = find_sources([str(folder)])
    reading = Reading(stride=stride, max_frames=most, first=start)
    read = sum(len(clip.index) for source in sources for clip in source.clips(8, reading))
    assert expected_frames([source.probe() for source in sources], reading) == read


def test_expected_frames_are_unknown_if_a_header_does_not_tell() -> None:
    assert expected_frames([Info(64, 48, 25.0, 9), Info(64, 48, 25.0, None)], Reading()) is None


def test_survey_is_taken_while_frames_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scene is the same as from a survey of its own, and nothing is read again."""
    [source] = find_sources([write_ball(tmp_path / "film.mp4", 400)])
    reading = outline_reading(source.probe(), Reading())
    alone = open_recording(source, reading)
    survey = plan_survey(source, reading)
    assert survey is not None
    assert survey.step > 1
    gather([source], Reading(longest=32, stride=3, passing=survey))
    monkeypatch.setattr(Source, "clips", None)
    shared = open_recording(source, reading, survey=survey)
    assert isinstance(alone, StillRecording)
    assert isinstance(shared, StillRecording)
    np.testing.assert_array_equal(shared.scene.backdrop, alone.scene.backdrop)
    np.testing.assert_array_equal(shared.scene.noise, alone.scene.noise)
    assert shared.threshold == alone.threshold


def test_survey_of_a_source_with_fewer_frames_than_its_header_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [source] = find_sources([write_ball(tmp_path / "film.mp4", 160)])
    reading = outline_reading(source.probe(), Reading())
    honest = open_recording(source, reading)
    monkeypatch.setattr("ullayers.learning.survey.expected_frames", lambda *_: 20_000)
    misled = open_recording(source, reading)
    assert isinstance(honest, StillRecording)
    assert isinstance(misled, StillRecording)
    np.testing.assert_array_equal(misled.scene.backdrop, honest.scene.backdrop)
    assert misled.threshold == honest.threshold
