"""Speed, heading and size, compared with motion that is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.real_data import DATA
from ullayers.tracks.measures import _signs, ellipse, label_moments, oriented, speed, velocity

Floats = NDArray[np.float64]
FPS = 25


def masks_of_ellipse(
    x: Floats, y: Floats, heading: Floats, size: int = 96, length: float = 24, width: float = 10
) -> NDArray[np.uint8]:
    down, right = np.mgrid[:size, :size] + 0.5
    angle = np.radians(heading)[:, None, None]
    dx, dy = right - x[:, None, None], down - y[:, None, None]
    along = dx * np.cos(angle) + dy * np.sin(angle)
    across = dy * np.cos(angle) - dx * np.sin(angle)
    inside = (2 * along / length) ** 2 + (2 * across / width) ** 2 <= 1
    return np.where(inside, np.uint8(1), np.uint8(0))


def angle_between(first: Floats, second: Floats) -> Floats:
    return np.abs((first - second + 180) % 360 - 180)


def walk() -> tuple[Floats, Floats, Floats, Floats]:
    """Times, positions and headings: a circle, a rest in its middle, and a short way backwards."""
    forward = np.concatenate([np.full(60, 1.0), np.zeros(50), np.full(8, -1.0), np.full(80, 1.0)])
    turn = np.cumsum(2.5 * forward)
    x, y = 48 + 30 * np.cos(np.radians(turn)), 48 + 30 * np.sin(np.radians(turn))
    return np.arange(len(turn)) / FPS, x, y, (turn + 90) % 360


@pytest.fixture(scope="module")
def measured() -> tuple[Floats, Floats, Floats, Floats]:
    """Heading, length and width as measured, and the true heading."""
    time, x, y, true = walk()
    moments = label_moments(masks_of_ellipse(x, y, true), 1)
    length, width, axis = ellipse(moments.covariance[:, 0])
    jitter = np.random.default_rng(0).normal(0, 0.3, (2, len(time)))
    x, y = moments.centre[:, 0].T + jitter
    motion = velocity(x, y, time)
    return oriented(axis, motion, time, length, width), length, width, true


def test_heading_of_a_moving_ellipse(measured: tuple[Floats, ...]) -> None:
    heading, _, _, true = measured
    assert angle_between(heading, true).max() < 5


def test_size_of_an_ellipse(measured: tuple[Floats, ...]) -> None:
    _, length, width, _ = measured
    assert np.abs(length - 24).max() < 1
    assert np.abs(width - 10).max() < 1


def test_resting_object_does_not_turn_around() -> None:
    """Its axis jitters around 0 = 180 degrees and its position by a pixel."""
    random = np.random.default_rng(1)
    time = np.arange(500) / FPS
    x = 30 + 40 * np.minimum(time, 2) + random.normal(0, 1, 500)
    axis = random.normal(0, 8, 500) % 180
    motion = velocity(x, random.normal(50, 1, 500), time)
    heading = oriented(axis, motion, time, np.full(500, 20.0))
    assert angle_between(heading, np.zeros(500)).max() < 60


def test_walking_backwards_for_long_turns_the_heading() -> None:
    time = np.arange(100) / FPS
    motion = np.tile([-50.0, 0.0], (100, 1))
    motion[:50] *= -1
    heading = oriented(np.zeros(100), motion, time, np.full(100, 20.0))
    np.testing.assert_array_equal(heading, [0] * 50 + [180] * 50)


def test_unknown_axes_have_no_heading() -> None:
    time = np.arange(200) / FPS
    axis = np.zeros(200)
    axis[20:120] = np.nan  # a gap of four seconds, after which it goes the other way
    motion = np.tile([30.0, 0.0], (200, 1))
    motion[100:] *= -1
    heading = oriented(axis, motion, time, np.full(200, 60.0))
    assert np.isnan(heading[20:120]).all()
    assert set(heading[:20]) == {0.0}
    assert set(heading[120:]) == {180.0}
    assert np.isnan(oriented(np.full(3, np.nan), motion[:3], time[:3], np.ones(3))).all()


def test_fronts_are_the_best_of_all() -> None:
    random = np.random.default_rng(0)
    for n in (1, 2, 5, 9):
        evidence, price = random.normal(size=n), np.abs(random.normal(size=n - 1))

        def score(
            signs: NDArray[np.int64], evidence: Floats = evidence, price: Floats = price
        ) -> float:
            return float(signs @ evidence - 2 * price @ (np.diff(signs) != 0))

        best = max(score(np.array(signs)) for signs in itertools.product([-1, 1], repeat=n))
        assert score(_signs(evidence, price)) == pytest.approx(best)


def test_speed_withstands_jitter_and_outliers() -> None:
    random = np.random.default_rng(0)
    time = np.arange(1000) / FPS
    angle = time  # one radian per second at a radius of 100 pixels
    x = 100 * np.cos(angle) + random.normal(0, 0.5, 1000)
    y = 100 * np.sin(angle) + random.normal(0, 0.5, 1000)
    x[50::100] += 80
    found = speed(x, y, time)
    assert abs(np.median(found) - 100) < 3
    assert np.quantile(np.abs(found - 100), 0.95) < 15
    assert found.max() < 150


def test_no_speed_across_gaps() -> None:
    time = np.concatenate([np.arange(20), np.arange(60, 80)]) / FPS
    x = np.where(time < 1, 0.0, 500.0)
    x[5] = np.nan
    found = speed(x, np.zeros(40), time)
    assert np.isnan(found[5])
    np.testing.assert_allclose(np.delete(found, 5), 0, atol=1e-9)
    lonely = np.array([np.nan, 3.0, np.nan])
    assert np.isnan(speed(lonely, lonely, np.arange(3.0))).all()
    assert speed(np.empty(0), np.empty(0), np.empty(0)).shape == (0,)


def test_moments_of_several_objects() -> None:
    labels = np.zeros((2, 20, 30), np.uint16)
    labels[0, 5:9, 10:20] = 2
    labels[1, 0:2, 0:2] = 7
    found = label_moments(labels, 3)
    np.testing.assert_array_equal(found.area, [[0, 40, 0], [0, 0, 0]])
    np.testing.assert_allclose(found.centre[0, 1], [15, 7])
    assert np.isnan(found.centre[1]).all()
    assert np.isnan(ellipse(found.covariance)[0][1]).all()


@pytest.mark.data
@pytest.mark.parametrize("animal", [0, 1])
def test_heading_of_flies(animal: int) -> None:
    """Their axes without the front; they court, stand, and rarely walk."""
    table = np.genfromtxt(DATA / "flies" / "truth.csv", delimiter=",")
    _, _, x, y, true = table[1:][table[1:, 1] == animal].T
    time = np.arange(len(x)) / FPS
    motion = velocity(x, y, time)
    heading = oriented(true % 180, motion, time, np.full(len(x), 70.0))
    assert (angle_between(heading, true) < 5).mean() > 0.99
    moving = np.hypot(*motion.T) > 35
    direction = np.degrees(np.arctan2(motion[:, 1], motion[:, 0]))
    assert np.median(angle_between(direction, true)[moving]) < 15
