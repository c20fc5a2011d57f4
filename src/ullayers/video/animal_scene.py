"""Synthetic video of several similar animals that often cross, with ground truth."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.files import replacing
from ullayers.video.writer import VideoWriter

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
NOISE = 3.0  # grey levels
SHIFT = 4  # binary digits of the fraction of a pixel in OpenCV's drawing


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
    noise = rng.normal(0, NOISE, (2 * side, 2 * side, 1)).astype(np.float32)
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
