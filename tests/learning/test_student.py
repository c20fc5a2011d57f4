"""A network taught by evidence sees objects in single pictures, and says when it does not."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ullayers.learning.config import Config
from ullayers.learning.networks import Locator
from ullayers.learning.student import LEAST_AGREEMENT, Student, learn_student
from ullayers.locate.tracking.settle import Several
from ullayers.run.apply import answers
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import Plan, load_plan, plan_run
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import find_sources

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
STEPS = 150


def beetles(frames: int = 60, seed: int = 0, shift: int = 0) -> tuple[Pixels, Floats]:
    """Return frames of two dark beetles on a bright floor: one walks, the other one mostly rests.

    Args:
        frames: Number of frames.
        seed: Determines the floor and the noise.
        shift: Pixels by which the camera moves in each frame.

    Returns: The frames and (time, 2, 2) positions x, y.
    """
    rng = np.random.default_rng(seed)
    wide = 160 + shift * frames
    floor = cv2.GaussianBlur(rng.integers(140, 220, (120, wide, 3), np.uint8), (0, 0), 3)
    film, places = [], []
    for t in range(frames):
        picture = floor[:, shift * t : shift * t + 160].astype(float)
        walks = 20 + 120 * t / frames, 40 + 12 * np.sin(t / 5)
        rests = (110, 90) if t > frames // 5 else (60 + 250 * t / frames, 90)
        for x, y in (walks, rests):
            cv2.ellipse(picture, ((float(x), float(y)), (14, 9), 0), (30, 25, 20), -1)
        film.append(np.clip(picture + rng.normal(0, 3, picture.shape), 0, 255).astype(np.uint8))
        places.append((walks, rests))
    return np.stack(film), np.array(places, float)


@pytest.fixture(scope="module")
def student() -> Student:
    learned = learn_student(beetles()[0], STEPS)
    assert learned is not None
    return learned


def peaks(
    odds: NDArray[np.float32], places: Floats, size: tuple[int, int] = (120, 160)
) -> list[float]:
    """Return the largest odds within three pixels of each place of a frame."""
    large = cv2.resize(odds, size[::-1], interpolation=cv2.INTER_LINEAR)
    return [float(large[int(y) - 3 : int(y) + 4, int(x) - 3 : int(x) + 4].max()) for x, y in places]


def test_it_sees_in_one_picture_what_rests_in_all_others(student: Student) -> None:
    frames, places = beetles(seed=5)
    frames = (0.8 * frames[40:41, :, ::-1]).astype(np.uint8)  # mirrored, darker, another floor
    mirrored = places[40] * (-1, 1) + (160, 0)
    assert min(peaks(student.see(frames)[0], mirrored)) > 3
    assert np.mean(student.see(frames) > 1) < 0.05


def test_it_agrees_with_the_evidence_in_frames_that_it_has_not_learned(student: Student) -> None:
    assert student.is_sure
    assert float(student.agreement) >= LEAST_AGREEMENT


def test_what_looks_like_the_scene_cannot_be_learned() -> None:
    rng = np.random.default_rng(0)
    scene = cv2.GaussianBlur(rng.integers(0, 255, (96, 128, 3), np.uint8), (0, 0), 1)
    frames = np.stack([scene] * 60).astype(np.uint8)
    for t in range(60):  # parts of the scene in other places look like the scene
        for x, y, from_x, from_y in rng.integers(2, 84, (4, 4)):
            frames[t, y : y + 10, x : x + 10] = scene[from_y : from_y + 10, from_x : from_x + 10]
    net = learn_student(frames, STEPS)
    assert net is None or not net.is_sure


def test_too_few_frames_teach_nothing() -> None:
    assert learn_student(beetles(frames=12)[0], STEPS) is None


def test_the_same_seed_gives_the_same_network() -> None:
    frames = beetles(frames=30)[0]
    state = torch.random.get_rng_state()
    first, second = (learn_student(frames, 4, seed=3) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first is not None
    assert second is not None
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def write(path: Path, frames: Pixels) -> str:
    with VideoWriter(str(path), fps=10) as video:
        for frame in frames:
            video.write(frame)
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A run on a short clip in which two beetles are seen by a camera that moves."""
    folder = tmp_path_factory.mktemp("student")
    frames, _ = beetles(frames=90)
    config = Config(steps=90, trial_steps=2, restarts=1)
    run, sources = plan_run([write(folder / "beetles.mp4", frames)], str(folder / "run"), config)
    for _ in learn_run(run, sources):
        pass
    return run


def test_several_objects_are_found_in_a_short_clip(run: Plan, tmp_path: Path) -> None:
    frames, places = beetles(frames=60, seed=7)
    [source] = find_sources([write(tmp_path / "short.mp4", frames)])
    several = Several(None)
    loaded = load_plan(str(run.folder))
    assert list(answers(loaded, source, several=several))
    rows = several.rows
    assert rows is not None
    assert rows.objects is not None
    assert sorted(set(rows.objects)) == [1, 2]
    late = rows.index >= 20
    for truth in range(2):
        distance = np.abs(rows.values[late, :2] * (160, 120) - places[rows.index[late], truth]).max(
            1
        )
        best = [distance[rows.objects[late] == number] for number in (1, 2)]
        assert min(np.quantile(each, 0.9) for each in best) < 4


def test_the_agreement_is_kept_with_the_run(run: Plan) -> None:
    loaded = load_plan(str(run.folder))
    assert isinstance(loaded.net, Locator)
    assert loaded.net.student is not None
    assert loaded.outcome.agreement == pytest.approx(float(loaded.net.student.agreement))
    assert float(loaded.net.student.agreement) >= LEAST_AGREEMENT


def test_few_steps_teach_no_student(tmp_path: Path) -> None:
    config = Config(steps=3, trial_steps=2, restarts=1)
    film = write(tmp_path / "beetles.mp4", beetles(frames=40)[0])
    run, sources = plan_run([film], str(tmp_path / "run"), config)
    for _ in learn_run(run, sources):
        pass
    assert run.outcome.agreement is None
    net = load_plan(str(run.folder)).net
    assert isinstance(net, Locator)
    assert net.student is None
