"""From tracks to identities: label images and crossings.csv."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.learn.results import Answer
from ullayers.learn.several import Several
from ullayers.locate.parallel import in_parallel
from ullayers.output.crossing_table import Crossing, crossing_rows
from ullayers.video.region import Box


def identities(part: Answer, several: Several) -> NDArray[np.uint8]:
    """Return (time, height, width) object number of each pixel; 0 for none.

    Args:
        part: Rows with owners.
        several: All objects of the sequence.
    """
    assert part.owners is not None
    labels = np.zeros(part.owners.shape, np.uint8)

    def fill(frame: int, owners: NDArray[np.uint16], place: NDArray[np.uint8]) -> None:
        left, top, width, height = cv2.boundingRect((owners > 0).view(np.uint8))
        if width:
            box = slice(top, top + height), slice(left, left + width)
            tracks = owners[box]
            place[box] = several.object_of_track(frame, int(tracks.max()))[tracks]

    in_parallel(fill, part.index.tolist(), part.owners, labels)
    return labels


def in_whole_frame(labels: NDArray[np.uint8], box: Box | None) -> NDArray[np.uint8]:
    """Convert label images of a part of the frame to label images of the whole frame.

    >>> in_whole_frame(np.ones((1, 2, 2), np.uint8), (0.5, 0.0, 0.5, 1.0)).tolist()
    [[[0, 0, 1, 1], [0, 0, 1, 1]]]
    """
    if box is None:
        return labels
    count, height, width = labels.shape
    size = max(height, round(height / box[3])), max(width, round(width / box[2]))
    top = min(round(box[1] * size[0]), size[0] - height)
    left = min(round(box[0] * size[1]), size[1] - width)
    whole = np.zeros((count, *size), np.uint8)
    whole[:, top : top + height, left : left + width] = labels
    return whole


def crossings_of(answer: Answer, several: Several) -> list[Crossing]:
    """Return the crossings of a sequence, with times."""
    times = dict(zip(answer.index.tolist(), answer.seconds.tolist(), strict=True))
    return [
        Crossing(
            answer.sequence, c.first, c.last, times[c.first], times[c.last], c.objects, c.confidence
        )
        for c in several.crossings
    ]


def crossing_lines(answer: Answer, several: Several) -> str:
    """Return the rows of crossings.csv of a sequence."""
    return crossing_rows(crossings_of(answer, several))
