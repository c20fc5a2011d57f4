"""Synthetic films: two small animals under flickering light, and three without any object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ullayers.video.writer import VideoWriter

Floats = NDArray[np.floating[Any]]

FPS = 25
WIDTH, HEIGHT, FRAMES = 1920, 1080, 400  # of the film with banding
BANDING = 0.08  # relative amplitude of the bands
BANDS = 2.6  # periods of the light while the shutter passes over one frame
ROLL = 0.13  # periods by which the bands move from frame to frame
LIGHT_DRIFT = 0.06  # relative amplitude
NOISE = 0.02  # standard deviation of the sensor noise, for values of 0..1
NOISE_FIELDS = 8  # different noise fields, of which frames use random shifts
COLOUR = 0.2  # strength of the colours of a texture relative to its light and dark
ANIMAL = (6, 10)  # half the width and length in pixels
DARKNESS = 0.3  # brightness of an animal relative to the background


def write_banding(path: Path, seed: int = 0) -> Floats:
    """Write two animals on a still background under mains light; return (time, 2, 2) positions.

    Positions are x and y in 0..1.
    """
    random = np.random.default_rng(seed)
    background = texture(random, HEIGHT, WIDTH)
    paths = [_wander(random, side) for side in (0, 1)]
    noise = _noise_fields(random, HEIGHT, WIDTH)
    rows = np.arange(HEIGHT)[:, None, None] / HEIGHT
    with VideoWriter(path, FPS) as video:
        for t in range(FRAMES):
            frame = background.copy()
            for places, headings in paths:
                _draw_animal(frame, places[t], headings[t])
            bands = 1 + BANDING * np.sin(2 * np.pi * (BANDS * rows + ROLL * t))
            light = 1 + LIGHT_DRIFT * np.sin(2 * np.pi * t / FRAMES * 0.8)
            frame *= (light * bands).astype(np.float32)
            video.write(_exposed(frame, noise, random))
    return np.stack([places / (WIDTH, HEIGHT) for places, _ in paths], 1)


def _wander(random: Generator, side: int) -> tuple[Floats, Floats]:
    """Return places (time, 2) in pixels and headings of an animal that stays in one half.

    It walks a while, turning a little in every frame, and then pauses a while.
    """
    low = np.array([WIDTH / 2 * side, 0]) + 60
    high = np.array([WIDTH / 2 * (side + 1), HEIGHT]) - 60
    place = random.uniform(low, high)
    heading = random.uniform(0, 2 * np.pi)
    places, headings = [], []
    left, speed = 0, 0.0
    for _ in range(FRAMES):
        if left == 0:
            speed = random.uniform(2, 6) if speed == 0 else 0.0
            left = int(random.integers(30, 80) if speed else random.integers(15, 50))
        left -= 1
        heading += random.normal(0, 0.08) if speed else 0.0
        step = place + speed * np.array([np.cos(heading), np.sin(heading)])
        if ((step < low) | (step > high)).any():
            centre = (low + high) / 2 - place
            heading = np.arctan2(centre[1], centre[0])
        else:
            place = step
        places.append(place)
        headings.append(heading)
    return np.array(places), np.array(headings)


def _draw_animal(frame: Floats, place: Floats, heading: float) -> None:
    x, y = place
    reach = ANIMAL[1] + 2
    left, top = int(x) - reach, int(y) - reach
    rows, columns = np.mgrid[top : top + 2 * reach + 1, left : left + 2 * reach + 1]
    along = (columns + 0.5 - x) * np.cos(heading) + (rows + 0.5 - y) * np.sin(heading)
    across = (rows + 0.5 - y) * np.cos(heading) - (columns + 0.5 - x) * np.sin(heading)
    radius = np.hypot(across / ANIMAL[0], along / ANIMAL[1])
    alpha = ((1 - radius) * ANIMAL[0] + 0.5).clip(0, 1)[..., None]
    frame[top : top + 2 * reach + 1, left : left + 2 * reach + 1] *= 1 - (1 - DARKNESS) * alpha


def texture(random: Generator, height: int, width: int) -> Floats:
    """Return a picture (height, width, 3) with details of all sizes, values of 0..1."""
    picture = np.zeros((height, width, 3), np.float32)
    cells = 4
    while cells <= height:
        coarse = random.standard_normal((cells, cells * width // height, 3)).astype(np.float32)
        coarse = COLOUR * coarse + coarse[..., :1]  # mostly grey
        picture += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) * cells**-0.3
        cells *= 2
    found: Floats = (0.5 + 0.12 * picture / picture.std()).clip(0.1, 0.9)
    return found


def _noise_fields(random: Generator, height: int, width: int) -> Floats:
    return NOISE * random.standard_normal((NOISE_FIELDS, height, width, 3), np.float32)


def _exposed(frame: Floats, noise: Floats, random: Generator) -> NDArray[np.uint8]:
    """Add sensor noise and convert to bytes."""
    height, width = frame.shape[:2]
    shift = int(random.integers(height)), int(random.integers(width))
    grain = np.roll(noise[random.integers(len(noise))], shift, (0, 1))
    exposed: NDArray[np.uint8] = ((frame + grain).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    return exposed


def write_empty_films(folder: Path, seed: int = 0) -> list[Path]:
    """Write films without an object: a still picture, white noise, and a panning camera."""
    height, width, frames = 360, 640, 200
    random = np.random.default_rng(seed)
    scene = texture(random, height, width + frames * 3)
    noise = _noise_fields(random, height, width)
    films: dict[str, Callable[[int], Floats]] = {
        "still": lambda t: scene[:, :width],
        "white_noise": lambda t: random.random((height, width, 3), np.float32),
        "pan": lambda t: scene[:, 3 * t : 3 * t + width],
    }
    paths = []
    for name, picture in films.items():
        paths.append(folder / f"{name}.mp4")
        with VideoWriter(paths[-1], FPS) as video:
            for t in range(frames):
                video.write(_exposed(picture(t), noise, random))
    return paths
