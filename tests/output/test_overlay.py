"""Drawing: ink where something was found and nowhere else, the same in pieces, and real videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.report.drawing import DOT_COLOUR, MASK_COLOUR, TRAIL_FRAMES, draw_code, draw_track
from ullayers.report.overlay import Overlay
from ullayers.tracks.table import TRACK, Answer, code_columns
from ullayers.video.sources import VideoError, find_sources, read_all

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]


def pictures(count: int, height: int = 120, width: int = 160) -> Pixels:
    return np.random.default_rng(0).integers(40, 90, (count, height, width, 3), np.uint8)


def track(values: Any, masks: Pixels | None = None, sequence: str = "a") -> Answer:
    values = np.asarray(values, float)
    number = np.arange(len(values))
    return Answer(sequence, number, number / 25, TRACK, values, masks)


def code(values: Floats, first: int = 0, sequence: str = "a") -> Answer:
    number = first + np.arange(len(values))
    return Answer(sequence, number, number / 25, code_columns(values.shape[1]), values)


def disc(count: int, height: int = 30, width: int = 40) -> Pixels:
    """Masks with a disc of a fifth of the height at one quarter of the width, half way down."""
    y, x = np.mgrid[:height, :width] + 0.5
    inside = np.hypot(x - width / 4, y - height / 2) < height / 5
    return np.repeat(255 * inside[None].astype(np.uint8), count, 0)


def walk(count: int) -> Floats:
    t = np.arange(count)
    return np.stack([0.5 + 0.3 * np.sin(t / 9), 0.5 + 0.3 * np.cos(t / 13), 0.9 + 0 * t], 1)


def away(x: float, y: float, height: int = 120, width: int = 160) -> Floats:
    """How far every pixel is from a place."""
    down, right = np.mgrid[:height, :width] + 0.5
    return np.asarray(np.hypot(right - x * width, down - y * height))


def changed(before: Pixels, after: Pixels) -> NDArray[np.bool_]:
    return np.asarray((before != after).any(-1))


def to_tensor(frames: Pixels) -> Tensor:
    return torch.from_numpy(frames).permute(0, 3, 1, 2)


def test_mask_is_tinted_inside_outlined_at_its_edge_and_nothing_else() -> None:
    frames = pictures(1, 360, 480)
    drawn = draw_track(frames, track([[0.25, 0.5, 0.0]], disc(1, 90, 120)))
    far = away(0.25, 0.5, 360, 480)
    touched = changed(frames, drawn)[0]
    assert touched[far < 60].all()
    assert not touched[far > 102].any()
    inside = drawn[0][far < 45].astype(float) - frames[0][far < 45]
    share = inside.mean(0) / (np.array(MASK_COLOUR) - frames[0][far < 45].mean(0))
    assert ((0.15 < share) & (share < 0.45)).all(), "translucent: the picture shows through"
    likeness = np.abs(drawn[0].astype(float) - MASK_COLOUR).sum(-1)
    outline = likeness < 60
    assert outline.sum() > np.pi * 72, "crisp: nearly the full colour along the edge"
    assert (np.abs(far[outline] - 72) < 5).all()


def test_smooth_masks_have_round_outlines() -> None:
    frames = np.zeros((1, 360, 480, 3), np.uint8)
    drawn = draw_track(frames, track([[0.25, 0.5, 0.0]], disc(1)))
    outline = np.abs(drawn[0].astype(float) - MASK_COLOUR).sum(-1) < 60
    radius = away(0.25, 0.5, 360, 480)[outline]
    assert radius.std() < 4, "twelve pixels a cell would make steps of twelve"


@pytest.mark.parametrize("level", [0, 127, 128, 255])
def test_flat_masks_are_outlined_at_the_border_only(level: int) -> None:
    frames = pictures(1)
    masks = np.full((1, 30, 40), level, np.uint8)
    drawn = draw_track(frames, track([[0.5, 0.5, 0.0]], masks))
    inside = drawn[0, 8:-8, 8:-8].astype(float)
    assert (np.abs(inside - MASK_COLOUR).sum(-1) > 100).all()
    assert changed(frames, drawn)[0, 8:-8, 8:-8].all() == (level >= 128)


@pytest.mark.parametrize("confidence", [0.0, 0.4, 0.5, 1.0])
def test_dot_is_filled_if_the_position_is_sure(confidence: float) -> None:
    grey = np.full((1, 360, 480, 3), 90, np.uint8)
    drawn = draw_track(grey, track([[0.25, 0.5, confidence]]))
    assert np.array_equal(drawn[0, 180, 120], DOT_COLOUR if confidence >= 0.5 else (90, 90, 90))
    distance = away(0.25, 0.5, 360, 480)
    assert not changed(grey, drawn)[0][distance > 15].any()
    ring = drawn[0][distance < 15]
    assert (ring.min(-1) > 240).any() == (confidence >= 0.5), "a white edge"
    orange = np.abs(ring.astype(int) - DOT_COLOUR).sum(-1) < 90
    assert orange.any() == (confidence > 0), "a hollow circle; nothing where nothing was found"


def test_dot_sits_where_the_place_says() -> None:
    for x, y in ((0.1, 0.9), (0.5, 0.5), (0.734, 0.219)):
        drawn = draw_track(np.zeros((1, 120, 160, 3), np.uint8), track([[x, y, 1.0]]))[0]
        ink = drawn.sum(-1).astype(float)
        down, right = np.mgrid[:120, :160] + 0.5
        assert abs((ink * right).sum() / ink.sum() - 160 * x) < 0.5
        assert abs((ink * down).sum() / ink.sum() - 120 * y) < 0.5


def test_trail_fades_with_age_and_ends() -> None:
    count = TRAIL_FRAMES + 25
    values = np.stack([np.linspace(0.05, 0.95, count), np.full(count, 0.5), np.ones(count)], 1)
    drawn = draw_track(np.zeros((count, 120, 160, 3), np.uint8), track(values))[-1]
    middle = drawn[60, :, 0].astype(int)
    start, end = int(160 * values[-TRAIL_FRAMES, 0]), int(160 * values[-1, 0]) - 12
    assert not middle[: start - 4].any(), "older places are forgotten"
    assert (np.diff(middle[start:end]) >= 0).all()
    assert middle[end] > 150 > middle[(start + end) // 2] > 20
    assert not drawn[:55].any()
    assert not drawn[66:].any()


def test_pieces_equal_whole() -> None:
    frames, values, masks = pictures(90), walk(90), disc(90)
    whole = draw_track(frames, track(values, masks))
    for cut in (1, 17, 60):
        head = draw_track(frames[:cut], track(values[:cut], masks[:cut]))
        tail = draw_track(frames[cut:], track(values[cut:], masks[cut:]), values[:cut])
        assert np.array_equal(np.concatenate([head, tail]), whole)
    cloud = walk(90)[:, :2]
    whole = draw_code(frames, code(cloud), cloud)
    tail = draw_code(frames[50:], code(cloud[50:], 50), cloud, cloud[:50])
    assert np.array_equal(tail, whole[50:])


def test_places_that_are_not_there_leave_the_frame_alone() -> None:
    for place in ([np.nan, 0.5, 1.0], [0.5, 0.5, np.nan], [7.0, -3.0, 1.0], [np.inf, 0.5, 1.0]):
        assert np.array_equal(draw_track(pictures(1), track([place])), pictures(1))


def test_trail_breaks_where_nothing_was_found() -> None:
    values = [[0.1, 0.5, 1.0], [0.3, 0.5, 1.0], [np.nan] * 3, [0.7, 0.5, 1.0], [0.9, 0.5, 1.0]]
    drawn = draw_track(np.zeros((5, 120, 160, 3), np.uint8), track(values))[-1]
    line = drawn[60, :, 0] > 0
    assert line[20:44].all()
    assert not line[54:106].any()
    assert line[116:].any()


def test_trail_does_not_pass_through_unsure_places() -> None:
    values = [[0.1, 0.2, 1.0], [0.3, 0.2, 1.0], [0.5, 0.9, 0.4], [0.7, 0.2, 1.0], [0.9, 0.2, 1.0]]
    drawn = draw_track(np.zeros((5, 120, 160, 3), np.uint8), track(values))[-1]
    assert not drawn[40:].any(), "the unsure place would be a spike"
    line = drawn[24, :, 0] > 0
    assert line[20:44].all()
    assert not line[54:106].any()
    assert line[116:].any()


def test_input_is_not_written_to() -> None:
    frames = pictures(2)
    kept = frames.copy()
    draw_track(frames, track(walk(2), disc(2)))
    draw_code(frames, code(walk(2)), walk(9))
    assert np.array_equal(frames, kept)


@pytest.mark.parametrize("shape", [(48, 64), (47, 33), (16, 200), (720, 1280)])
@pytest.mark.parametrize("mask", [(6, 8), (90, 120)])
def test_all_sizes(shape: tuple[int, int], mask: tuple[int, int]) -> None:
    frames = pictures(2, *shape)
    drawn = draw_track(frames, track(walk(2), disc(2, *mask)))
    assert drawn.shape == frames.shape
    assert changed(frames, drawn).any((1, 2)).all()


def test_code_panel_shows_the_cloud_and_where_we_are() -> None:
    turn = np.linspace(0, 2 * np.pi, 400)
    cloud = np.stack([np.cos(turn), np.sin(turn)], 1)
    frames = pictures(3)
    drawn = draw_code(frames, code(cloud[[0, 100, 200]]), cloud)
    assert drawn.shape == (3, 120, 280, 3)
    assert np.array_equal(drawn[:, :, :160], frames)
    panel = drawn[:, :, 160:].astype(int)
    radius = away(0.5, 0.5, 120, 120)
    grey = (panel[0].min(-1) > 90) & (radius < 62)  # the names of the axes are in the corners
    assert grey.sum() > 300
    assert (np.abs(radius[grey] - 50) < 12).all(), "equal scales: a circle is a circle"
    for number, (x, y) in enumerate([(110, 60), (60, 10), (10, 60)]):  # the second number is up
        orange = np.abs(panel[number] - DOT_COLOUR).sum(-1) < 40
        near = np.hypot(*(np.argwhere(orange) - (y, x)).T).min()
        assert near < 4


def test_one_number_runs_over_the_frames() -> None:
    cloud = np.linspace(-1, 1, 50)[:, None]
    drawn = draw_code(pictures(50), code(cloud), cloud)[:, :, 160:].astype(int)
    places = []
    for panel in drawn[[0, 24, 49]]:
        white = np.argwhere(panel.min(-1) > 200)
        places.append(white.mean(0))
    down, right = np.array(places).T
    assert (np.diff(right) > 30).all()
    assert (np.diff(down) < -30).all()


@pytest.mark.parametrize("d", [1, 2, 8])
@pytest.mark.parametrize("rows", [1, 5])
def test_clouds_without_extent_or_with_gaps(d: int, rows: int) -> None:
    cloud = np.zeros((rows, d))
    cloud[-1] = np.nan if rows > 1 else 0
    drawn = draw_code(pictures(rows), code(cloud), cloud)
    assert drawn.shape == (rows, 120, 280, 3)
    assert np.ptp(drawn[0, :, 160:]) > 100


def test_refusals() -> None:
    with pytest.raises(ValueError, match="expected answers to 3 frames, got 2"):
        draw_track(pictures(3), track(walk(2)))
    with pytest.raises(ValueError, match="expected answers to 2 frames"):
        draw_track(pictures(2), track(walk(2), disc(1)))
    with pytest.raises(ValueError, match="expected uint8 frames"):
        draw_track(pictures(2)[..., 0], track(walk(2)))
    with pytest.raises(ValueError, match=r"cloud of shape \(n, 2\), got \(9, 3\)"):
        draw_code(pictures(2), code(walk(2)[:, :2]), walk(9))


def read(path: Path) -> Pixels:
    frames = read_all(find_sources([str(path)])[0]).frames
    return frames.permute(0, 2, 3, 1).numpy()


def test_video_has_every_frame_and_the_ink(tmp_path: Path) -> None:
    frames, answer = np.full((50, 120, 160, 3), 60, np.uint8), track(walk(50), disc(50))
    with Overlay(tmp_path / "overlay.mp4", 25) as overlay:
        for cut in (slice(0, 20), slice(20, 50)):
            part = track(answer.values[cut], disc(50)[cut])
            overlay.add(to_tensor(frames[cut]), part)
    assert [path.name for path in tmp_path.iterdir()] == ["overlay.mp4"]
    got = read(tmp_path / "overlay.mp4").astype(float)
    assert got.shape == frames.shape
    wanted = draw_track(frames, answer)
    assert np.abs(got - wanted).mean() < 5, "what H.264 loses"
    assert np.abs(got - frames).max() > 120


def test_grey_frames(tmp_path: Path) -> None:
    with Overlay(tmp_path / "a.mp4", 25) as overlay:
        overlay.add(torch.full((4, 1, 48, 64), 80, dtype=torch.uint8), track(walk(4)))
    assert read(tmp_path / "a.mp4").shape == (4, 48, 64, 3)


def test_another_size_is_letterboxed_and_another_sequence_has_its_own_trail(tmp_path: Path) -> None:
    tall = np.full((3, 200, 100, 3), 200, np.uint8)
    with Overlay(tmp_path / "a.mp4", 25) as overlay:
        overlay.add(to_tensor(np.full((30, 120, 160, 3), 200, np.uint8)), track(walk(30)))
        overlay.add(to_tensor(tall), track([[0.5, 0.9, 1.0]] * 3, None, "b"))
    last = read(tmp_path / "a.mp4")[-1].astype(int)
    assert last.shape == (120, 160, 3)
    assert last[:, :46].max() < 40, "black at the left"
    assert last[:, 114:].max() < 40
    field = last[:90, 54:106]
    assert np.abs(field - 200).max() < 25, "the picture fills the height, and no trail came along"
    assert last[108, 80, 0] - last[108, 80, 2] > 60, "orange: places are those of the picture"


def test_small_frames_are_enlarged_to_the_first_size(tmp_path: Path) -> None:
    with Overlay(tmp_path / "a.mp4", 25) as overlay:
        overlay.add(torch.zeros(1, 3, 120, 160, dtype=torch.uint8), track([[0.5, 0.5, 0.0]]))
        small = torch.full((1, 1, 30, 40), 180, dtype=torch.uint8)
        overlay.add(small, track([[0.5, 0.5, 0.0]], None, "b"))
    assert read(tmp_path / "a.mp4")[-1].min() > 160


def test_codes_in_a_video(tmp_path: Path) -> None:
    cloud = walk(40)[:, :2]
    with Overlay(tmp_path / "a.mp4", 25, cloud=cloud) as overlay:
        overlay.add(to_tensor(pictures(25)), code(cloud[:25]))
        wide = pictures(15, 60, 200)
        overlay.add(to_tensor(wide), code(cloud[25:], 0, "b"))
    assert read(tmp_path / "a.mp4").shape == (40, 120, 280, 3)


def test_the_second_sequence_of_a_one_dimensional_code_continues_along_the_cloud(
    tmp_path: Path,
) -> None:
    cloud = np.zeros((40, 1))
    with Overlay(tmp_path / "a.mp4", 25, cloud=cloud) as overlay:
        overlay.add(to_tensor(np.zeros((20, 120, 160, 3), np.uint8)), code(cloud[:20]))
        overlay.add(to_tensor(np.zeros((20, 120, 160, 3), np.uint8)), code(cloud[20:], 0, "b"))
    frames = read(tmp_path / "a.mp4")[:, :, 160:]
    right = [np.argwhere(frame.min(-1) > 200)[:, 1].mean() for frame in frames[[0, 19, 20, 39]]]
    assert np.allclose(right, [10, 59, 61, 110], atol=3)


def write_half(path: Path) -> None:
    with Overlay(path, 25) as overlay:
        overlay.add(to_tensor(pictures(2)), track(walk(2)))
        overlay.add(to_tensor(pictures(2)), track(walk(3)))


def test_errors_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_text("before")
    with pytest.raises(ValueError, match="answers to 2 frames"):
        write_half(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.mp4", "before")]
    with pytest.raises(ValueError, match="expected cloud="), Overlay(path, 25) as overlay:
        overlay.add(to_tensor(pictures(2)), code(walk(2)))
    with pytest.raises(ValueError, match="expected uint8 frames"), Overlay(path, 25) as overlay:
        overlay.add(torch.zeros(2, 3, 48, 64), track(walk(2)))
    with pytest.raises(VideoError, match="no frame was written"), Overlay(path, 25):
        pass
    assert path.read_text() == "before"
