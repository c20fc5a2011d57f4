"""Hand-held cameras shake; objects at rest are found as well as moving ones."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.locate.moving_scene import film as moving_film
from tests.locate.still_films import HEIGHT, WIDTH, Places, circle, film
from ullayers.locate.paths import Anchors
from ullayers.locate.recording.handheld import HandheldRecording
from ullayers.locate.recording.windows import find_still_scene

Frames = NDArray[np.uint8]
SHAKE = 4.0  # pixels


def shaken(frames: Frames, places: Places) -> tuple[Frames, Places]:
    """Return the film with simulated hand shake, and the positions of the object in it."""
    t = np.arange(len(frames)) / 25
    right = SHAKE * np.sin(2 * np.pi * 0.31 * t) + np.sin(2 * np.pi * 1.7 * t)
    down = SHAKE * np.cos(2 * np.pi * 0.23 * t) + np.cos(2 * np.pi * 2.1 * t)
    turn = 0.01 * np.sin(2 * np.pi * 0.17 * t)
    views, moved = [], []
    for frame, place, dx, dy, angle in zip(frames, places, right, down, turn, strict=True):
        matrix = cv2.getRotationMatrix2D((WIDTH / 2, HEIGHT / 2), np.degrees(angle), 1.0)
        matrix[:, 2] += dx, dy
        view = cv2.warpAffine(frame, matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
        views.append(view)
        moved.append(matrix @ (*place, 1))
    return np.stack(views), np.array(moved)


def sample(frames: Frames) -> NDArray[np.intp]:
    return np.linspace(0, len(frames) - 2, 48).astype(int)


@pytest.fixture(scope="module")
def resting() -> tuple[Frames, Places]:
    """An object that comes, rests for most of the film, and leaves."""
    places = circle(120)
    places[25:95] = places[25]
    return shaken(film(places), places)


@pytest.fixture(scope="module")
def recording(resting: tuple[Frames, Places]) -> HandheldRecording:
    frames, _ = resting
    rows = sample(frames)
    found = HandheldRecording.start(frames[rows], frames[rows + 1])
    assert found is not None
    return found


def test_it_does_not_stand_still(resting: tuple[Frames, Places]) -> None:
    frames, _ = resting
    rows = sample(frames)
    assert find_still_scene(frames[rows], frames[rows + 1]) is None


def test_an_object_is_found_while_it_moves_and_while_it_rests(
    resting: tuple[Frames, Places], recording: HandheldRecording
) -> None:
    frames, places = resting
    found = recording.segment(frames)
    apart = np.linalg.norm(found.positions * (WIDTH, HEIGHT) - (places + 0.5), axis=1)
    assert np.quantile(np.nan_to_num(apart, nan=np.inf), 0.95) < 2
    assert np.mean(found.confidence >= 0.5) > 0.9


def test_frames_of_another_scene_show_nothing(
    resting: tuple[Frames, Places], recording: HandheldRecording
) -> None:
    frames, _ = resting
    window = frames[:6].copy()
    window[2:4] = np.random.default_rng(0).integers(0, 255, window[2:4].shape, np.uint8)
    found = recording.segment(window)
    assert np.isnan(found.positions[2:4]).all()
    assert not found.confidence[2:4].any()
    assert not np.isnan(found.positions[[0, 1, 4, 5]]).any()


def test_a_given_place_is_one_in_the_frame(
    resting: tuple[Frames, Places], recording: HandheldRecording
) -> None:
    frames, places = resting
    window, given = frames[50:56], np.full((6, 2), np.nan)
    given[3] = (places[53] + 0.5) / (WIDTH, HEIGHT)
    found = recording.segment(window, anchors=Anchors(given, np.zeros(6, bool)))
    assert np.linalg.norm((found.positions[3] - given[3]) * (WIDTH, HEIGHT)) < 2


def test_a_camera_that_travels_is_not_held_at_one_place() -> None:
    frames, _ = moving_film("pan", 48)
    assert HandheldRecording.start(frames[:-1], frames[1:]) is None
