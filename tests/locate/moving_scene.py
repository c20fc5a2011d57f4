"""A square that moves in front of a textured wall, filmed by a moving camera, with ground truth."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

HEIGHT, WIDTH, SIDE = 108, 144, 20  # cells of 2 pixels: a cell of 1 takes longer


def homography(t: int, kind: str) -> NDArray[np.float64]:
    """From the wall to frame t."""
    if kind == "static":
        return np.array([[1.0, 0, -40], [0, 1, -30], [0, 0, 1]])
    if kind == "pan":
        return np.array([[1.0, 0, -20 - 2.0 * t], [0, 1, -30], [0, 0, 1]])
    zoom = 1 + 0.006 * t
    angle = 0.006 * t
    turn = np.array(
        [
            [zoom * np.cos(angle), -zoom * np.sin(angle), -40],
            [zoom * np.sin(angle), zoom * np.cos(angle), -30],
            [1e-5 * t, 0, 1],
        ]
    )
    return turn


def film(
    kind: str, count: int = 20, noise: float = 2.0
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return frames (time, height, width, 3) and the masks of the square."""
    rng = np.random.default_rng(0)
    wall = cv2.GaussianBlur(rng.integers(0, 255, (200, 260, 3)).astype(np.float32), (0, 0), 2)
    wall = (wall - wall.mean()) * 4 + 120
    frames, masks = [], []
    for t in range(count):
        matrix = homography(t, kind)
        frame = cv2.warpPerspective(wall, matrix, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
        mask = np.zeros((HEIGHT, WIDTH), bool)
        top, left = 30 + t // 2, 20 + 3 * t
        mask[top : top + SIDE, left : left + SIDE] = True
        frame[mask] = (210, 60, 50)
        frame = frame + rng.normal(0, noise, frame.shape)
        frames.append(np.clip(frame, 0, 255).astype(np.uint8))
        masks.append(mask)
    return np.stack(frames), np.stack(masks)
