"""Speed and distance: right for known paths, whatever jitters, jumps or is not found."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ullayers.report.charts import speed_curve
from ullayers.tracks.behaviour import measure_scenes
from ullayers.tracks.measures import Motion, complete, measure_motion, to_tracks, velocity
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.sources import Info

WIDTH, HEIGHT = 640, 480
Floats = NDArray[np.floating[Any]]


def track(pixels: Floats, rate: float = 25, confidence: float | Floats = 1.0) -> Answer:
    t = np.arange(len(pixels))
    values = np.column_stack([pixels / (WIDTH, HEIGHT), np.broadcast_to(confidence, len(pixels))])
    return Answer("a", t, t / rate, TRACK, values)


def circle(count: int, rate: float, radius: float = 100, turns_per_second: float = 0.25) -> Floats:
    angle = 2 * np.pi * turns_per_second * np.arange(count) / rate
    return np.column_stack([320 + radius * np.cos(angle), 240 + radius * np.sin(angle)])


def measure(answer: Answer) -> Motion:
    return measure_motion(answer, WIDTH, HEIGHT)


def value(number: float | None) -> float:
    assert number is not None
    return number


@pytest.mark.parametrize("rate", [5, 10, 25, 30, 60, 240])
def test_a_known_path(rate: float) -> None:
    seconds = 20
    motion = measure(track(circle(int(seconds * rate) + 1, rate), rate))
    speed = 2 * np.pi * 100 * 0.25
    close = 0.03 if rate > 5 else 0.05  # at 5 frames per second, a speed is that over 0.8 seconds
    assert motion.distance == pytest.approx(seconds * speed, rel=close)
    for found in (motion.mean_speed, motion.speed_quantile(0.5), motion.speed_quantile(0.95)):
        assert found == pytest.approx(speed, rel=close)
    assert motion.durations.sum() == pytest.approx(seconds)


def test_jitter_adds_little() -> None:
    """With a pixel of noise in each frame, the path must not seem longer by a tenth."""
    noise = np.random.default_rng(0).normal(0, 1, (1000, 2))
    exact = circle(1000, 25, turns_per_second=0.1)
    noisy = exact + noise
    plain = np.hypot(*np.diff(noisy, axis=0).T).sum()
    length = value(measure(track(exact)).distance)
    assert plain > 1.1 * length, "the noise matters"
    assert value(measure(track(noisy)).distance) < 1.02 * length
    assert value(measure(track(noisy)).speed_quantile(0.5)) < 1.02 * 2 * np.pi * 10
    resting = value(measure(track(np.full((1000, 2), 200.0) + noise)).distance)
    assert resting < 0.2 * np.hypot(*np.diff(noise, axis=0).T).sum()


def test_single_jumps_do_not_count() -> None:
    path = circle(500, 25)
    length = measure(track(path)).distance
    path[50::100] += 200
    assert measure(track(path)).distance == pytest.approx(length, rel=0.03)


def test_only_sure_frames_count() -> None:
    """While the object is lost, its position is meaningless and the distance travelled unknown."""
    path = circle(501, 25)
    confidence = np.ones(501)
    confidence[100:201] = 0.49
    path[100:201] = np.random.default_rng(0).uniform(0, 480, (101, 2))
    motion = measure(track(path, confidence=confidence))
    assert len(motion.lengths) == 99 + 299
    assert motion.distance == pytest.approx((99 + 299) / 25 * 2 * np.pi * 25, rel=0.03)
    assert value(motion.speed_quantile(1.0)) < 1.1 * 2 * np.pi * 25
    assert not ((motion.seconds > 99 / 25) & (motion.seconds < 201 / 25)).any()


@pytest.mark.parametrize("sure", [[], [3], [1, 3, 5]])
def test_nothing_is_known_without_two_sure_frames_in_a_row(sure: list[int]) -> None:
    confidence = np.zeros(9)
    confidence[sure] = 1
    motion = measure(track(circle(9, 25), confidence=confidence))
    assert len(motion.lengths) == 0
    assert (motion.distance, motion.mean_speed, motion.speed_quantile(0.5)) == (None, None, None)


def test_the_table_has_the_same_speed() -> None:
    """Behaviour is measured with the column `speed`; a lost object has none."""
    confidence = np.ones(200)
    confidence[50:80] = 0.2
    noise = np.random.default_rng(0).normal(0, 1, (200, 2))
    moments = np.tile([25.0, 0, 4, 60, 25, 0, 4], (200, 1))
    found = replace(track(circle(200, 25) + noise, confidence=confidence), moments=moments)
    info = Info(WIDTH, HEIGHT, 25.0, 200)
    done = complete(found, info)
    assert done.shapes is not None
    assert np.isnan(done.shapes[:, 0]).tolist() == (confidence < 0.5).tolist()
    written, positions = measure(done), measure(found)
    assert np.array_equal(written.speeds, positions.speeds)
    [scene] = measure_scenes(to_tracks(done), {"a": (WIDTH, HEIGHT)})
    assert scene.motions[0].distance == written.distance


def test_two_frames_are_enough() -> None:
    motion = measure(track(np.array([[10.0, 10], [13, 14]])))
    assert motion.distance == pytest.approx(5)
    assert motion.speed_quantile(0.5) == pytest.approx(125)


def test_uneven_and_repeated_times() -> None:
    """The speed follows from the times in the file; a frame between two gaps has none."""
    seconds = np.array([0, 0.1, 0.2, 0.6, 0.6, 0.7, 0.8])
    path = np.column_stack([100 * seconds, np.zeros(7)])
    motion = measure(replace(track(path), seconds=seconds))
    assert np.isfinite(motion.speeds).all()
    assert len(motion.speeds) == 4
    assert motion.mean_speed == pytest.approx(100)


def test_positions_that_are_not_there() -> None:
    path = circle(50, 25)
    path[20:22] = np.nan
    motion = measure(track(path))
    assert np.isfinite(motion.lengths).all()
    assert len(motion.lengths) == 19 + 27


@pytest.mark.parametrize("most", [1, 7, 60, 1000])
def test_curves_keep_the_distance_and_the_gaps(most: int) -> None:
    confidence = np.ones(500)
    confidence[200:300] = 0
    motion = measure(track(circle(500, 25), confidence=confidence))
    times, speeds = speed_curve(motion, most)
    assert len(times) == len(speeds)
    starts, ends, levels = times[:-1], times[1:], speeds[:-1]
    known = np.isfinite(starts) & np.isfinite(ends) & (starts < ends)
    if most > 1:
        assert np.isnan(speeds).any()
        assert (levels[known] * (ends - starts)[known]).sum() == pytest.approx(
            motion.distance, rel=0.2 if most < 20 else 0.05
        )
    assert len(speeds) <= 3 * most


def test_a_frame_rate_that_cannot_be_true_costs_no_memory() -> None:
    """An AVI header may claim even more."""
    path, time = circle(50, 25).astype(np.float64), np.arange(50) / 2**24
    tracemalloc.start()
    measure(track(path, 2**24))
    velocity(path[:, 0], path[:, 1], time)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22
