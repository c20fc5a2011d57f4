"""A small video with known truth: a toy beetle that crawls and turns over a cluttered table.

It is made to be fair rather than easy. The clutter has the beetle's colours and contrast, every
pixel is noisy, the light drifts slowly (so brightness is a slow feature of its own) and a lamp
flickers quickly (so the place that changes most is not the beetle).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray

from ullayers.video.atomic_files import replacing
from ullayers.video.writer import VideoWriter

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

NOISE = 0.06  # standard deviation in every channel, of the full range; H.264 leaves 4/5
COLOUR_NOISE = 0.25  # share of the noise's variance that is not the same in all three channels
LENGTH = 0.15  # of the beetle, in widths of a 4:3 frame
DRIFT = 0.04  # of the light, up and down
BLOCK = 32  # frames that are rendered at once
SMALLEST = 32  # pixels; below this nothing can be recognised
FINE = 4  # pixels of the beetle's own picture to one of the frame
SOFT = 0.5  # pixels of blur at the beetle's edge: as much as sampling at whole pixels needs

SHELL, STRIPE, HEAD, EYE = (
    np.array(rgb, np.float32) / 255
    for rgb in ((238, 180, 60), (44, 42, 54), (204, 60, 52), (240, 240, 230))
)
CLUTTER = np.array(
    [(206, 160, 84), (196, 66, 56), (70, 122, 136), (96, 140, 88), (44, 46, 60),
     (232, 222, 198), (132, 88, 122), (62, 80, 146), (232, 178, 58), (92, 68, 52)],
    np.float32,
) / 255  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """Where the object is in every frame.

    Attributes:
        x: (frames,) centroid of its mask in 0..1 of the width, from the left edge of the frame.
        y: (frames,) the same in 0..1 of the height, from the top.
        angle: (frames,) where its head points, in radians from the right (0) by way of down
            (pi / 2), counted on through full turns.

    Example:
        >>> _, truth = render(frames=3)
        >>> truth.x.shape, truth.y.shape, truth.angle.shape
        ((3,), (3,), (3,))
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    angle: NDArray[np.float64]


def render(
    seed: int = 0, frames: int = 600, height: int = 120, width: int = 160
) -> tuple[Pixels, Truth]:
    """The video as an array, with the truth. Fewer frames are the first ones of more.

    Returns:
        (frames, height, width, 3) uint8 RGB, and where the object is.

    Example:
        >>> video, truth = render(seed=1, frames=4)
        >>> video.shape, video.dtype
        ((4, 120, 160, 3), dtype('uint8'))
        >>> bool(0 < truth.x.min() <= truth.x.max() < 1)
        True
    """
    scene = _Scene.make(seed, frames, height, width)
    video = np.empty((frames, height, width, 3), np.uint8)
    for start, block in zip(range(0, frames, BLOCK), scene.blocks(), strict=True):
        video[start : start + len(block)] = block
    return video, scene.truth


def write_scene(folder: Path, seed: int = 0, frames: int = 600, fps: float = 25) -> Path:
    """Write `scene.mp4` and, next to it, `truth.csv`: sequence, frame, time, x, y, angle.

    Args:
        folder: made if it does not exist.
        seed: another seed is another table and another path.
        frames: how many.
        fps: frames a second.

    Returns:
        the path of the video.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_scene(Path(folder), frames=2)
        ...     path.name, Path(folder, "truth.csv").read_text().splitlines()[0]
        ('scene.mp4', 'sequence,frame,time,x,y,angle')
    """
    scene, path = _Scene.make(seed, frames, 120, 160), Path(folder) / "scene.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Both files are finished together at the end: a failure before leaves both as they were.
    with replacing(path.with_name("truth.csv")) as file, VideoWriter(path, fps) as video:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["sequence", "frame", "time", "x", "y", "angle"])
        truth = np.stack([scene.truth.x, scene.truth.y, scene.truth.angle], 1)
        for number, row in enumerate(truth):
            numbers = (number / fps, *row)
            table.writerow([path.stem, number, *(f"{value:.6f}" for value in numbers)])
        for block in scene.blocks():
            for picture in block:
                video.write(picture)
    return path


@dataclass(frozen=True)
class _Scene:
    """Everything but the noise, which is drawn as the frames are."""

    table: Floats  # (height, width, 3)
    glow: Floats  # (height, width, 3), what the lamp adds when it is fully on
    lamp: Floats  # (frames,)
    light: Floats  # (frames,)
    beetle: Floats  # (4, side, side): colours times alpha, and alpha; centroid in the middle
    truth: Truth
    noise: np.random.SeedSequence

    @classmethod
    def make(cls, seed: int, frames: int, height: int, width: int) -> _Scene:
        if frames < 1 or min(height, width) < SMALLEST:
            raise ValueError(
                f"expected at least 1 frame of at least {SMALLEST} x {SMALLEST} pixels, "
                f"got {frames} of {height} x {width}"
            )
        # One stream of random numbers each, so that more frames do not change the first ones.
        *seeds, noise = np.random.SeedSequence(seed).spawn(5)
        table, lamp, light, path = (np.random.default_rng(each) for each in seeds)
        length = LENGTH * min(width, height * 4 / 3)
        return cls(
            *_place_lamp(lamp, _draw_table(table, height, width)),
            lamp.random(frames, np.float32),
            1 + DRIFT * _drift(light, frames).astype(np.float32),
            _draw_beetle(length),
            _walk(path, frames, (length / 2 + 2) / np.array([width, height])),
            noise,
        )

    def blocks(self) -> Iterator[Pixels]:
        """The frames as the camera sees them, up to BLOCK at a time."""
        noise = np.random.default_rng(self.noise)
        for start in range(0, len(self.lamp), BLOCK):
            part = slice(start, start + BLOCK)
            clean = self.light[part, None, None, None] * self.paste(self.empty(part), part)
            grain = noise.standard_normal((*clean.shape[:3], 4), np.float32)
            clean += NOISE * COLOUR_NOISE**0.5 * grain[..., :3]
            clean += NOISE * (1 - COLOUR_NOISE) ** 0.5 * grain[..., 3:]
            yield (clean.clip(0, 1) * 255 + 0.5).astype(np.uint8)

    def empty(self, part: slice) -> Floats:
        """(frames, height, width, 3): table and lamp without the beetle, before light and noise."""
        return self.table + self.lamp[part, None, None, None] * self.glow

    def paste(self, behind: Floats, part: slice) -> Floats:
        """Put the beetle where it is in these frames in front of what is `behind` it."""
        height, width = behind.shape[1:3]
        half = self.beetle.shape[-1] / FINE / 2
        x, y, angle = (v[part] for v in (self.truth.x, self.truth.y, self.truth.angle))
        cos, sin = np.cos(angle) / half, np.sin(angle) / half
        # From places in the frame, -1..1, to places in the beetle's picture, -1..1.
        right, down = (0.5 - x) * width, (0.5 - y) * height
        rows = [[cos * width / 2, sin * height / 2, cos * right + sin * down],
                [-sin * width / 2, cos * height / 2, cos * down - sin * right]]  # fmt: skip
        turn = torch.from_numpy(np.moveaxis(np.array(rows), 2, 0)).float()
        where = F.affine_grid(turn, [len(x), 4, height, width], align_corners=False)
        picture = torch.from_numpy(self.beetle).expand(len(x), -1, -1, -1)
        placed = F.grid_sample(picture, where, align_corners=False).permute(0, 2, 3, 1).numpy()
        pasted: Floats = behind * (1 - placed[..., 3:]) + placed[..., :3]
        return pasted


def _walk(random: Generator, frames: int, margin: NDArray[np.float64]) -> Truth:
    """A path that reaches every side but never leaves, and turns that do not follow it.

    A sine of uneven time stays within its ends and reaches both, yet never repeats itself.
    """
    time = np.arange(frames)
    x, y = (
        0.5 + (0.5 - margin[axis]) * np.sin(_clock(random, time, period, 0.6))
        for axis, period in enumerate((173, 107))
    )
    return Truth(x, y, _clock(random, time, 121, 1.5) * random.choice([-1, 1]))


def _clock(
    random: Generator, time: NDArray[np.int64], period: float, uneven: float
) -> NDArray[np.float64]:
    """Radians that grow by 2 pi each `period` frames on average, now faster, now slower."""
    start, *phases = random.uniform(0, 2 * np.pi, 3)
    wander = sum(
        np.sin(2 * np.pi * time / (period * ratio) + phase) * uneven / 2
        for ratio, phase in zip((1.618, 0.786), phases, strict=True)
    )
    angle: NDArray[np.float64] = start + 2 * np.pi * time / period + wander
    return angle


def _drift(random: Generator, frames: int) -> NDArray[np.float64]:
    """Between -1 and 1, slower than the object."""
    return np.sin(_clock(random, np.arange(frames), 420, 1.0))


def _draw_table(random: Generator, height: int, width: int) -> Floats:
    """Discs, cards and striped cloths over a mottled ground."""
    table = (1 + 0.5 * _mottle(random, height, width)[..., None]) * np.array([0.58, 0.5, 0.41])
    for number in range(34):
        alpha, colour = _draw_thing(random, height, width, ("disc", "cloth", "card")[number % 3])
        table += 0.92 * alpha[..., None] * (colour - table)
    table += 0.12 * _mottle(random, height, width)[..., None]  # wear, over everything
    drawn: Floats = table.clip(0.08, 0.92).astype(np.float32)
    return drawn


def _draw_thing(
    random: Generator, height: int, width: int, kind: str
) -> tuple[NDArray[np.float64], Floats]:
    """Something that lies on the table: (height, width) alpha and its colour or colours."""
    y, x = np.mgrid[:height, :width] + 0.5
    unit, angle = min(width, height * 4 / 3), random.uniform(0, np.pi)
    left, top = random.uniform(0, width), random.uniform(0, height)
    along = (x - left) * np.cos(angle) + (y - top) * np.sin(angle)
    across = (y - top) * np.cos(angle) - (x - left) * np.sin(angle)
    long, short = unit * random.uniform(0.04, 0.13), unit * random.uniform(0.03, 0.09)
    colour, second = CLUTTER[random.choice(len(CLUTTER), 2, replace=False)]
    if kind == "disc":
        inside = short - np.hypot(along, across)
    else:
        inside = np.minimum(long - abs(along), short - abs(across))
    if kind == "cloth":
        wave = np.sin(along * 2 * np.pi / (unit * random.uniform(0.03, 0.06)))
        colour = colour + (second - colour) * (wave * 1.5 + 0.5).clip(0, 1)[..., None]
    return (inside + 0.5).clip(0, 1), colour


def _mottle(random: Generator, height: int, width: int) -> NDArray[np.float64]:
    """Smooth noise of several octaves, of standard deviation about 1/2, within -1..1."""
    total = np.zeros((height, width))
    for octave in range(4):
        cells = 3 * 2**octave
        coarse = torch.from_numpy(random.standard_normal((1, 1, cells, cells)))
        layer = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
        total += layer[0, 0].numpy() * 0.6**octave
    mottle: NDArray[np.float64] = np.tanh(total / total.std() / 2)
    return mottle


def _place_lamp(random: Generator, table: Floats) -> tuple[Floats, Floats]:
    """The table with a lamp in one of its quarters, and what the lamp adds when it is on."""
    height, width, _ = table.shape
    unit = min(width, height * 4 / 3)
    left, top = random.choice([0.2, 0.8]) * width, random.choice([0.2, 0.8]) * height
    y, x = np.mgrid[:height, :width] + 0.5
    far = np.hypot(x - left, y - top)[..., None]
    socket, bulb = ((unit * radius - far + 0.5).clip(0, 1) for radius in (0.034, 0.026))
    halo = np.exp(-((far / unit / 0.06) ** 2))
    glow = (0.7 * bulb + 0.25 * halo) * np.array([1.0, 0.9, 0.6])
    # A dark socket, so that the light is seen on white cards too.
    dark: Floats = table + socket.astype(np.float32) * (STRIPE - table)
    return dark, glow.astype(np.float32)


def _draw_beetle(length: float) -> Floats:
    """(4, side, side): its colours times alpha, and alpha, blurred, head to the right."""
    half = int(np.ceil((length * 0.62 + 3 * SOFT) * FINE))
    v, u = (np.mgrid[-half:half, -half:half] + 0.5) / (FINE * length)
    # Drawn twice: the first time shows how far its centroid is from its middle.
    alpha = _paint(u, v)[3]
    painted = torch.from_numpy(_paint(u + (u * alpha).sum() / alpha.sum(), v))[None]
    reach = 3 * int(np.ceil(SOFT * FINE))
    weight = np.exp(-((np.arange(-reach, reach + 1) / (SOFT * FINE)) ** 2) / 2)
    kernel = torch.from_numpy(weight / weight.sum()).expand(4, 1, 1, -1)
    for blur in (kernel, kernel.mT):
        painted = F.conv2d(painted, blur, padding="same", groups=4)
    beetle: Floats = painted[0].float().numpy()
    return beetle


def _paint(u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """The beetle at places (u, v) in lengths of its body, +u towards the head, sharp."""
    body = ((u + 0.14) / 0.36) ** 2 + (v / (0.27 + 0.12 * u)) ** 2 < 1  # narrower at the tail
    head = np.hypot(u - 0.30, v) < 0.19
    eyes = np.hypot(u - 0.38, abs(v) - 0.09) < 0.05
    stripes = np.cos((u + 0.14) * 2 * np.pi / 0.21) < -0.1
    rgb = np.where((body & stripes)[None], STRIPE[:, None, None], SHELL[:, None, None])
    rgb = np.where(head[None], HEAD[:, None, None], rgb)
    rgb = np.where(eyes[None], EYE[:, None, None], rgb)
    alpha = (body | head).astype(np.float64)
    return np.concatenate([rgb * alpha, alpha[None]])
