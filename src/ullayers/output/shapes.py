"""Speed, heading and size of objects as columns of a table, and their tracks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ullayers.learn.results import Answer
from ullayers.learn.several import Several
from ullayers.output.kinematics import ellipse, oriented, velocity
from ullayers.output.track_table import Track
from ullayers.video.reader import Info


def complete(answer: Answer, info: Info, found: Several | None = None) -> Answer:
    """Return a finished track with all columns of its table.

    Args:
        answer: All rows of the main object, with moments.
        info: Size of the frames.
        found: All objects, if several were tracked.
    """
    size = info.width, info.height
    several = None if found is None else found.rows
    if several is None or several.objects is None:
        number = 1 if found is None else found.number
        objects = None if number == 1 else np.full(len(answer.index), number)
        return replace(answer, size=size, shapes=_shapes(answer, size), objects=objects)
    shapes = np.empty((len(several.index), 5))
    for number in np.unique(several.objects):
        rows = several.objects == number
        shapes[rows] = _shapes(several.rows(rows), size)
    everyone = replace(several, size=size, shapes=shapes, box=answer.box)
    return replace(answer, size=size, shapes=_shapes(answer, size), several=everyone)


def _shapes(answer: Answer, size: tuple[int, int]) -> np.ndarray:
    """Return (time, 5) as in `SHAPE`."""
    assert answer.moments is not None
    x, y = (answer.values[:, :2] * size).T
    length, width, _ = ellipse(answer.moments[:, :3])
    *body, axis = ellipse(answer.moments[:, 4:])
    motion = velocity(x, y, answer.seconds)
    heading = oriented(axis, motion, answer.seconds, *body).round(2) % 360
    return np.stack(
        [np.hypot(*motion.T), heading, length, width, answer.moments[:, 3]],
        axis=1,
    )


def to_tracks(answer: Answer) -> list[Track]:
    """Return the tracks of all objects of a sequence, as `read_tracks` does."""
    tracks = []
    for each in answer.of_objects():
        assert each.size is not None
        assert each.shapes is not None
        number = 1 if each.objects is None else int(each.objects[0])
        x, y, confidence = each.values.T
        x_px, y_px = (each.values[:, :2] * each.size).T
        columns = (each.seconds, x, y, confidence, x_px, y_px, *each.shapes.T)
        tracks.append(Track(each.sequence, number, each.index, *columns))
    return tracks
