"""The demo's video: its truth is true, its difficulties are there, its files can be read."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import ndimage

import ullayers.video.demo_films as scene
from ullayers.nn.spatial import mask_moments
from ullayers.video.clips import VideoError
from ullayers.video.demo_films import render, write_scene
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import find_sources, read_all

SHAPES = [(120, 160), (90, 200), (161, 81)]  # the demo's, a wide one, a tall odd one
ALL = slice(None)


def make(seed: int = 0, frames: int = 600, height: int = 120, width: int = 160) -> scene._Scene:
    return scene._Scene.make(seed, frames, height, width)


@cache
def masks(seed: int, frames: int, height: int = 120, width: int = 160) -> NDArray[np.float32]:
    """The object's alpha: what of a white background it hides, and of a black one it does not."""
    made = make(seed, frames, height, width)
    black = np.zeros((1, *made.table.shape), np.float32)
    hidden: NDArray[np.float32] = 1 - (made.paste(black + 1, ALL) - made.paste(black, ALL)).mean(-1)
    return hidden


def lit(made: scene._Scene) -> NDArray[np.float32]:
    """Every frame without object and without noise."""
    return made.light[:, None, None, None] * made.empty(ALL)


def read_truth(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene(tmp_path_factory.mktemp("demo"), seed=3, frames=150)


def test_a_seed_says_everything() -> None:
    first, truth = render(seed=5, frames=40)
    again, same = render(seed=5, frames=40)
    other, another = render(seed=6, frames=40)
    assert np.array_equal(first, again)
    assert all(np.array_equal(vars(truth)[key], vars(same)[key]) for key in vars(truth))
    assert not any(np.allclose(vars(truth)[key], vars(another)[key]) for key in vars(truth))
    # Other tables, not only other noise: that differs by sqrt(2) of its deviation
    apart = (first.astype(float) - other).std() / 255
    assert apart > 2 * 2**0.5 * scene.NOISE


def test_fewer_frames_are_the_first_of_more() -> None:
    """Whatever the blocks they are rendered in."""
    more, long = render(seed=2, frames=2 * scene.FRAMES_AT_ONCE + 3)
    for frames in (1, scene.FRAMES_AT_ONCE, scene.FRAMES_AT_ONCE + 1):
        fewer, short = render(seed=2, frames=frames)
        assert np.array_equal(fewer, more[:frames])
        np.testing.assert_array_equal(short.x, long.x[:frames])
        np.testing.assert_array_equal(short.angle, long.angle[:frames])


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_truth_is_the_centroid_of_the_mask(height: int, width: int) -> None:
    made = make(1, 150, height, width)
    centroid, _ = mask_moments(torch.from_numpy(masks(1, 150, height, width)))
    truth = np.stack([made.truth.x, made.truth.y], 1)
    assert np.abs((centroid.numpy() - truth) * [width, height]).max() < 0.2


def test_truth_is_where_the_picture_differs_from_the_empty_one() -> None:
    made = make(seed=4, frames=100)
    differs = np.abs(made.paste(made.empty(ALL), ALL) - made.empty(ALL)).max(-1) > 0.02
    centroid, _ = mask_moments(torch.from_numpy(differs).float())
    truth = np.stack([made.truth.x, made.truth.y], 1)
    off = (centroid.numpy() - truth) * [160, 120]
    # A pixel that happens to have the background's colour is missed; half a pixel allows for some.
    assert np.abs(off).max() < 0.5


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_angle_is_where_the_head_points(height: int, width: int) -> None:
    made = make(1, 150, height, width)
    behind = np.zeros((150, height, width, 3), np.float32)
    red, green, _ = np.moveaxis(made.paste(behind, ALL), 3, 0)
    centroid, _ = mask_moments(torch.from_numpy((red - 2 * green).clip(0)))  # only the head is red
    x, y = ((centroid.numpy() - np.stack([made.truth.x, made.truth.y], 1)) * [width, height]).T
    off = np.angle(np.exp(1j * (np.arctan2(y, x) - made.truth.angle)))
    assert np.abs(off).max() < np.radians(5)


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_object_stays_inside(height: int, width: int) -> None:
    for seed in range(3):
        seen = masks(seed, 80, height, width)
        border = np.concatenate([seen[:, [0, -1]].ravel(), seen[:, :, [0, -1]].ravel()])
        assert border.max() < 0.5 / 255  # nothing that eight bits could show
        area = seen.sum((1, 2))
        assert area.max() < 1.01 * area.min()


@pytest.mark.parametrize("seed", range(8))
def test_object_goes_everywhere_and_does_not_rest(seed: int) -> None:
    truth, length = make(seed).truth, scene.BEETLE_LENGTH * 160
    for place in (truth.x, truth.y):
        assert 0 < place.min() < 0.15
        assert 0.85 < place.max() < 1
    steps = np.hypot(np.diff(truth.x) * 160, np.diff(truth.y) * 120)
    assert steps.max() < length / 3  # it can be followed from frame to frame
    assert np.convolve(steps, np.ones(25), "valid").min() > length / 5  # in any one second


@pytest.mark.parametrize("seed", range(8))
def test_angle_takes_full_turns_smoothly_and_on_its_own(seed: int) -> None:
    truth = make(seed).truth
    assert np.ptp(truth.angle) > 3 * 2 * np.pi
    assert np.abs(np.diff(truth.angle)).max() < np.radians(10)
    shares, _ = np.histogram(truth.angle % (2 * np.pi), 8)
    assert shares.min() > 600 / 8 / 4  # every direction is seen often
    heading = np.arctan2(np.diff(truth.y) * 120, np.diff(truth.x) * 160)
    assert np.abs(np.exp(1j * (heading - truth.angle[1:])).mean()) < 0.5


def test_noise_is_as_stated() -> None:
    video, _ = render(seed=2, frames=60)
    made = make(seed=2, frames=60)
    clear = (masks(2, 60) < 1e-3) & (lit(made).max(-1) < 0.75) & (lit(made).min(-1) > 0.25)
    noise = (video / 255 - lit(made))[clear]  # where 4 deviations are not clipped
    np.testing.assert_allclose(noise.std(0), scene.NOISE, rtol=0.01)
    assert np.abs(noise.mean(0)).max() < 1e-3
    shared = np.corrcoef(noise.T)[np.triu_indices(3, 1)]
    np.testing.assert_allclose(shared, 1 - scene.COLOUR_NOISE, atol=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_not_easy(seed: int) -> None:
    """Clutter as strong as the object, light that drifts, and a lamp that changes most."""
    made = make(seed, 600)
    object_only = made.beetle[:3, made.beetle[3] > 0.99]
    assert made.table.std((0, 1)).mean() > 2 / 3 * object_only.std(1).mean()
    assert 0.03 < np.abs(made.light - 1).max() <= scene.LIGHT_DRIFT
    assert np.abs(np.diff(made.light)).max() < 0.002  # slower than anything else
    assert abs(np.corrcoef(made.lamp[1:], made.lamp[:-1])[0, 1]) < 0.15  # as fast as can be
    video, _ = render(seed, 150)
    change = ndimage.uniform_filter(video.mean(-1).std(0), 3)
    assert made.glow.mean(-1).flat[change.argmax()] > 0.5 * made.glow.mean(-1).max()


def test_files_hold_the_scene(written: Path) -> None:
    assert written.name == "scene.mp4"
    assert sorted(path.name for path in written.parent.iterdir()) == ["scene.mp4", "truth.csv"]
    [source] = find_sources([str(written)])
    clip = read_all(source)
    assert clip.frames.shape == (150, 3, 120, 160)
    names, *rows = read_truth(written.with_name("truth.csv"))
    assert names == ["sequence", "frame", "time", "x", "y", "angle"]
    assert {row[0] for row in rows} == {source.name} == {"scene"}
    assert [int(row[1]) for row in rows] == clip.index.tolist()
    numbers = np.array([row[2:] for row in rows], float)
    np.testing.assert_allclose(numbers[:, 0], clip.seconds.numpy(), atol=1e-5)
    truth = make(seed=3, frames=150).truth
    np.testing.assert_allclose(numbers[:, 1:], np.c_[truth.x, truth.y, truth.angle], atol=1e-6)


def test_the_mp4_shows_what_was_rendered(written: Path) -> None:
    """The object where the truth has it, frame by frame, and the noise not smoothed away."""
    made = make(seed=3, frames=150)
    frames = read_all(find_sources([str(written)])[0]).frames.permute(0, 2, 3, 1).numpy() / 255
    off = frames - lit(made)
    clear = (masks(3, 150) < 1e-3) & (lit(made).max(-1) < 0.75) & (lit(made).min(-1) > 0.25)
    still = off[:, clear.all(0)]
    noise = still - still.mean(0)  # colours that bleed over edges are not noise
    np.testing.assert_allclose(noise.std((0, 1)), 0.8 * scene.NOISE, rtol=0.1)
    energy = ndimage.gaussian_filter(np.square(off).sum(-1), (0, 3, 3))
    y, x = np.unravel_index(energy.reshape(150, -1).argmax(1), (120, 160))
    far = np.hypot(x + 0.5 - made.truth.x * 160, y + 0.5 - made.truth.y * 120)
    assert far.max() < scene.BEETLE_LENGTH * 160 / 2


def test_rate_and_missing_folder(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "new" / "folder", frames=4, fps=10)
    assert find_sources([str(path)])[0].probe().rate == 10
    times = [row[2] for row in read_truth(path.with_name("truth.csv"))[1:]]
    assert times == ["0.000000", "0.100000", "0.200000", "0.300000"]


def test_failure_leaves_the_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_scene(tmp_path, frames=3)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise VideoError("no space left")

    monkeypatch.setattr(VideoWriter, "write", full)
    with pytest.raises(VideoError, match="no space"):
        write_scene(path.parent, seed=1, frames=3)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("frames", "height", "width"), [(0, 120, 160), (5, 31, 160), (5, 120, 8)])
def test_sizes_that_cannot_be(frames: int, height: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"got {frames} of {height} x {width}"):
        render(frames=frames, height=height, width=width)
