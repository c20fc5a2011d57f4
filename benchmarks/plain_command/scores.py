"""Scores of the tracks of a data set, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .truth import CONFIDENT, Floats, Points, Track, Truth, share

HELD_OUT = 32  # free flight is scored on the throws from this one on, as in `ul reproduce pillow`

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
