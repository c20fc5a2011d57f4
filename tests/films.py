"""Small videos with known truth, and tables read back."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from ullayers.learning.footage import PIECE, Footage, make_piece
from ullayers.video.clips import Clip
from ullayers.video.files.writing import VideoWriter

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
BALL = 30, 40  # height and width of most films; time grows with the pixels


def ball(
    count: int, height: int = BALL[0], width: int = BALL[1], seed: int = 0
) -> tuple[Pixels, Floats]:
    """A red ball that circles over a mottled ground, and where it is, in 0..1."""
    random = np.random.default_rng(seed)
    coarse = torch.from_numpy(random.uniform(60, 180, (1, 3, 6, 8)))
    ground = F.interpolate(coarse, (height, width), mode="bicubic")[0].permute(1, 2, 0).numpy()
    t = np.arange(count)
    places = np.stack([0.5 + 0.3 * np.sin(t / 7), 0.5 + 0.3 * np.cos(t / 5)], 1)
    y, x = np.mgrid[:height, :width] + 0.5
    frames = np.repeat(ground[None], count, 0) + random.normal(0, 2, (count, height, width, 1))
    for frame, (right, down) in zip(frames, places, strict=True):
        frame[np.hypot(x - right * width, y - down * height) < max(1.5, height / 8)] = 250, 30, 30
    return frames.clip(0, 255).astype(np.uint8), places


def still(count: int, height: int = BALL[0], width: int = BALL[1]) -> Pixels:
    return np.repeat(ball(1, height, width)[0], count, 0)


def write_film(path: Path, frames: Pixels, fps: float = 25) -> str:
    with VideoWriter(path, fps) as video:
        for frame in frames:
            video.write(frame)
    return str(path)


def write_ball(
    path: Path, count: int = 40, height: int = BALL[0], width: int = BALL[1], seed: int = 0
) -> str:
    return write_film(path, ball(count, height, width, seed)[0])


def write_pictures(folder: Path, frames: Iterable[Pixels], suffix: str = "png") -> str:
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"img{number}.{suffix}")
    return str(folder)


def write_timed(path: Path, frames: Pixels, milliseconds: list[int]) -> str:
    """A video whose frames come when they are said to."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for picture, when in zip(frames, milliseconds, strict=True):
            frame = av.VideoFrame.from_ndarray(picture)
            frame.pts, frame.time_base = when, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def write_truncated(path: Path, count: int = 40) -> str:
    """A video that ends in the middle, as after a camera's battery: its index is at the front."""
    random = np.random.default_rng(0)
    noise = random.integers(0, 60, (count, 48, 64, 3), dtype=np.uint8)
    frames = ball(count, 48, 64)[0] // 2 + noise
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream: Any = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])
    return str(path)


def write_raw(path: Path, frames: Pixels) -> str:
    """A bare H.264 stream, whose header does not say how many frames there are."""
    with av.open(str(path), "w", format="h264") as container:
        stream: Any = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    return str(path)


def as_footage(frames: Pixels) -> Footage:
    """Frames (time, height, width, channels) as if they had been gathered from one source."""
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    number = torch.arange(len(pixels))
    parts = zip(pixels.split(PIECE), number.split(PIECE), strict=True)
    pieces = [make_piece(0, Clip(part, i.double() / 25, i)) for part, i in parts]
    return Footage(["film"], pieces, {}, len(pixels))


def turning(count: int, side: int = 24, seed: int = 0) -> tuple[Pixels, Floats]:
    """A mottled disc that turns by uneven steps, (count, side, side, 3), and its angle."""
    random = np.random.default_rng(seed)
    angle = random.normal(0.12, 0.1, count).cumsum()
    coarse = torch.from_numpy(random.random((1, 3, 5, 5))).float()
    picture = F.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)
    cos, sin = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)])).float()
    zero = torch.zeros(count)
    turn = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = F.affine_grid(turn, [count, 3, side, side], align_corners=False)
    inside = (grid.square().sum(-1) < 0.8)[:, None]
    frames = F.grid_sample(picture.expand(count, -1, -1, -1), grid, align_corners=False)
    noisy = torch.where(inside, frames, 0.2) + 0.03 * torch.randn(
        frames.shape, generator=torch.Generator().manual_seed(seed)
    )
    return (noisy.clamp(0, 1) * 255).byte().permute(0, 2, 3, 1).numpy(), angle


def read_table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert all(None not in row and None not in row.values() for row in rows)
    return rows


def column(path: Path, *names: str) -> Floats:
    """(rows, names) numbers of a table; NaN for empty cells."""
    return np.array([[float(row[name] or "nan") for name in names] for row in read_table(path)])


def files_in(folder: Path) -> set[str]:
    """Every file below a folder, hidden ones too."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_in(folder)}
