"""The square around the moving object: where it is cropped, and `--follow` from frames to codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.command import UlCommand, check_refused
from tests.films import column, still, write_film
from ullayers.video.camera.following import SIDE, cut_squares, follow
from ullayers.video.clips import Clip
from ullayers.video.files.writing import VideoWriter


def turning(frames: int, size: tuple[int, int] = (120, 160)) -> tuple[torch.Tensor, np.ndarray]:
    """A bar that turns while it wanders about, and its angle."""
    height, width = size
    y, x = np.mgrid[:height, :width]
    pictures, angles = [], []
    for t in range(frames):
        angle = t / 9
        cx, cy = width * (0.5 + 0.3 * np.sin(t / 23)), height * (0.5 + 0.25 * np.cos(t / 17))
        along = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle)
        across = (y - cy) * np.cos(angle) - (x - cx) * np.sin(angle)
        bar = (np.abs(along) < 16) & (np.abs(across) < 5)
        head = bar & (along > 6)
        pictures.append(40 + 120 * bar + 80 * head)
        angles.append(angle)
    return torch.from_numpy(np.stack(pictures)).byte()[:, None], np.array(angles)


def clutter(size: tuple[int, int]) -> torch.Tensor:
    """A background with smooth dark and bright patches."""
    noise = torch.randn(1, 1, *size, generator=torch.Generator().manual_seed(0))
    return (60 + 120 * torch.nn.functional.avg_pool2d(noise, 9, 1, 4)[0]).clamp(0, 120).byte()


def clip_of(frames: torch.Tensor) -> Clip:
    count = torch.arange(len(frames))
    return Clip(frames, count.double(), count)


def test_the_square_stays_on_what_moves() -> None:
    frames, _ = turning(150)
    small = follow(clip_of(frames)).frames
    assert small.shape == (150, 1, SIDE, SIDE)
    bright = (small.float() - 40).clamp(min=0)[:, 0]
    place = torch.arange(SIDE) + 0.5
    total = bright.sum((1, 2))
    assert (total > 0).all()
    for axis in (1, 2):
        centre = (bright.sum(axis) * place).sum(1) / total
        assert float((centre - SIDE / 2).abs().median()) < SIDE / 12


def test_squares_of_a_travelling_object_do_not_show_the_background() -> None:
    frames, _ = turning(150)
    cluttered = torch.where(frames > 40, frames, clutter((120, 160)))
    squares = follow(clip_of(cluttered)).frames.float()
    plain = follow(clip_of(frames)).frames.float()
    assert float((squares - plain).abs().mean()) < 10
    bar = plain > 150
    assert float((squares[bar] > 150).float().mean()) > 0.8


def test_an_object_that_turns_in_its_place_keeps_its_background() -> None:
    angles = turning(150)[1]
    y, x = np.mgrid[:120, :160] - np.array([60, 80])[:, None, None]
    along = x * np.cos(angles)[:, None, None] + y * np.sin(angles)[:, None, None]
    across = y * np.cos(angles)[:, None, None] - x * np.sin(angles)[:, None, None]
    bar = torch.from_numpy((np.abs(along) < 16) & (np.abs(across) < 5) & (along > -3))[:, None]
    clip = clip_of(torch.where(bar, 200, clutter((120, 160))).byte())
    followed = follow(clip)
    assert followed.crops is not None
    corners = followed.crops * torch.tensor([160, 120, 160, 120])
    centre, radius = (corners[:, :2] + corners[:, 2:]) / 2, (corners[:, 2] - corners[:, 0]) / 2
    whole = cut_squares(clip.frames, centre, radius, SIDE)
    assert int((whole.int() - followed.frames.int()).abs().max()) <= 1  # of rounding


def test_squares_do_not_follow_noise() -> None:
    scene = turning(1)[0].expand(40, -1, -1, -1)
    noise = torch.randint(-2, 3, scene.shape, generator=torch.Generator().manual_seed(0))
    small = follow(clip_of((scene + noise).clamp(0, 255).byte()))
    assert small.crops is not None
    assert torch.equal(small.crops, small.crops[:1].expand(40, -1))


def test_following_is_refused_if_nothing_moves(tmp_path: Path, here: UlCommand) -> None:
    noise = np.random.default_rng(0).normal(0, 2, (60, 96, 128, 3))
    film = write_film(
        tmp_path / "still.mp4", (still(60, 96, 128) + noise).clip(0, 255).astype("u1")
    )
    result = here("learn", film, "--task", "orient", "--follow", "--out", tmp_path / "run")
    check_refused(result, "nothing moves")


def test_squares_go_on_beyond_the_edge() -> None:
    frames = torch.arange(40, dtype=torch.uint8).repeat(30, 1)[None, None]  # brighter to the right
    cut = cut_squares(frames, torch.tensor([[0.0, 15.0]]), torch.tensor([10.0]), 20)
    assert cut[0, 0, :, :9].max() == 0  # what lies left of the picture is like its left edge
    assert torch.equal(cut[0, 0, 0, 10:], torch.arange(10, dtype=torch.uint8))


def test_footage_without_motion_is_not_an_error() -> None:
    frames = torch.full((5, 3, 40, 60), 9, dtype=torch.uint8)
    assert (follow(clip_of(frames)).frames == 9).all()


def test_the_command_follows(tmp_path: Path, here: UlCommand) -> None:
    count = 150
    frames, angles = turning(count)
    frames = torch.where(frames > 40, frames, clutter((120, 160)))
    with VideoWriter(tmp_path / "bar.mp4", fps=25) as video:
        for frame in frames:
            video.write(frame.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    run = tmp_path / "run"
    options = "--task orient --follow --grey --steps 120 --restarts 1 --outputs 4".split()
    code, _, errors = here("learn", tmp_path / "bar.mp4", *options, "--out", run)
    assert code == 0, errors
    kept = json.loads((run / "config.json").read_text())["reading"]
    assert kept["follow"]
    assert kept["size"] == [96, 128]
    codes = column(run / "codes.csv", "y0", "y1", "y2", "y3")
    assert len(codes) == count
    rows = np.c_[codes, np.ones(count)]
    wanted = np.c_[np.sin(angles), np.cos(angles)]
    rest = wanted - rows @ np.linalg.lstsq(rows, wanted, rcond=None)[0]
    assert 1 - rest.var() / wanted.var() > 0.5  # and not only where it is

    code, _, errors = here("apply", run, tmp_path / "bar.mp4", "--out", tmp_path / "again")
    assert code == 0, errors
    again = column(tmp_path / "again" / "codes.csv", "y0", "y1", "y2", "y3")
    assert np.allclose(again, codes, atol=1e-4)


def test_follow_is_for_codes(tmp_path: Path, here: UlCommand) -> None:
    with VideoWriter(tmp_path / "a.mp4", fps=25) as video:
        for t in range(12):
            video.write(np.full((48, 64, 3), 9 * t, np.uint8))
    refused = here("learn", tmp_path / "a.mp4", "--follow", "--out", tmp_path / "run")
    check_refused(refused, "--follow", "--task orient")


@pytest.mark.parametrize("side", [8, 33])
def test_any_side(side: int) -> None:
    frames, _ = turning(9)
    assert follow(clip_of(frames), side).frames.shape[-2:] == (side, side)
