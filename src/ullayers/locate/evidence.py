"""Evidence of motion: change of each pixel that the camera's motion does not explain.

Three kinds are computed for a window of frames. The *residual flow* is the optical flow minus that
of the camera; it shows objects that are moving now. The *recent deviation* is the difference from
the median of neighbouring frames along the camera's path, and the *deviation* that from a mosaic,
the median of all frames of the window; it also shows objects that are slow or have stopped. Each is
divided by its median over the frame, so that contrast, noise and frame rate cancel out.

Water, smoke and leaves change in ways that the flow does not explain. If the camera moves, evidence
counts less there. With a still camera it does not: a small object may be too fast for the flow, and
its background is known well enough without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.background import difference_from_mosaic, difference_from_neighbours
from ullayers.locate.burned_in import burned_in
from ullayers.locate.flow import (
    CameraMotion,
    Floats,
    Frames,
    background_flow,
    camera_motion,
    chain,
    optical_flow,
)
from ullayers.locate.parallel import in_parallel

FLOW_FLOOR = 0.05  # pixels: smaller flow is never motion, even if the rest of the frame is still
GREY_FLOOR = 1.0  # grey levels: the same for the deviation
LARGEST_QUANTILE = 0.995  # larger evidence is clipped, so that a few pixels do not set the scale
PATCH = (7, 7)  # pixels over which the flow is compared with the change of the picture
FAINT_TEXTURE = 2.0  # grey levels: weaker texture may be noise
UNEXPLAINED = 0.7  # share of the texture that the flow does not explain: evidence counts half
MOVING_PAIRS = 0.5  # share of pairs of frames in which a moving camera moves


@dataclass(frozen=True)
class Evidence:
    """Evidence of motion in a window of frames.

    Attributes:
        flow: (time, height, width) residual flow, in units of its median over the frame.
        recent: (time, height, width) difference from neighbouring frames, in units of its median.
        deviation: (time, height, width) difference from the mosaic, in units of its median.
        rigid: (time, height, width) weight from 0 to 1: how well the flow explains the change of
            the picture; 1 everywhere if the camera is still.
        path: (time, 3, 3) homographies from each frame to the middle one.
        motions: Motion of the camera from each frame to the next.
    """

    flow: Floats
    recent: Floats
    deviation: Floats
    rigid: Floats
    path: NDArray[np.float64]
    motions: tuple[CameraMotion, ...]

    @property
    def combined(self) -> Floats:
        """The geometric mean of the residual flow and the recent deviation."""
        both: Floats = self.rigid * np.sqrt(clip_largest(self.flow) * clip_largest(self.recent))
        return both

    @property
    def kinds(self) -> list[Floats]:
        """Competing combinations, the preferred one first; the others suit slow objects."""
        flow, deviation = clip_largest(self.flow), clip_largest(self.deviation)
        return [self.combined, self.rigid * np.sqrt(flow * deviation), self.rigid * deviation]


def motion_evidence(frames: Frames) -> Evidence:
    """Measure motion relative to the camera in a window of consecutive frames.

    Needs a few times the memory of the frames, so split long videos into windows.

    Args:
        frames: (time, height, width, 3) uint8, at least two frames.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scene = cv2.GaussianBlur(rng.integers(0, 255, (64, 120, 3), np.uint8), (0, 0), 2)
        >>> frames = np.stack([scene[:, t : t + 96] for t in range(8)])  # the camera pans
        >>> for t in range(8):
        ...     frames[t, 20:32, 30 + 2 * t : 42 + 2 * t] = 255  # an object moves relative to it
        >>> found = motion_evidence(frames)
        >>> inside = found.combined[4, 20:32, 38:50].mean()
        >>> bool(inside > 5 * found.combined[4, :, 60:].mean())
        True
    """
    _check(frames)
    flow, unexplained, motions = _residual_flow(frames)
    path = chain([motion.matrix for motion in motions])
    flow = _relative(flow, FLOW_FLOOR)
    recent = _known(_relative(difference_from_neighbours(frames, path), GREY_FLOOR), flow)
    deviation = _known(_relative(difference_from_mosaic(frames, path), GREY_FLOOR), flow)
    outside = ~burned_in(frames, path, np.sqrt(flow * deviation))
    rigid = np.ones_like(flow)
    if np.mean([motion.model != "static" for motion in motions]) >= MOVING_PAIRS:
        rigid = 1 / (1 + np.square(unexplained / np.float32(UNEXPLAINED)))
    return Evidence(
        flow * outside, recent * outside, deviation * outside, rigid, path, tuple(motions)
    )


def clip_largest(evidence: Floats) -> Floats:
    """Clip the largest values of a window."""
    clipped: Floats = np.minimum(evidence, np.quantile(evidence, LARGEST_QUANTILE))
    return clipped


def _check(frames: Frames) -> None:
    if frames.ndim != 4 or frames.shape[3] != 3 or frames.dtype != np.uint8 or len(frames) < 2:
        raise ValueError(
            "expected at least two uint8 frames (time, height, width, 3), got "
            f"{frames.dtype} {frames.shape}"
        )


def _residual_flow(frames: Frames) -> tuple[Floats, Floats, list[CameraMotion]]:
    """Return the residual flow, the share of the texture that flow does not explain, and motions.

    Of the flow to the next and to the previous frame, the smaller values count: where an object
    uncovers the background, one of the two has no match.
    """
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]
    flow = np.full(frames.shape[:3], np.inf, np.float32)
    unexplained = np.full(frames.shape[:3], np.inf, np.float32)
    forward = in_parallel(_residual, grey[:-1], grey[1:])
    backward = in_parallel(_residual, grey[1:], grey[:-1])
    for t, pair in enumerate(zip(forward, backward, strict=True)):
        for at, (length, share, _) in zip((t, t + 1), pair, strict=True):
            np.minimum(flow[at], length, out=flow[at])
            np.minimum(unexplained[at], share, out=unexplained[at])
    return flow, unexplained, [motion for _, _, motion in forward]


def _residual(
    first: NDArray[np.uint8], second: NDArray[np.uint8]
) -> tuple[Floats, Floats, CameraMotion]:
    """Return the same for the flow from one grey image to another."""
    flow = optical_flow(first, second)
    motion = camera_motion(flow)
    rest = flow - background_flow(motion.matrix, *flow.shape[:2])
    length: Floats = np.hypot(rest[..., 0], rest[..., 1])
    return length, _unexplained(first, second, flow), motion


def _unexplained(first: NDArray[np.uint8], second: NDArray[np.uint8], flow: Floats) -> Floats:
    """Return the difference that is left between two grey images, relative to their texture."""
    height, width = first.shape
    y, x = np.mgrid[:height, :width].astype(np.float32)
    here, there = first.astype(np.float32), second.astype(np.float32)
    moved = cv2.remap(
        there,
        x + flow[..., 0],
        y + flow[..., 1],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REPLICATE,
    )
    texture = cv2.blur(cv2.absdiff(here, cv2.blur(here, PATCH)), PATCH)
    left = cv2.blur(cv2.absdiff(here, moved), PATCH)
    return np.asarray(left / (texture + FAINT_TEXTURE), np.float32)


def _relative(values: Floats, floor: float) -> Floats:
    """Divide each frame by its median, but at least by `floor`; NaN stays NaN."""
    median = np.array([np.median(known) if len(known) else 0 for known in map(_finite, values)])
    scale = np.maximum(median, floor).astype(np.float32)
    relative: Floats = values / scale[:, None, None]
    return relative


def _finite(values: Floats) -> Floats:
    known: Floats = values[~np.isnan(values)]
    return known


def _known(values: Floats, instead: Floats) -> Floats:
    """Replace NaN by other values."""
    return np.where(np.isnan(values), instead, values)
