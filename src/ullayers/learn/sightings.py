"""Results of `watch`, one for each frame."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ullayers.learn.results import TRACK, Answer, header
from ullayers.locate.live_tracks import LiveObject
from ullayers.video.region import Box, Cut


@dataclass(frozen=True)
class WatchResult:
    """The result for one frame.

    Attributes:
        sequence: Name of the source.
        frame: Number of the frame.
        seconds: Time of the frame.
        columns: Names of `values`: x, y, confidence, or y0, y1, ...
        values: Position and confidence, or the code.
        objective: J of the last step, lower is better; NaN before the first.
        learning: False once J has settled.
        mask: (height, width) uint8 at the size of training frames, 255 on the object; None for a
            code.
        size: (width, height) of the source's frames; None for a code.
        box: Part of the frame that the mask covers; None for all of it.
        objects: All objects, with their outlines, if several are followed; `values` and `mask` are
            then those of the main object. None otherwise.
        labels: (height, width) object number of each pixel in `box`.
        rank: Collapse meter: number of independent directions in which the output varies; NaN
            before the first step.
    """

    sequence: str
    frame: int
    seconds: float
    columns: tuple[str, ...]
    values: tuple[float, ...]
    objective: float
    learning: bool = True
    mask: NDArray[np.uint8] | None = None
    size: tuple[int, int] | None = None
    box: Box | None = None
    objects: tuple[LiveObject, ...] | None = None
    labels: NDArray[np.int32] | None = None
    rank: float = math.nan

    @property
    def answer(self) -> Answer:
        """The result as rows of a table."""
        if self.objects is not None:
            return self._rows_of(self.objects)
        return Answer(
            sequence=self.sequence,
            index=np.array([self.frame]),
            seconds=np.array([self.seconds]),
            columns=self.columns,
            values=np.array([self.values]),
            masks=None if self.mask is None else self.mask[None],
            size=self.size,
            box=self.box,
        )

    def _rows_of(self, objects: tuple[LiveObject, ...]) -> Answer:
        values = [(each.x, each.y, each.confidence) for each in objects]
        return Answer(
            sequence=self.sequence,
            index=np.full(len(objects), self.frame),
            seconds=np.full(len(objects), self.seconds),
            columns=self.columns,
            values=np.reshape(values, (-1, len(TRACK))).astype(float),
            size=self.size,
            objects=np.array([each.number for each in objects], np.int64),
        )

    def placed(self, cut: Cut) -> WatchResult:
        """Return a track in a region of interest as a track in the whole frame."""
        answer = replace(self, objects=None).answer.placed(cut)
        mask = None if answer.masks is None else answer.masks[0]
        placed = replace(self, values=tuple(answer.values[0].tolist()), mask=mask, box=answer.box)
        if self.objects is None or self.labels is None:
            return placed
        labels = self.labels * (cut.inside_at(self.labels.shape) > 0)
        return replace(
            placed, objects=tuple(_placed(each, cut) for each in self.objects), labels=labels
        )

    @property
    def header(self) -> str:
        """The first line of a CSV with these rows."""
        return header(self.answer.table_columns, numbered=self.objects is not None)

    def lines(self) -> str:
        """Return the lines of CSV: one, or one for each of several objects."""
        return self.answer.lines(numbered=self.objects is not None)


def _placed(one: LiveObject, cut: Cut) -> LiveObject:
    [[x, y]] = cut.place(np.array([[one.x, one.y]])).tolist()
    return replace(one, x=x, y=y, outline=cut.place(one.outline))
