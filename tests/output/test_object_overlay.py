"""Several objects in the overlay: each in its own colour, wherever it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.output.made_tracks import FPS, HEIGHT, WIDTH, track_of
from ullayers.report.drawing import draw_objects
from ullayers.tracks.masks import PALETTE, identity_colour, identity_marker
from ullayers.tracks.reading import Crossing, Track

# Machado et al. (2009), severity 1.0, for linear RGB.
COLOUR_VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    shares = colours / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def oklab(light: NDArray[np.float64]) -> NDArray[np.float64]:
    to_cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    lab: NDArray[np.float64] = np.cbrt(light.clip(0, 1) @ to_cones.T) @ to_lab.T
    return lab


@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_colours_are_told_apart_by_everyone(vision: str) -> None:
    seen = oklab(linear(np.array(PALETTE, np.float64)) @ COLOUR_VISION[vision].T)
    distance = np.linalg.norm(seen[:, None] - seen, axis=2)
    assert distance[~np.eye(len(PALETTE), dtype=bool)].min() > 0.13


def test_no_two_of_32_objects_look_the_same() -> None:
    looks = {(identity_colour(number), identity_marker(number)) for number in range(1, 33)}
    assert len(looks) == 32
    assert len(PALETTE) >= 8


@pytest.fixture
def crossing_pair() -> list[Track]:
    """Two objects in 60 frames: one goes right, one left, on different heights."""
    x = np.linspace(100, 500, 60)
    return [
        track_of(x, np.full(60, 150.0)),
        track_of(600 - x, np.full(60, 350.0), number=2),
    ]


def near(picture: NDArray[np.uint8], x: float, y: float, reach: int = 40) -> NDArray[np.uint8]:
    return picture[max(0, int(y) - reach) : int(y) + reach, max(0, int(x) - reach) : int(x) + reach]


def has(part: NDArray[np.uint8], colour: tuple[int, int, int]) -> bool:
    return bool((part == np.array(colour)).all(-1).any())


@pytest.mark.parametrize("background", [0, 128, 255])
def test_each_object_has_its_colour(crossing_pair: list[Track], background: int) -> None:
    frames = np.full((3, HEIGHT, WIDTH, 3), background, np.uint8)
    drawn = draw_objects(frames, None, crossing_pair, np.array([30, 31, 32]))
    assert (frames == background).all()
    for row in range(3):
        for track in crossing_pair:
            part = near(drawn[row], track.x_px[30 + row], track.y_px[30 + row])
            assert has(part, identity_colour(track.object))
            assert not has(part, identity_colour(3 - track.object))


def test_pieces_are_as_the_whole(crossing_pair: list[Track]) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (12, 120, 160, 3), np.uint8)
    numbers = np.arange(20, 32)
    whole = draw_objects(frames, None, crossing_pair, numbers)
    parts = [
        draw_objects(frames[some], None, crossing_pair, numbers[some])
        for some in (slice(0, 5), slice(5, 12))
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_masks_of_any_size(crossing_pair: list[Track]) -> None:
    labels = np.zeros((1, 48, 64), np.uint16)
    labels[0, 10:20, 5:15] = 1
    labels[0, 30:40, 45:55] = 2
    numbers = np.array([59])
    frames = np.full((1, HEIGHT, WIDTH, 3), 90, np.uint8)
    drawn = draw_objects(frames, labels, crossing_pair, numbers)[0]
    large = labels.repeat(10, 1).repeat(10, 2)
    again = draw_objects(frames, large, crossing_pair, numbers)[0]
    for picture in (drawn, again):
        assert has(near(picture, 100, 200), identity_colour(1)), "outline"
        assert (picture[150, 100] != 90).any(), "tint"
    assert np.abs(drawn.astype(int) - again).mean() < 2


def test_crossing_objects_are_ringed(crossing_pair: list[Track]) -> None:
    frames = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)
    numbers = np.array([30])
    crossing = Crossing("a", 28, 32, 28 / FPS, 32 / FPS, (1,), 0.9)
    plain, ringed, later = (
        draw_objects(frames, None, crossing_pair, numbers, crossings)[0]
        for crossings in ([], [crossing], [replace(crossing, first_frame=31)])
    )
    changed = (plain != ringed).any(-1)
    x, y = crossing_pair[0].x_px[30], crossing_pair[0].y_px[30]
    assert changed[int(y) - 40 : int(y) + 40, int(x) - 40 : int(x) + 40].sum() == changed.sum() > 30
    np.testing.assert_array_equal(plain, later)


def test_lost_objects_have_no_number(crossing_pair: list[Track]) -> None:
    frames = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)
    numbers = np.array([30])
    lost = crossing_pair[0].changed(confidence=np.full(60, 0.2))
    gone = crossing_pair[0].changed(x=np.full(60, np.nan))
    found, unsure, nothing = (
        draw_objects(frames, None, [track], numbers).any(-1).sum()
        for track in (crossing_pair[0], lost, gone)
    )
    assert found > unsure > nothing == 0
    assert not draw_objects(frames, None, crossing_pair, np.array([99])).any()


def test_frames_without_any_mask(crossing_pair: list[Track]) -> None:
    frames = np.zeros((2, HEIGHT, WIDTH, 3), np.uint8)
    labels = np.zeros((2, HEIGHT, WIDTH), np.uint8)
    numbers = np.array([30, 31])
    drawn = draw_objects(frames.copy(), labels, crossing_pair, numbers)
    np.testing.assert_array_equal(drawn, draw_objects(frames, None, crossing_pair, numbers))


def test_objects_at_the_edge_and_far_outside() -> None:
    x = np.array([0.0, 640.0, 1e9, -1e9])
    drawn = draw_objects(
        np.zeros((4, 48, 64, 3), np.uint8), None, [track_of(x, x)], np.arange(4), []
    )
    assert drawn[:2].any(-1).sum((1, 2)).min() > 10


def test_bad_input_is_refused(crossing_pair: list[Track]) -> None:
    frames, numbers = np.zeros((2, 48, 64, 3), np.uint8), np.arange(2)
    other = replace(crossing_pair[0], sequence="b")
    with pytest.raises(ValueError, match="one sequence"):
        draw_objects(frames, None, [crossing_pair[0], other], numbers)
    with pytest.raises(ValueError, match="label images"):
        draw_objects(frames, np.zeros((1, 9, 9), np.uint8), crossing_pair, numbers)
    with pytest.raises(ValueError, match="frame numbers"):
        draw_objects(frames, None, crossing_pair, numbers[:1])
