"""Comparison of tracks with ground truth: distances, identities, overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from ullayers.errors import UserError
from ullayers.output.boxes import overlap
from ullayers.output.formats.packages import load
from ullayers.output.mask_images import Labels
from ullayers.output.observations import Observations
from ullayers.output.track_table import Floats

MIN_IOU = 0.5
BODY = 0.5  # of the body length: largest distance of a found object
UNKNOWN_BODY = 0.05  # of the frame width: the same if the body length is unknown


@dataclass(frozen=True)
class Rule:
    """Rule for when an object counts as found.

    Attributes:
        kind: Basis of the comparison: "masks", "boxes" or "distance".
        within: Largest distance in pixels; unused for masks and boxes.
    """

    kind: str
    within: float

    def __str__(self) -> str:
        if self.kind == "distance":
            return f"at most {self.within:.1f} px apart"
        return f"IoU of {self.kind} of at least {MIN_IOU}"


@dataclass
class Pairs:
    """Values of paired objects, collected frame by frame."""

    distances: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    overlaps: list[float] = field(default_factory=list)


def choose_rule(
    found: Observations, truth: Observations, within: float | None, length: float, width: int
) -> Rule:
    """Return the rule for when an object counts as found.

    Args:
        found: Results of a run.
        truth: True positions.
        within: Largest distance in pixels given by the user; None for the default.
        length: Median body length in pixels; NaN if unknown.
        width: Width of the frames in pixels.

    Example:
        >>> from ullayers.output.observations import Observation, collect
        >>> one = collect([Observation(0, 1, 5.0, 5.0)], [])
        >>> str(choose_rule(one, one, None, length=20.0, width=640))
        'at most 10.0 px apart'
    """
    if within is not None:
        return Rule("distance", within)
    if found.labels is not None and truth.labels is not None:
        return Rule("masks", np.nan)
    if found.has_boxes and truth.has_boxes:
        return Rule("boxes", np.nan)
    if truth.has_boxes:
        length = float(np.nanmedian(truth.box[:, 2:].max(1)))
    return Rule("distance", UNKNOWN_BODY * width if np.isnan(length) else BODY * length)


def score_tracks(
    found: Observations, truth: Observations, rule: Rule, width: int
) -> dict[str, Any]:
    """Compare tracks with ground truth in the frames that both have.

    Args:
        found: Results of a run.
        truth: True positions.
        rule: Rule for when an object counts as found.
        width: Width of the frames in pixels.

    Returns:
        Scores by name; None where a score is not defined. Distances and headings are those of the
        nearest pairs in each frame (optimal assignment). `mean_iou` is the mean over all true
        objects, 0 for missed ones.

    Raises:
        UserError: There is nothing to compare.
        MissingPackageError: motmetrics is not installed.

    Example:
        >>> from ullayers.output.observations import Observation, collect
        >>> truth = collect([Observation(i, 1, i, 0.0) for i in range(4)], [])
        >>> found = collect([Observation(i, 7, i, 3.0) for i in range(3)], range(4))
        >>> scores = score_tracks(found, truth, Rule("distance", 5.0), width=100)
        >>> scores["found"], scores["misses"], scores["median_distance_px"]
        (0.75, 1, 3.0)
    """
    [metrics] = load("score", "motmetrics")
    frames = np.intersect1d(found.frames, truth.frames)
    if not np.isin(truth.frame, frames).any():
        raise UserError(
            f"the truth has no objects in frames of the run: it has {_shown(truth.frame)}, the run "
            f"has {_shown(found.frames)}"
        )
    events = metrics.MOTAccumulator(auto_id=False)
    pairs = Pairs()
    for frame in frames.tolist():
        costs = _compare(found, truth, rule, frame, pairs)
        ids = truth.identity[truth.at(frame)], found.identity[found.at(frame)]
        events.update(*ids, costs, frameid=frame)
    return {"frames": len(frames), **_summary(metrics, events, truth), **_quantiles(pairs, width)}


def _compare(
    found: Observations, truth: Observations, rule: Rule, frame: int, pairs: Pairs
) -> Floats:
    """Return the cost of each pair of a true and a found object; NaN if it is too large."""
    theirs, ours = truth.at(frame), found.at(frame)
    difference = truth.place[theirs, None] - found.place[None, ours]
    distances: Floats = np.hypot(difference[..., 0], difference[..., 1])
    costs = np.where(distances <= rule.within, distances, np.nan)
    if found.labels is not None and truth.labels is not None:
        identities = truth.identity[theirs], found.identity[ours]
        shares = _mask_overlap((truth.labels(frame), found.labels(frame)), identities)
        best = shares[linear_sum_assignment(-shares)].tolist()
        pairs.overlaps += best + [0.0] * (len(shares) - len(best))
        if rule.kind == "masks":
            costs = np.where(shares >= MIN_IOU, 1 - shares, np.nan)
    if rule.kind == "boxes":
        shares = overlap(truth.box[theirs], found.box[ours])
        costs = np.where(shares >= MIN_IOU, 1 - shares, np.nan)
    rows, columns = linear_sum_assignment(distances)
    pairs.distances += distances[rows, columns].tolist()
    turns = truth.heading[theirs][rows] - found.heading[ours][columns]
    turns = np.abs((turns + 180) % 360 - 180)
    pairs.turns += turns[np.isfinite(turns) & np.isfinite(costs[rows, columns])].tolist()
    return costs


def _mask_overlap(
    labels: tuple[Labels | None, Labels | None], identities: tuple[Any, Any]
) -> Floats:
    """Return the intersection over union of each pair of masks."""
    shares = np.zeros((len(identities[0]), len(identities[1])))
    first, second = labels
    if first is None or second is None or not shares.size:
        return shares
    for i, own in enumerate(identities[0]):
        for j, other in enumerate(identities[1]):
            one, two = first == own, second == other
            both = int((one | two).sum())
            shares[i, j] = (one & two).sum() / both if both else 0.0
    return shares


def _summary(metrics: Any, events: Any, truth: Observations) -> dict[str, Any]:
    names = ("num_objects", "recall", "idf1", "mota", "num_switches", "num_misses")
    values = metrics.metrics.create().compute(
        events, metrics=[*names, "num_false_positives"], return_dataframe=False
    )
    known = truth.identified
    return {
        "objects": int(values["num_objects"]),
        "found": float(values["recall"]),
        "idf1": float(values["idf1"]) if known else None,
        "mota": float(values["mota"]) if known else None,
        "switches": int(values["num_switches"]) if known else None,
        "misses": int(values["num_misses"]),
        "false_positives": int(values["num_false_positives"]),
    }


def _quantiles(pairs: Pairs, width: int) -> dict[str, float | None]:
    median, most = (_quantile(pairs.distances, share) for share in (0.5, 0.9))
    return {
        "median_distance_px": median,
        "p90_distance_px": most,
        "median_distance_width": None if median is None else median / width,
        "p90_distance_width": None if most is None else most / width,
        "median_heading_error_deg": _quantile(pairs.turns, 0.5),
        "p90_heading_error_deg": _quantile(pairs.turns, 0.9),
        "mean_iou": float(np.mean(pairs.overlaps)) if pairs.overlaps else None,
    }


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def _shown(frames: Any) -> str:
    return f"frames {frames.min()} to {frames.max()}" if len(frames) else "none"
