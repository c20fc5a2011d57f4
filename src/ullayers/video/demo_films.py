"""Synthetic videos with ground truth: the scene of `ul demo`, and animals that cross."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from numpy.typing import NDArray

from ullayers.files import replacing
from ullayers.video.files.writing import VideoWriter

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]
NOISE = 0.06  # standard deviation per channel, for values of 0..1; H.264 keeps 4/5 of it
COLOUR_NOISE = 0.25  # share of the noise variance that is independent in each channel
BEETLE_LENGTH = 0.15  # as a share of the width of a 4:3 frame
LIGHT_DRIFT = 0.04  # largest relative change of the light
FRAMES_AT_ONCE = 32  # frames rendered in one batch
MIN_SIDE = 32  # pixels; in smaller frames nothing can be recognised
OVERSAMPLING = 4  # pixels of the beetle's own image per pixel of the frame
EDGE_BLUR = 0.5  # standard deviation in pixels; enough to avoid aliasing
SHELL, STRIPE, HEAD, EYE = (
    np.array(rgb, np.float32) / 255
    for rgb in ((238, 180, 60), (44, 42, 54), (204, 60, 52), (240, 240, 230))
)
_CLUTTER_RGB = [
    (206, 160, 84),
    (196, 66, 56),
    (70, 122, 136),
    (96, 140, 88),
    (44, 46, 60),
    (232, 222, 198),
    (132, 88, 122),
    (62, 80, 146),
    (232, 178, 58),
    (92, 68, 52),
]
CLUTTER = np.array(_CLUTTER_RGB, np.float32) / 255
LENGTH = 0.06  # of the side of the frame
ASPECT = 0.4  # width of an animal by its length
SPEED = 0.15  # lengths per frame
TURN = 0.15  # radians per frame at most
APART = 1.6  # lengths: animals that were this far apart
CROSSING = 0.6  # and come this close cross
MEETING = 0.75  # probability that an animal then walks to another animal
RESTING = 0.1  # probability that it rests when it has arrived
REST_FRAMES = 40
MARGIN = 0.08  # of the side: least distance from the border
VARIETY = 0.06  # relative difference of size and brightness of animals from their mean
ANIMAL_NOISE = 3.0  # grey levels
SHIFT = 4  # binary digits of the fraction of a pixel in OpenCV's drawing


@dataclass(frozen=True)
class Truth:
    """Position and direction of the object in every frame.

    Attributes:
        x: (frames,) x of the centroid of its mask, from 0 (left edge of the frame) to 1.
        y: (frames,) y of the centroid of its mask, from 0 (top edge of the frame) to 1.
        angle: (frames,) direction of its head in radians, clockwise from the right; full turns
            are counted, so that it is continuous.

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
    """Render the video as an array.

    The first frames do not depend on the number of frames.

    Args:
        seed: Determines the table, the path of the object and the noise.
        frames: Number of frames.
        height: Height of the frames in pixels.
        width: Width of the frames in pixels.

    Returns:
        (frames, height, width, 3) uint8 RGB frames, and the truth.

    Example:
        >>> video, truth = render(seed=1, frames=4)
        >>> video.shape, video.dtype
        ((4, 120, 160, 3), dtype('uint8'))
        >>> bool(0 < truth.x.min() <= truth.x.max() < 1)
        True
    """
    scene = _Scene.make(seed, frames, height, width)
    video = np.empty((frames, height, width, 3), np.uint8)
    start = 0
    for block in scene.blocks():
        video[start : start + len(block)] = block
        start += len(block)
    return video, scene.truth


def write_scene(folder: Path, seed: int = 0, frames: int = 600, fps: float = 25) -> Path:
    """Write `scene.mp4` and `truth.csv` with columns sequence, frame, time, x, y, angle.

    Args:
        folder: Folder to write to; created if it does not exist.
        seed: Determines the table, the path of the object and the noise.
        frames: Number of frames.
        fps: Frames per second.

    Returns:
        Path of the video.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_scene(Path(folder), frames=2)
        ...     path.name, Path(folder, "truth.csv").read_text().splitlines()[0]
        ('scene.mp4', 'sequence,frame,time,x,y,angle')
    """
    scene = _Scene.make(seed, frames, 120, 160)
    path = Path(folder) / "scene.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Both files get their names at the end: if anything fails, both stay as they were.
    with replacing(path.with_name("truth.csv")) as file, VideoWriter(path, fps) as video:
        _write_truth(file, path.stem, scene.truth, fps)
        for block in scene.blocks():
            for frame in block:
                video.write(frame)
    return path


def _write_truth(file: IO[str], name: str, truth: Truth, fps: float) -> None:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["sequence", "frame", "time", "x", "y", "angle"])
    for number, row in enumerate(np.stack([truth.x, truth.y, truth.angle], 1)):
        values = (number / fps, *row)
        table.writerow([name, number, *(f"{value:.6f}" for value in values)])


@dataclass(frozen=True)
class _Scene:
    """The scene without noise, which is drawn when frames are rendered."""

    table: Floats  # (height, width, 3)
    glow: Floats  # (height, width, 3), added by the lamp when it is fully on
    lamp: Floats  # (frames,) brightness of the lamp
    light: Floats  # (frames,) brightness of everything
    beetle: Floats  # (4, side, side) premultiplied RGB and alpha; the centroid is in the middle
    truth: Truth
    noise: np.random.SeedSequence

    @classmethod
    def make(cls, seed: int, frames: int, height: int, width: int) -> _Scene:
        if frames < 1 or min(height, width) < MIN_SIDE:
            raise ValueError(
                f"expected at least 1 frame of at least {MIN_SIDE} x {MIN_SIDE} pixels, "
                f"got {frames} of {height} x {width}"
            )
        # Separate random generators: the number of frames must not change the first frames.
        *seeds, noise = np.random.SeedSequence(seed).spawn(5)
        for_table, for_lamp, for_light, for_path = (np.random.default_rng(each) for each in seeds)
        length = BEETLE_LENGTH * min(width, height * 4 / 3)
        margin = (length / 2 + 2) / np.array([width, height])
        table, glow = _place_lamp(for_lamp, _draw_table(for_table, height, width))
        return cls(
            table=table,
            glow=glow,
            lamp=for_lamp.random(frames, np.float32),
            light=1 + LIGHT_DRIFT * _drift(for_light, frames).astype(np.float32),
            beetle=_draw_beetle(length),
            truth=_walk(for_path, frames, margin),
            noise=noise,
        )

    def blocks(self) -> Iterator[Pixels]:
        """Yield the frames with light and noise, up to FRAMES_AT_ONCE at a time."""
        noise = np.random.default_rng(self.noise)
        for start in range(0, len(self.lamp), FRAMES_AT_ONCE):
            part = slice(start, start + FRAMES_AT_ONCE)
            clean = self.light[part, None, None, None] * self.paste(self.empty(part), part)
            grain = noise.standard_normal((*clean.shape[:3], 4), np.float32)
            clean += NOISE * COLOUR_NOISE**0.5 * grain[..., :3]
            clean += NOISE * (1 - COLOUR_NOISE) ** 0.5 * grain[..., 3:]
            yield (clean.clip(0, 1) * 255 + 0.5).astype(np.uint8)

    def empty(self, part: slice) -> Floats:
        """Return (frames, height, width, 3) table and lamp, before light and noise."""
        return self.table + self.lamp[part, None, None, None] * self.glow

    def paste(self, behind: Floats, part: slice) -> Floats:
        """Draw the beetle of these frames in front of the background `behind`."""
        height, width = behind.shape[1:3]
        half = self.beetle.shape[-1] / OVERSAMPLING / 2
        angle = self.truth.angle[part]
        cos = np.cos(angle) / half
        sin = np.sin(angle) / half
        right = (0.5 - self.truth.x[part]) * width
        down = (0.5 - self.truth.y[part]) * height
        # Maps coordinates of the frame to those of the beetle's image, both from -1 to 1.
        first_row = [cos * width / 2, sin * height / 2, cos * right + sin * down]
        second_row = [-sin * width / 2, cos * height / 2, cos * down - sin * right]
        affine = torch.from_numpy(np.moveaxis(np.array([first_row, second_row]), 2, 0)).float()
        grid = F.affine_grid(affine, [len(angle), 4, height, width], align_corners=False)
        beetle = torch.from_numpy(self.beetle).expand(len(angle), -1, -1, -1)
        placed = F.grid_sample(beetle, grid, align_corners=False).permute(0, 2, 3, 1).numpy()
        pasted: Floats = behind * (1 - placed[..., 3:]) + placed[..., :3]
        return pasted


def _walk(random: Generator, frames: int, margin: NDArray[np.float64]) -> Truth:
    """Return a path that reaches all sides of the frame, and turns that are independent of it.

    Each coordinate is a sine of an uneven clock: it stays in range, reaches both ends and does not
    repeat.
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
    """Return radians that grow by 2 pi per `period` frames on average, at a varying rate."""
    start, *phases = random.uniform(0, 2 * np.pi, 3)
    wander = sum(
        np.sin(2 * np.pi * time / (period * ratio) + phase) * uneven / 2
        for ratio, phase in zip((1.618, 0.786), phases, strict=True)
    )
    angle: NDArray[np.float64] = start + 2 * np.pi * time / period + wander
    return angle


def _drift(random: Generator, frames: int) -> NDArray[np.float64]:
    """Return values from -1 to 1 that change more slowly than the object."""
    return np.sin(_clock(random, np.arange(frames), 420, 1.0))


def _draw_table(random: Generator, height: int, width: int) -> Floats:
    """Draw discs, cards and striped cloths on a mottled table."""
    table = (1 + 0.5 * _mottle(random, height, width)[..., None]) * np.array([0.58, 0.5, 0.41])
    for number in range(34):
        alpha, colour = _draw_thing(random, height, width, ("disc", "cloth", "card")[number % 3])
        table += 0.92 * alpha[..., None] * (colour - table)
    table += 0.12 * _mottle(random, height, width)[..., None]  # wear of the surface
    drawn: Floats = table.clip(0.08, 0.92).astype(np.float32)
    return drawn


def _draw_thing(
    random: Generator, height: int, width: int, kind: str
) -> tuple[NDArray[np.float64], Floats]:
    """Draw an object on the table: (height, width) alpha, and its colour or colours."""
    y, x = np.mgrid[:height, :width] + 0.5
    unit = min(width, height * 4 / 3)
    angle = random.uniform(0, np.pi)
    left = random.uniform(0, width)
    top = random.uniform(0, height)
    along = (x - left) * np.cos(angle) + (y - top) * np.sin(angle)
    across = (y - top) * np.cos(angle) - (x - left) * np.sin(angle)
    long = unit * random.uniform(0.04, 0.13)
    short = unit * random.uniform(0.03, 0.09)
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
    """Return smooth noise of several octaves from -1 to 1, with standard deviation near 1/2."""
    total = np.zeros((height, width))
    for octave in range(4):
        cells = 3 * 2**octave
        coarse = torch.from_numpy(random.standard_normal((1, 1, cells, cells)))
        layer = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
        total += layer[0, 0].numpy() * 0.6**octave
    mottle: NDArray[np.float64] = np.tanh(total / total.std() / 2)
    return mottle


def _place_lamp(random: Generator, table: Floats) -> tuple[Floats, Floats]:
    """Return the table with a lamp in one quarter, and the light of the lamp."""
    height, width, _ = table.shape
    unit = min(width, height * 4 / 3)
    left = random.choice([0.2, 0.8]) * width
    top = random.choice([0.2, 0.8]) * height
    y, x = np.mgrid[:height, :width] + 0.5
    distance = np.hypot(x - left, y - top)[..., None]
    socket = (unit * 0.034 - distance + 0.5).clip(0, 1)
    bulb = (unit * 0.026 - distance + 0.5).clip(0, 1)
    halo = np.exp(-((distance / unit / 0.06) ** 2))
    glow = (0.7 * bulb + 0.25 * halo) * np.array([1.0, 0.9, 0.6])
    # The socket is dark, so that the light is visible on white cards too.
    dark: Floats = table + socket.astype(np.float32) * (STRIPE - table)
    return dark, glow.astype(np.float32)


def _draw_beetle(length: float) -> Floats:
    """Return (4, side, side) premultiplied RGB and alpha, blurred, head to the right."""
    half = int(np.ceil((length * 0.62 + 3 * EDGE_BLUR) * OVERSAMPLING))
    v, u = (np.mgrid[-half:half, -half:half] + 0.5) / (OVERSAMPLING * length)
    # Painted twice: the first time to measure how far the centroid is from the middle.
    alpha = _paint(u, v)[3]
    painted = torch.from_numpy(_paint(u + (u * alpha).sum() / alpha.sum(), v))[None]
    deviation = EDGE_BLUR * OVERSAMPLING
    reach = 3 * int(np.ceil(deviation))
    weight = np.exp(-((np.arange(-reach, reach + 1) / deviation) ** 2) / 2)
    kernel = torch.from_numpy(weight / weight.sum()).expand(4, 1, 1, -1)
    for blur in (kernel, kernel.mT):
        painted = F.conv2d(painted, blur, padding="same", groups=4)
    beetle: Floats = painted[0].float().numpy()
    return beetle


def _paint(u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """Paint the beetle at (u, v), in body lengths, u towards the head, without blur."""
    body = ((u + 0.14) / 0.36) ** 2 + (v / (0.27 + 0.12 * u)) ** 2 < 1  # narrow at the tail
    head = np.hypot(u - 0.30, v) < 0.19
    eyes = np.hypot(u - 0.38, abs(v) - 0.09) < 0.05
    stripes = np.cos((u + 0.14) * 2 * np.pi / 0.21) < -0.1
    rgb = np.where((body & stripes)[None], STRIPE[:, None, None], SHELL[:, None, None])
    rgb = np.where(head[None], HEAD[:, None, None], rgb)
    rgb = np.where(eyes[None], EYE[:, None, None], rgb)
    alpha = (body | head).astype(np.float64)
    return np.concatenate([rgb * alpha, alpha[None]])


@dataclass(frozen=True)
class AnimalPaths:
    """Positions of the animals.

    Attributes:
        x: (frames, animals) in 0..1 of the side.
        y: (frames, animals).
        angle: (frames, animals) direction of the head in radians, clockwise from the right.
        crossings: Number of times that two animals met after being apart.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    angle: NDArray[np.float64]
    crossings: int


def walk(animals: int, *, crossings: int = 100, most: int = 20_000, seed: int = 0) -> AnimalPaths:
    """Let animals walk until they have crossed often enough.

    Args:
        animals: Number of animals.
        crossings: Number of crossings after which they stop.
        most: Largest number of frames.
        seed: Determines the paths.

    Example:
        >>> paths = walk(2, crossings=3)
        >>> paths.x.shape[1], paths.crossings
        (2, 3)
    """
    rng = np.random.default_rng(seed)
    place = rng.uniform(2 * MARGIN, 1 - 2 * MARGIN, (animals, 2))
    angle = rng.uniform(-np.pi, np.pi, animals)
    goal = place.copy()
    met_by = np.full(animals, -1)  # the animal that each one walks to
    rest = np.zeros(animals, int)
    apart = np.ones((animals, animals), bool)
    history: list[NDArray[np.float64]] = []
    count = 0
    while len(history) < most and count < crossings:
        goal = np.where(met_by[:, None] >= 0, place[met_by], goal)
        arrived = np.linalg.norm(goal - place, axis=1) < LENGTH / 2
        for i in np.flatnonzero(arrived & (rest == 0)):
            meets = met_by[i] < 0 and animals > 1 and rng.random() < MEETING
            met_by[i] = rng.choice(np.delete(np.arange(animals), i)) if meets else -1
            goal[i] = rng.uniform(MARGIN, 1 - MARGIN, 2)
            if rng.random() < RESTING:
                rest[i] = rng.integers(REST_FRAMES)
        ahead = np.arctan2(*(goal - place).T[::-1]) - angle
        ahead = (ahead + np.pi) % (2 * np.pi) - np.pi
        walking = rest == 0
        angle = angle + walking * np.clip(0.2 * ahead, -TURN, TURN)
        slower = np.where(np.abs(ahead) > 1, 0.2, 1.0)  # or they would circle around their goal
        step = (SPEED * LENGTH * walking * slower)[:, None]
        place = place + step * np.stack([np.cos(angle), np.sin(angle)], 1)
        rest = np.maximum(rest - 1, 0)
        distance = np.linalg.norm(place[:, None] - place, axis=2)
        met = apart & (distance < CROSSING * LENGTH) & ~np.eye(animals, dtype=bool)
        count += int(met.sum()) // 2
        apart = (apart & ~met) | (distance > APART * LENGTH)
        history.append(np.column_stack([place, angle]))
    x, y, angles = np.stack(history).transpose(2, 0, 1)
    return AnimalPaths(x, y, angles, count)


def render_animals(
    paths: AnimalPaths, side: int, *, seed: int = 0, variety: float = VARIETY
) -> Iterator[NDArray[np.uint8]]:
    """Yield (side, side, 3) frames of animals on a floor with stains.

    Args:
        paths: From `walk`.
        side: Height and width of the frames in pixels.
        seed: Determines the floor, the animals and the noise.
        variety: Largest relative difference of size and of brightness from the mean; 0 for animals
            that look the same.
    """
    rng = np.random.default_rng(seed)
    animals = paths.x.shape[1]
    stains = cv2.GaussianBlur(rng.normal(0, 1, (side, side)).astype(np.float32), (0, 0), side / 40)
    floor = 190 + 12 * stains / stains.std()
    size = 1 + variety * rng.uniform(-1, 1, (animals,))
    shade = 60 * (1 + variety * rng.uniform(-1, 1, (animals,)))
    noise = rng.normal(0, ANIMAL_NOISE, (2 * side, 2 * side, 1)).astype(np.float32)
    steps = np.stack([paths.x, paths.y, paths.angle], 2)
    for t in range(len(steps)):
        image = np.repeat(floor[:, :, None], 3, 2).astype(np.float32)
        for i in range(animals):
            x, y, angle = steps[t, i]
            _draw_animal(image, (x, y), angle, float(size[i]), float(shade[i]))
        top, left = rng.integers(side, size=2)  # new noise for every frame would be slow
        noisy = np.add(image, noise[top : top + side, left : left + side])
        yield noisy.clip(0, 255).astype(np.uint8)


def _draw_animal(
    image: NDArray[np.float32], place: tuple[float, float], angle: float, size: float, shade: float
) -> None:
    side = len(image)
    unit = side * 2**SHIFT
    length = LENGTH * size
    body = int(unit * length / 2), int(unit * length * ASPECT / 2)
    centre = round(unit * place[0]), round(unit * place[1])
    turn = float(np.degrees(angle))
    colour = (shade, 0.9 * shade, 0.8 * shade)
    cv2.ellipse(image, centre, body, turn, 0, 360, colour, -1, cv2.LINE_AA, SHIFT)
    head = (
        round(unit * (place[0] + 0.33 * length * np.cos(angle))),
        round(unit * (place[1] + 0.33 * length * np.sin(angle))),
    )
    radius = int(unit * length * ASPECT / 4)
    light = (shade + 40, shade + 40, shade + 40)
    cv2.circle(image, head, radius, light, -1, cv2.LINE_AA, SHIFT)


def write_animals(
    folder: Path,
    animals: int,
    *,
    crossings: int = 100,
    side: int = 512,
    seed: int = 0,
    variety: float = VARIETY,
) -> Path:
    """Write `animals.mp4` and `truth.csv` with columns frame, animal, x, y, heading, in pixels.

    Args:
        folder: Folder to write to; created if it does not exist.
        animals: Number of animals.
        crossings: Number of crossings after which the video ends.
        side: Height and width of the frames in pixels.
        seed: Determines everything.
        variety: As in `render_animals`.

    Returns:
        Path of the video.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = walk(animals, crossings=crossings, seed=seed)
    with VideoWriter(folder / "animals.mp4", fps=25) as video:
        for frame in render_animals(paths, side, seed=seed, variety=variety):
            video.write(frame)
    with replacing(folder / "truth.csv", "w") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["frame", "animal", "x", "y", "heading"])
        for t, (x, y, angle) in enumerate(zip(paths.x, paths.y, paths.angle, strict=True)):
            for i in range(animals):
                heading = np.degrees(angle[i] + np.pi) % 360 - 180
                place = f"{x[i] * side:.2f}", f"{y[i] * side:.2f}"
                rows.writerow([t, i, *place, f"{heading:.1f}"])
    return folder / "animals.mp4"
