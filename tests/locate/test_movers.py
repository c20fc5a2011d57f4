"""Objects that move are told from changes of the scene that stay where they are."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.locate.still_films import HEIGHT, WIDTH, Places, circle, film
from tests.locate.test_recording import scene_of

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
