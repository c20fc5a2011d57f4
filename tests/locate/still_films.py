"""Films of a still camera with known truth: a disc that moves, rests, or is not there."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH = 120, 160

Places = NDArray[np.float64]


def wall(seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    texture = cv2.GaussianBlur(rng.normal(0, 60, (HEIGHT, WIDTH, 3)).astype(np.float32), (0, 0), 2)
    return np.asarray(120 + texture, np.float32)


def film(
    places: Places,
    *,
    radius: int = 6,
    noise: float = 3.0,
    bands: float = 0.0,
    drift: float = 0.0,
    colour: tuple[int, int, int] = (30, 30, 40),
    texture: float = 1.0,
    seed: int = 0,
) -> NDArray[np.uint8]:
    """Return frames with a disc at the given places in pixels; none where they are NaN.

    Args:
        places: (time, 2) x, y.
        radius: Of the disc, in pixels.
        noise: Standard deviation of the sensor's noise in grey levels.
        bands: Relative brightness of bands that roll through the frames.
        drift: Relative change of the light from the first to the last frame.
        colour: Of the disc.
        texture: Contrast of the scene.
        seed: Of the noise.
    """
    rng = np.random.default_rng(seed)
    behind = 120 + texture * (wall() - 120)
    rows = np.arange(HEIGHT)
    frames = []
    for t, (x, y) in enumerate(places):
        frame = behind.copy()
        if not np.isnan(x):
            cv2.circle(frame, (round(x), round(y)), radius, colour, -1)
        frame *= 1 + drift * t / len(places)
        frame *= (1 + bands * np.sin(2 * np.pi * (2.3 * rows / HEIGHT + 0.37 * t)))[:, None, None]
        frame += rng.normal(0, noise, (HEIGHT, WIDTH, 1))
        frames.append(frame.round().clip(0, 255).astype(np.uint8))
    return np.stack(frames)


def circle(count: int) -> Places:
    """Return places on a circle."""
    angle = np.linspace(0, 6 * np.pi, count)
    return np.stack([80 + 50 * np.cos(angle), 60 + 35 * np.sin(angle)], axis=1)
