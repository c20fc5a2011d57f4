"""Positions of the object given by the user; the path passes through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats
from ullayers.locate.objects import UNATTENDED, Labelled, ObjectPath, Part

NEAR = 0.03  # of the longer side: largest distance of a part from a given position
NO_LABEL = -1  # label of a part that does not stand out; no pixel has it


@dataclass(frozen=True)
class Anchors:
    """The user's input for the frames of a window.

    Attributes:
        places: (time, 2) x and y of the object in 0..1; NaN in frames without a given position.
        nothing: (time,) whether the object is not in the frame.
    """

    places: NDArray[np.float64]
    nothing: NDArray[np.bool_]

    @property
    def given(self) -> NDArray[np.bool_]:
        """(time,) whether the position of the object is given."""
        known: NDArray[np.bool_] = np.isfinite(self.places[:, 0])
        return known

    def choose(self, labelled: list[Labelled], strength: Floats) -> list[Labelled]:
        """Keep only the object in frames with a given position, and no part in empty frames.

        Args:
            labelled: Parts of the frames.
            strength: (time, height, width) strength from which the parts were computed.

        Example:
            >>> from ullayers.locate.objects import label_parts
            >>> strength = np.zeros((2, 10, 30), np.float32)
            >>> strength[:, 2:5, 2:5] = strength[:, 2:8, 20:26] = 1
            >>> labelled = [label_parts(frame, 0.5) for frame in strength]
            >>> anchors = Anchors(np.array([[0.1, 0.3], [np.nan, np.nan]]), np.array([False, True]))
            >>> small, nothing = anchors.choose(labelled, strength)
            >>> [float(part.x) for part in labelled[0].parts], [float(p.x) for p in small.parts]
            ([23.0, 3.5], [3.5])
            >>> nothing.parts
            []
        """
        chosen = list(labelled)
        for t in np.flatnonzero(self.given):
            place = self.places[t] * strength.shape[:0:-1]
            chosen[t] = labelled[t]._replace(parts=[_part_at(labelled[t], strength[t], place)])
        for t in np.flatnonzero(self.nothing):
            chosen[t] = labelled[t]._replace(parts=[])
        return chosen


def _part_at(labelled: Labelled, strength: Floats, place: NDArray[np.float64]) -> Part:
    """Return the part at a position; a part without pixels if nothing stands out there."""
    labels = labelled.labels
    rows, columns = np.nonzero(labels)
    distance = np.hypot(columns + 0.5 - place[0], rows + 0.5 - place[1])
    if not len(rows) or distance.min() > NEAR * max(labels.shape):
        return Part(float(place[0]), float(place[1]), 1.0, NO_LABEL)
    nearest = distance.argmin()
    label = int(labels[rows[nearest], columns[nearest]])
    for part in labelled.parts:
        if part.label == label:
            return part
    own = labels[rows, columns] == label  # not a candidate otherwise, because of its small mass
    weight = strength[rows[own], columns[own]].astype(float)
    x, y = (weight @ (each[own] + 0.5) / weight.sum() for each in (columns, rows))
    return Part(float(x), float(y), UNATTENDED * float(weight.sum()), label)


def taught_path(
    longer_side: float, frames: Sequence[Sequence[Part]], given: Sequence[bool]
) -> ObjectPath:
    """Return a path through given positions; a clear part is as large as the object there.

    Args:
        longer_side: Longer side of the frames in pixels.
        frames: Parts of each frame, from `Anchors.choose`.
        given: Whether the position of the object is given in each frame; at least one must be.
    """
    shown = [parts[0] for parts, known in zip(frames, given, strict=True) if known]
    masses = [part.mass for part in shown if part.label != NO_LABEL]
    largest = [max(part.mass for part in parts) for parts in frames if parts]
    return ObjectPath(longer_side, float(np.median(masses or largest)), taught=True)
