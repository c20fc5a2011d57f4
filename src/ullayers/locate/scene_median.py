"""The median of each pixel over time, and how motion in front of it affects it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels, optical_flow
from ullayers.locate.parallel import in_parallel

ROW_BYTES = 2**26  # memory for the median over time of a band of rows
# The median of the absolute value of a normal deviate is 0.67 standard deviations.
MEDIAN_DEVIATION = 0.67

MOTION_SIDE, SHORTEST_SIDE = 320, 16  # sides in pixels of the frames in which motion is measured
MOVING = 0.5  # smallest motion from frame to frame, in pixels
CLOSING = np.ones((7, 7), np.uint8)  # fills the inside of an object, where flow is uncertain
# A pixel moves often if it moves in more than the first share of the frames, and rests in more than
# the second share, which is enough for its median.
OFTEN, SELDOM = 0.25, 0.15
MOVING_WEIGHT = 0.6  # weight of a frame with motion when two colours of the scene are compared
SAME_COLOUR = 10.0  # largest difference in grey levels of a frame that agrees with a colour


def moving_pixels(sample: Frames, after: Frames) -> NDArray[np.bool_]:
    """Return the (time, height, width) pixels that move from each frame to the one after it.

    Args:
        sample: (time, height, width, 3) uint8.
        after: The frames that follow those of the sample.
    """
    size = sample.shape[2], sample.shape[1]
    scale = min(1.0, max(MOTION_SIDE / max(size), SHORTEST_SIDE / min(size)))

    def small(frame: Pixels) -> Pixels:
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        reduced = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        return np.asarray(reduced, np.uint8)

    def moves(frame: Pixels, following: Pixels) -> NDArray[np.bool_]:
        flow = optical_flow(small(frame), small(following))
        flow -= np.median(flow, axis=(0, 1))
        found = (np.hypot(flow[..., 0], flow[..., 1]) > MOVING).astype(np.uint8)
        whole = cv2.dilate(cv2.morphologyEx(found, cv2.MORPH_CLOSE, CLOSING), CLOSING)
        return np.asarray(cv2.resize(whole, size, interpolation=cv2.INTER_NEAREST) > 0)

    return np.stack(in_parallel(moves, sample, after))


def median_over_time(
    frames: NDArray[np.uint8] | Floats, moving: NDArray[np.bool_] | None = None
) -> Floats:
    """Return the median of each pixel, computed in bands of rows to bound memory.

    Args:
        frames: (time, height, width) or (time, height, width, 3).
        moving: From `moving_pixels`. A pixel that moves often is the median of the other frames.
    """
    middle = np.empty(frames.shape[1:], np.float32)
    rows = max(1, min(ROW_BYTES // (8 * frames[:, 0].size), -(-len(middle) // 2)))

    def band(top: int) -> None:
        some = slice(top, top + rows)
        middle[some] = np.median(frames[:, some], axis=0)
        if moving is not None:
            often, median = _median_at_rest(frames[:, some], moving[:, some])
            middle[some][often] = median

    in_parallel(band, range(0, len(middle), rows))
    return middle


def hidden_by_motion(levelled: Frames, moving: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return `moving`, but only where the frames without motion show what is behind.

    Where an animal rests, the scene may be seen mostly while the animal moves nearby. The median of
    all frames and that of the frames without motion compete: the one with which more frames agree
    is the scene. Frames with motion count less, as they may show a large object.
    """
    hidden = moving.copy()

    def compare(row: int) -> None:
        often, at_rest = _median_at_rest(levelled[:, row], moving[:, row])
        if not often.any():
            return
        seen = levelled[:, row, often].astype(np.float32)
        weight = np.where(moving[:, row, often], MOVING_WEIGHT, 1)
        all_frames = np.median(seen, axis=0)
        support, support_at_rest = (
            (weight * (np.abs(seen - colour).mean(-1) < SAME_COLOUR)).sum(0)
            for colour in (all_frames, at_rest)
        )
        differ = np.abs(all_frames - at_rest).mean(-1) > SAME_COLOUR
        hidden[:, row, np.flatnonzero(often)[differ & (support > support_at_rest)]] = False

    in_parallel(compare, range(levelled.shape[1]))
    return hidden


def _median_at_rest(
    frames: NDArray[np.uint8] | Floats, moving: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Floats]:
    """Return the pixels that move often but not always, and their medians while they do not."""
    resting = np.count_nonzero(~moving, axis=0)
    often = (resting < (1 - OFTEN) * len(frames)) & (resting > SELDOM * len(frames))
    values = frames[:, often].astype(np.float32)
    values[moving[:, often]] = np.inf
    values.sort(axis=0)
    median: Floats = values[(resting[often] - 1) // 2, np.arange(values.shape[1])]
    return often, median
