"""Consensus: the Markov chain of the closed form on cells of a video.

Section 2 of the paper places the states of a Markov chain so that states between which the chain
often steps lie close together. Here a state is a small cell of a frame, and the chain steps to
cells that look alike and lie nearby, in any frame of the video. Averaging a function of the cells
along the chain keeps its slow components (parts of the video that belong together) and removes fast
ones (single cells that stand out by chance). A few steps therefore carry evidence of motion from
cells where it is clear to similar cells where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.spatial import KDTree

from ullayers.locate.flow import Floats, Frames

CELLS = 96  # along the longer side of a frame
LANDMARKS = 40_000  # cells that the chain steps to, drawn at random
NEIGHBOURS = 12  # cells that each cell steps to
STEPS = 4
REACH_STEPS = 30  # enough to reach a cell with clear evidence
SURROUNDINGS = 3.0  # cells: width of the blur that describes the surroundings of a cell
POSITION = 3.0  # weight of the position, in standard deviations of the colour per longer side
TOLERANCE = 1.0  # relative: neighbours may be this much farther away than the nearest ones


@dataclass(frozen=True)
class CellChain:
    """A Markov chain on the cells of a video.

    Attributes:
        shape: (time, rows, columns) of cells.
        to_landmarks: (cells, landmarks) probabilities of a step from each cell.
        landmarks: (landmarks,) cells that the chain steps to.
    """

    shape: tuple[int, int, int]
    to_landmarks: sp.csr_array
    landmarks: NDArray[np.int64]

    @cached_property
    def between_landmarks(self) -> sp.csr_array:
        """(landmarks, landmarks) probabilities of a step from each landmark."""
        return self.to_landmarks[self.landmarks]

    def walk(self, values: Floats, steps: int = STEPS) -> Floats:
        """Return the expectation of a function of the cells after some steps of the chain.

        Args:
            values: (time, rows, columns) or (time, rows, columns, functions).
            steps: Number of steps, at least 1; many steps leave only the slowest functions.
        """
        if steps < 1 or values.shape[:3] != self.shape:
            raise ValueError(
                f"expected values {self.shape} and at least one step, got {values.shape} and "
                f"{steps} steps"
            )
        flat = values.reshape(self.to_landmarks.shape[0], -1)[self.landmarks]
        for _ in range(steps - 1):
            flat = self.between_landmarks @ flat
        result: Floats = (self.to_landmarks @ flat).reshape(values.shape).astype(np.float32)
        return result

    def reach(self, values: Floats, low: float, high: float) -> Floats:
        """Return the probability that the chain reaches a high value before a low one.

        Cells above `high` belong to an object and cells below `low` to the background; the chain
        starts at each cell and ends when it reaches one of them (a random walker, Grady 2006). The
        natural threshold is 0.5.

        Args:
            values: (time, rows, columns).
            low: Values below are background.
            high: Values above are an object.
        """
        found = values.ravel()[self.landmarks]
        is_object, is_background = found > high, found < low
        chance = np.clip((found - low) / (high - low), 0, 1)
        for _ in range(REACH_STEPS):
            chance = self.between_landmarks @ chance
            chance[is_object] = 1
            chance[is_background] = 0
        result: Floats = (self.to_landmarks @ chance).reshape(values.shape).astype(np.float32)
        return result


def cell_side(height: int, width: int) -> int:
    """Return the side of a cell in pixels.

    >>> cell_side(216, 384), cell_side(144, 96), cell_side(16, 3000)
    (4, 2, 16)
    """
    return max(1, min(round(max(height, width) / CELLS), height, width))


def cell_means(values: NDArray[np.generic], cell: int) -> Floats:
    """Average images over square cells; a remainder at the right and bottom edge is dropped.

    Args:
        values: (time, height, width) or (time, height, width, channels).
        cell: Side of a cell in pixels.

    >>> cell_means(np.arange(16).reshape(1, 4, 4), cell=2).tolist()
    [[[2.5, 4.5], [10.5, 12.5]]]
    """
    time, height, width = values.shape[:3]
    rows, columns = height // cell, width // cell
    kept = values[:, : rows * cell, : columns * cell].astype(np.float32)
    blocks = kept.reshape(time, rows, cell, columns, cell, *values.shape[3:])
    means: Floats = blocks.mean(axis=(2, 4))
    return means


def cell_colours(frames: Frames, cell: int) -> Floats:
    """Return the (time, rows, columns, 3) colours of cells, in OpenCV's Lab of 8 bits.

    Args:
        frames: (time, height, width, 3) uint8.
        cell: Side of a cell in pixels.
    """
    lab = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2LAB) for frame in frames])
    return cell_means(lab, cell)


def cell_chain(frames: Frames, cell: int, seed: int = 0) -> CellChain:
    """Build the chain of a video.

    Args:
        frames: (time, height, width, 3) uint8.
        cell: Side of a cell in pixels.
        seed: Seed of the random choice of landmarks.

    Example:
        >>> frames = np.zeros((3, 32, 32, 3), np.uint8)
        >>> frames[:, :, 16:] = 200  # two halves
        >>> chain = cell_chain(frames, cell=4)
        >>> hint = np.zeros(chain.shape, np.float32)
        >>> hint[0, 4, 6] = 1  # evidence in a single cell of the right half
        >>> spread = chain.walk(hint, steps=8)
        >>> bool(spread[2, 4, 6] > 0), bool(spread[:, :, :4].max() == 0)
        (True, True)
    """
    features, shape = _describe(frames, cell)
    count = len(features)
    generator = np.random.default_rng(seed)
    landmarks = np.sort(generator.permutation(count)[:LANDMARKS])
    k = min(NEIGHBOURS, len(landmarks))
    distance, near = KDTree(features[landmarks]).query(features, k=k, eps=TOLERANCE)
    distance = np.asarray(distance).reshape(count, k)
    near = np.asarray(near).reshape(count, k)
    scale = max(float(np.median(distance[:, -1])), 1e-6)
    weights = np.exp(-0.5 * np.square(distance / scale)) + 1e-12
    weights /= weights.sum(axis=1, keepdims=True)
    starts = np.arange(0, count * k + 1, k)
    steps = sp.csr_array((weights.ravel(), near.ravel(), starts), shape=(count, len(landmarks)))
    steps.sort_indices()
    return CellChain(shape, steps, landmarks)


def _describe(frames: Frames, cell: int) -> tuple[Floats, tuple[int, int, int]]:
    """Return colour, colour of the surroundings, and position of all cells."""
    own = cell_colours(frames, cell)
    wide = np.stack([cv2.GaussianBlur(image, (0, 0), SURROUNDINGS) for image in own])
    time, rows, columns = own.shape[:3]
    y, x = np.mgrid[:rows, :columns] / max(rows, columns)
    place = np.broadcast_to(POSITION * np.stack([x, y], axis=-1), (time, rows, columns, 2))
    contrast = max(float(own.reshape(-1, 3).std(0).mean()), 1.0)
    features = np.concatenate([own / contrast, wide / contrast, place], axis=-1)
    return features.reshape(-1, 8).astype(np.float32), (time, rows, columns)
