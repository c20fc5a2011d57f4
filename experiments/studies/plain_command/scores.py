"""Ground truth of different kinds, and the scores of positions, masks and tracks against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]

CONFIDENT = 0.5
CLOSE = 0.05  # of the width: a confident position must be at least as close as this
OPAQUE = 127  # a pixel of a mask above this belongs to the object


class Track(NamedTuple):
    """Frame numbers (rows,), x and y in 0..1 (rows, 2) and confidences (rows,) of a sequence.

    A table of several objects has a row for each object in each frame. Each of these positions is
    scored against the nearest true object, or against all boxes.
    """

    frames: NDArray[np.int64]
    positions: Floats
    confidence: Floats
    objects: int = 1


class Truth(Protocol):
    """Where the object is in each frame of a sequence."""

    def __len__(self) -> int:
        """Return the number of frames."""

    def errors(self, track: Track) -> Floats:
        """Return how far each position is from the object, in widths of the frame.

        Positions that are missing are infinitely far. Frames without truth are NaN.
        """


@dataclass(frozen=True)
class Points:
    """One or several objects as points.

    Attributes:
        points: (time, objects, 2) x and y in 0..1; NaN where unknown. If only y is NaN, the error
            is that of x.
        aspect: Height divided by width of the frames.
    """

    points: Floats
    aspect: float

    def __len__(self) -> int:
        return len(self.points)

    def errors(self, track: Track) -> Floats:
        """Return the distance to the nearest object."""
        true = self.points[track.frames]
        difference = (track.positions[:, None] - true) * [1, self.aspect]
        known = np.isfinite(true[..., 0])
        only_x = known & ~np.isfinite(true[..., 1])
        difference[..., 1] = np.where(only_x, 0, difference[..., 1])
        distances = np.hypot(difference[..., 0], difference[..., 1])
        distances = np.where(np.isnan(distances) | ~known, np.inf, distances).min(1)
        return np.where(known.any(1), distances, np.nan)


@dataclass(frozen=True)
class Boxes:
    """Several objects as boxes: left, top, right and bottom in 0..1, (objects, 4) per frame."""

    boxes: list[Floats]

    def __len__(self) -> int:
        return len(self.boxes)

    def errors(self, track: Track) -> Floats:
        """Return 0 inside a box and infinity elsewhere."""
        inside = [
            ((boxes[:, :2] <= position) & (position <= boxes[:, 2:])).all(1).any()
            for boxes, position in zip(
                (self.boxes[frame] for frame in track.frames), track.positions, strict=True
            )
        ]
        return np.where(inside, 0.0, np.inf)


@dataclass(frozen=True)
class Masks:
    """One object as a mask in each frame, (time, height, width)."""

    masks: Bools

    def __len__(self) -> int:
        return len(self.masks)

    def errors(self, track: Track) -> Floats:
        """Return 0 on the mask and infinity elsewhere."""
        height, width = self.masks.shape[1:]
        known = ~np.isnan(track.positions.sum(1))
        at: Floats = np.where(known[:, None], track.positions, 0.0) * [width, height]
        columns, rows = at.astype(int).T
        columns, rows = columns.clip(0, width - 1), rows.clip(0, height - 1)
        on_mask = self.masks[track.frames, rows, columns]
        return np.where(known & on_mask, 0.0, np.inf)

    def overlaps(self, folder: Path) -> Floats:
        """Return the intersection over union with the mask images of a folder, per frame."""
        height, width = self.masks.shape[1:]
        files = sorted(folder.glob("*.png"))
        if len(files) != len(self.masks):
            raise ValueError(f"expected {len(self.masks)} masks in {folder}, got {len(files)}")
        scores = []
        for file, true in zip(files, self.masks, strict=True):
            image: Any = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
            found = cv2.resize(image, (width, height), interpolation=cv2.INTER_NEAREST) > OPAQUE
            union = (found | true).sum()
            scores.append((found & true).sum() / union if union else 1.0)
        return np.array(scores)


def calibration(errors: Floats, confidence: Floats) -> dict[str, float]:
    """Return the share of confident frames, and how many of them are close to the object."""
    confident = confidence >= CONFIDENT
    judged = errors[confident & ~np.isnan(errors)]
    return {
        "confident frames": float(confident.mean()),
        "confident frames that are right": share(judged <= CLOSE),
    }


def share(hits: Bools) -> float:
    """Return the share of hits, NaN if there is nothing to count."""
    return float(hits.mean()) if len(hits) else float("nan")


HELD_OUT = 32  # free flight is scored on the throws from this one on, as in the experiment `pillow`

Score = Callable[[list[Truth], list[Track]], dict[str, float]]


def walk_scores(truths: list[Truth], tracks: list[Track]) -> dict[str, float]:
    """Return the correlation of x over all scenes, and that of the worst scene."""
    found, true = [], []
    for truth, track in zip(truths, tracks, strict=True):
        assert isinstance(truth, Points)
        found.append(filled(track.positions)[:, 0])
        true.append(truth.points[track.frames, 0, 0])
    return {
        "r of x": correlation(np.concatenate(found), np.concatenate(true)),
        "r of x, worst scene": min(map(correlation, found, true)),
    }


def pillow_scores(truths: list[Truth], tracks: list[Track]) -> dict[str, float]:
    """Return the distance where the truth is known, and the motion that free flight explains."""
    # Here y is not scaled by the aspect ratio: distances are shares of the frame.
    offsets = np.concatenate(
        [
            filled(track.positions) - truth.points[track.frames, 0]
            for truth, track in zip(truths, tracks, strict=True)
            if isinstance(truth, Points)
        ]
    )
    usual = np.nanmedian(offsets, axis=0)
    flights = [filled(track.positions) for track in tracks[HELD_OUT:]]
    return {
        "median distance, of the frame": float(np.nanmedian(np.hypot(*offsets.T))),
        # The truth was made by colour, and its centre is another one than that of an outline.
        "the same without the usual offset": float(np.nanmedian(np.hypot(*(offsets - usual).T))),
        "motion explained by free flight": explained_by_flight(flights),
    }


def median_distance(truths: list[Truth], tracks: list[Track]) -> dict[str, float]:
    """Return quantiles of the distance."""
    errors = all_errors(truths, tracks)
    known = errors[~np.isnan(errors)]
    return {
        "median distance, % of the width": 100 * float(np.median(known)),
        "90 % of the frames within, % of the width": 100 * float(np.quantile(known, 0.9)),
        "frames within 5 % of the width": share(known <= 0.05),
    }


def within(distance: float) -> Score:
    """Return a score: the share of frames that are at most this far from an object, in widths."""

    def score(truths: list[Truth], tracks: list[Track]) -> dict[str, float]:
        errors = all_errors(truths, tracks)
        confidence = np.concatenate([track.confidence for track in tracks])
        known = ~np.isnan(errors)
        found = (errors <= distance)[known]
        return {
            "frames found": share(found),
            "frames found with confidence": share(found & (confidence[known] >= CONFIDENT)),
        }

    return score


def on_object(truths: list[Truth], tracks: list[Track]) -> dict[str, float]:
    """Return the share of frames whose position is on an object."""
    return within(0.0)(truths, tracks)


def all_errors(truths: list[Truth], tracks: list[Track]) -> Floats:
    """Return the errors of all frames."""
    return np.concatenate([t.errors(track) for t, track in zip(truths, tracks, strict=True)])


def correlation(a: Floats, b: Floats) -> float:
    """Return the correlation where the truth `b` is known; 0 if one of them is constant."""
    known = np.isfinite(b)
    a, b = a[known], b[known]
    return 0.0 if np.ptp(a) == 0 or np.ptp(b) == 0 else float(np.corrcoef(a, b)[0, 1])


def explained_by_flight(flights: list[Floats]) -> float:
    """Return the share of all motion explained by x linear in time and y a parabola."""
    unexplained = variation = 0.0
    for positions in flights:
        time = np.arange(len(positions))
        for axis, degree in ((0, 1), (1, 2)):
            values = positions[:, axis]
            path = np.polyval(np.polyfit(time, values, degree), time)
            unexplained += float(np.square(values - path).sum())
            variation += float(np.square(values - values.mean()).sum())
    return 1 - unexplained / max(variation, 1e-12)


def filled(positions: Floats) -> Floats:
    """Replace missing positions by the last known, else the first known, else the centre."""
    known = np.flatnonzero(np.isfinite(positions).all(1))
    if not len(known):
        return np.full_like(positions, 0.5)
    last = np.searchsorted(known, np.arange(len(positions)), side="right") - 1
    return positions[known[np.maximum(last, 0)]]
