"""Moving objects are found with a static, a panning and a zooming camera."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.locate.moving_scene import HEIGHT, WIDTH, film, homography
from tests.real_data import DATA
from ullayers.locate.flow import background_flow, camera_motion, chain, optical_flow
from ullayers.locate.moving.evidence import burned_in, motion_evidence
from ullayers.locate.moving.segment import (
    Segments,
    cell_chain,
    cell_means,
    centroids,
    otsu_threshold,
    segment_motion,
)


def read(folder: Path, flag: int, count: int = 30) -> NDArray[np.uint8]:
    images: list[Any] = [cv2.imread(str(path), flag) for path in sorted(folder.iterdir())[:count]]
    return np.stack(images)


def overlap(found: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    both = (found & truth).sum(axis=(1, 2))
    return float(np.mean(both / np.maximum((found | truth).sum(axis=(1, 2)), 1)))


@cache
def found_in(kind: str) -> Segments:
    return segment_motion(film(kind)[0])


@pytest.mark.parametrize("kind", ["static", "pan", "zoom"])
def test_the_square_is_found(kind: str) -> None:
    truth = film(kind)[1]
    found = found_in(kind)
    assert overlap(found.masks, truth) > 0.6
    distance = np.abs(found.positions - centroids(truth)) * (WIDTH, HEIGHT)
    assert np.nanmedian(distance) < 3


def test_half_the_light_and_mirrored_frames_give_the_same() -> None:
    frames, truth = film("pan")
    darker = overlap(segment_motion((frames // 2).astype(np.uint8)).masks, truth)
    mirrored = overlap(
        segment_motion(np.ascontiguousarray(frames[:, :, ::-1])).masks, truth[:, :, ::-1]
    )
    plain = overlap(found_in("pan").masks, truth)
    assert darker == pytest.approx(plain, abs=0.1)
    assert mirrored == pytest.approx(plain, abs=0.1)


def test_the_camera_is_told_from_the_object() -> None:
    frames, _ = film("zoom", noise=0.0)
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames[:2]]
    motion = camera_motion(optical_flow(grey[0], grey[1]))
    truth = homography(1, "zoom") @ np.linalg.inv(homography(0, "zoom"))
    wrong = background_flow(motion.matrix, HEIGHT, WIDTH) - background_flow(truth, HEIGHT, WIDTH)
    assert np.abs(wrong).max() < 0.5  # pixels
    assert motion.model in ("affine", "homography")


@pytest.mark.parametrize("rows", [2, 4, 7])
def test_a_narrow_strip_has_a_flow(rows: int) -> None:
    """As in a video of a linear track; OpenCV refuses less than 8 pixels."""
    rng = np.random.default_rng(0)
    blurred = cv2.GaussianBlur(rng.normal(0, 1, (40, 170)), (0, 0), 2)
    wall = (128 + 50 * blurred / blurred.std()).clip(0, 255).astype(np.uint8)[:rows]
    flow = optical_flow(wall[:, 2:162].copy(), wall[:, :160].copy())
    assert flow.shape == (rows, 160, 2)
    assert np.median(flow[..., 0]) == pytest.approx(2, abs=0.25)
    assert np.isfinite(camera_motion(flow).matrix).all()


def test_a_single_pixel_has_no_flow() -> None:
    pixel = np.full((1, 1), 90, np.uint8)
    assert camera_motion(optical_flow(pixel, pixel)).model == "static"


def test_a_static_camera_is_static() -> None:
    frames, _ = film("static")
    evidence = motion_evidence(frames)
    assert {motion.model for motion in evidence.motions} == {"static"}
    assert np.array_equal(evidence.path, np.broadcast_to(np.eye(3), (len(frames), 3, 3)))


def test_chained_motions_meet_in_the_middle() -> None:
    steps = [homography(t + 1, "zoom") @ np.linalg.inv(homography(t, "zoom")) for t in range(4)]
    path = chain(steps)
    for t in range(5):
        expected = homography(2, "zoom") @ np.linalg.inv(homography(t, "zoom"))
        np.testing.assert_allclose(path[t] / path[t][2, 2], expected / expected[2, 2], atol=1e-9)


def test_the_walk_is_a_markov_chain() -> None:
    frames, _ = film("pan", count=4)
    cells = cell_chain(frames, cell=4)
    ones = np.ones(cells.shape, np.float32)
    np.testing.assert_allclose(cells.walk(ones, 5), ones, rtol=1e-5)  # rows sum to one
    values = np.random.default_rng(0).random(cells.shape).astype(np.float32)
    spread = [float(cells.walk(values, steps).std()) for steps in (1, 4, 16)]
    assert spread[0] > spread[1] > spread[2]  # only slow functions are left
    with pytest.raises(ValueError, match="at least one step"):
        cells.walk(values, 0)


def test_the_chain_reaches_objects_or_background() -> None:
    frames, truth = film("static", count=4)
    cells = cell_chain(frames, cell=4)
    inside = cell_means(truth, 4)
    values = np.full(cells.shape, 0.5, np.float32)  # unknown
    values[inside > 0.9] = 1.0
    values[inside < 0.1] = 0.0
    values[2:][inside[2:] > 0.9] = 0.5  # the object is known in the first half only
    chance = cells.reach(values, low=0.2, high=0.8)
    assert chance.min() >= 0
    assert chance.max() <= 1
    assert chance[2:][inside[2:] > 0.9].mean() > 0.8
    assert chance[inside < 0.1].mean() < 0.1


def test_otsu_separates_two_groups() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 900), rng.normal(10, 1, 100)]).astype(np.float32)
    assert 3 < otsu_threshold(values) < 8
    assert otsu_threshold(np.zeros(5, np.float32)) >= -0.5


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((1, 32, 32, 3), np.uint8),
        np.zeros((4, 32, 32), np.uint8),
        np.zeros((4, 32, 32, 3), np.float32),
    ],
)
def test_frames_of_another_kind_are_refused(frames: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="expected at least two uint8 frames"):
        motion_evidence(frames)


def test_nothing_moves_in_a_still_film() -> None:
    still = np.repeat(film("static", count=1, noise=0.0)[0], 6, axis=0)
    found = segment_motion(still)
    assert not found.masks.any()
    assert np.isnan(found.positions).all()


@pytest.mark.data
@pytest.mark.parametrize("name", ["car-roundabout", "dog"])
def test_a_real_film_with_a_moving_camera(name: str) -> None:
    frames = read(Path(DATA, "davis", "frames", name), cv2.IMREAD_COLOR)
    truth = read(Path(DATA, "davis", "masks", name), cv2.IMREAD_GRAYSCALE)
    found = segment_motion(np.ascontiguousarray(frames[..., ::-1]).astype(np.uint8))
    assert overlap(found.masks, truth > 127) > 0.5


def test_a_camera_that_pans_over_a_still_scene_shows_nothing() -> None:
    rng = np.random.default_rng(0)
    wall = cv2.GaussianBlur(rng.normal(0, 80, (120, 300, 3)).astype(np.float32), (0, 0), 2) + 120
    frames = np.stack([wall[:, 2 * t : 2 * t + 160] for t in range(30)])
    noisy = frames + rng.normal(0, 4, frames.shape)
    found = segment_motion(noisy.clip(0, 255).astype(np.uint8))
    assert np.mean(found.confidence >= 0.5) < 0.2


def with_clock(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Burn a running clock into the picture."""
    frames = frames.copy()
    for t, frame in enumerate(frames):
        text = f"10:24:3{t // 10}.{t % 10}"
        cv2.putText(frame, text, (4, HEIGHT - 4), cv2.FONT_HERSHEY_PLAIN, 1, (255, 255, 255), 1)
    return frames


def test_a_clock_in_the_picture_is_not_an_object() -> None:
    frames, masks = film("pan")
    without, with_it = found_in("pan"), segment_motion(with_clock(frames))
    assert overlap(with_it.masks, masks) > overlap(without.masks, masks) - 0.05
    assert np.median(with_it.confidence) > np.median(without.confidence) - 0.1


@pytest.mark.parametrize("kind", ["static", "pan"])
def test_a_clock_is_found_only_if_the_camera_moves(kind: str) -> None:
    frames = with_clock(film(kind)[0])
    path = np.stack([np.linalg.inv(homography(t, kind)) for t in range(len(frames))])
    found = burned_in(frames, path, np.ones(frames.shape[:3], np.float32))
    assert not found[: HEIGHT // 2].any()
    assert (found[HEIGHT - 14 : HEIGHT - 4, 8:60].mean() > 0.5) == (kind == "pan")


@pytest.mark.parametrize(("height", "width"), [(16, 2400), (2400, 16), (4, 700)])
def test_frames_of_extreme_shapes(height: int, width: int) -> None:
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 255, (1, height, width, 3), np.uint8), 6, 0)
    for t, frame in enumerate(frames):
        frame[:16, 10 * t : 10 * t + 40] = 255
    found = segment_motion(frames)
    assert found.soft.shape == frames.shape[:3]
    assert np.isfinite(found.confidence).all()
