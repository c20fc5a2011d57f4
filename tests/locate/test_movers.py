"""Moving objects are distinguished from changes of the scene that stay in place."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.locate.still_films import HEIGHT, WIDTH, Places, circle, film
from tests.locate.test_recording import scene_of
from ullayers.locate.paths import ObjectPath, label_parts
from ullayers.locate.recording.movers import MoverChoice

WINDOW = 50  # frames


def with_bag(places: Places, until: int) -> NDArray[np.uint8]:
    """Return a film of a disc, and of a bag five times as large that is taken away."""
    frames = film(places)
    frames[:until, 94:118, 2:26] = 235, 235, 225
    return frames


def share_on_disc(frames: NDArray[np.uint8], places: Places) -> float:
    """Return the share of frames in which the disc is found, window by window."""
    recording = scene_of(frames)
    windows = [frames[i : i + WINDOW] for i in range(0, len(frames), WINDOW)]
    found = np.concatenate([recording.segment(window).positions for window in windows])
    apart = np.linalg.norm(found * (WIDTH, HEIGHT) - (places + 0.5), axis=1)
    return float(np.mean(apart < 6))


def test_a_bag_that_is_taken_away_later_is_not_the_object() -> None:
    places = circle(250)
    assert share_on_disc(with_bag(places, 110), places) > 0.98


def test_an_object_that_rests_is_preferred_to_a_bag_that_never_moved() -> None:
    places = circle(400)
    places[60:180] = places[60]
    assert share_on_disc(with_bag(places, 170), places) > 0.98


@pytest.mark.parametrize("first", [0, 60])
def test_an_object_that_rests_is_not_given_up_for_flicker(first: int) -> None:
    places = circle(400)
    places[first : first + 100] = places[first]
    frames = film(places)
    flicker = np.random.default_rng(0).random((400, HEIGHT // 4, WIDTH // 4)) < 0.003
    spots = flicker.repeat(4, axis=1).repeat(4, axis=2)
    frames[spots] = 250
    assert share_on_disc(frames, places) > 0.95


def confident(frames: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return in which frames the confidence is at least one half, window by window."""
    recording = scene_of(frames)
    windows = [frames[i : i + WINDOW] for i in range(0, len(frames), WINDOW)]
    return np.concatenate([recording.segment(window).confidence for window in windows]) >= 0.5


def leaves(count: int, at: int) -> Places:
    """Return places of a disc that is taken away."""
    places = circle(count)
    places[at:] = np.nan
    return places


def test_something_that_appears_and_never_moves_is_unsure() -> None:
    frames = film(leaves(200, 120))
    frames[140:180, 94:106, 2:14] = 235, 235, 225
    sure = confident(frames)
    assert sure[:120].mean() > 0.95
    assert sure[120:].mean() < 0.05


def test_an_object_that_comes_to_rest_stays_sure() -> None:
    places = circle(300)
    places[80:170] = places[80]
    assert confident(film(places)).mean() > 0.95


def test_a_lamp_that_is_switched_on_is_unsure() -> None:
    frames = film(leaves(200, 120), noise=2.0)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    glow = 1 + 0.5 * (np.hypot(rows - 60, columns - 100) < 25)
    for frame in frames[130:190]:
        frame[:] = (frame * glow[..., None]).clip(0, 255)
    sure = confident(frames)
    assert sure[:120].mean() > 0.95
    assert sure[120:].mean() < 0.05


def followed(frames: NDArray[np.float32]) -> NDArray[np.bool_]:
    labelled = [label_parts(frame, 0.5) for frame in frames]
    return MoverChoice().follow(ObjectPath(80, labelled[0].parts[0].mass), labelled).moved


def test_slow_motion_is_motion() -> None:
    """At 240 frames per second, an animal moves by less than its length in a window."""
    frames = np.zeros((60, 40, 80), np.float32)
    for t, frame in enumerate(frames):
        frame[10:20, 20 + t // 10 : 40 + t // 10] = 1
    assert followed(frames).all()
    frames[:] = frames[:1]
    assert not followed(frames).any()


def test_images_that_a_codec_leaves_are_not_the_object() -> None:
    """An animal walks on and fades; an image of it stays, as it did elsewhere."""
    frames = np.zeros((90, 40, 80), np.float32)
    frames[:, 30:34, 5:11] = 1
    for t in range(50):
        frames[t, 10:16, t : t + 10] = 1 + 0.1 * (t % 3)
    frames[50:, 10:16, 50:60] = 1
    moved = followed(frames)
    assert moved[:45].all()
    assert not moved[55:].any()
