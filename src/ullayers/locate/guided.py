"""The path of an object through positions given by the user, with a still camera."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from ullayers.locate.anchors import Anchors, taught_path
from ullayers.locate.objects import ObjectPath, Part
from ullayers.locate.recording import STILL_SIDE, PreparedWindow

STRETCH = 10_000  # frames whose path is chosen at once: a given position affects earlier frames

Window = tuple[PreparedWindow, Anchors | None]  # parts of the frames, given positions
Choice = list[int | None]


def guided_choices(windows: Iterable[Window]) -> Generator[Choice | None, None, None]:
    """Yield the number of the object's part in each frame, window by window, for `segment`.

    Args:
        windows: All windows, in order.

    Yields:
        Numbers of the parts; None for windows before the stretch with the first given position.
    """
    path: ObjectPath | None = None
    for stretch, given in _stretches(windows):
        frames = [parts for window in stretch for parts in window]
        if path is None and any(given):
            path = taught_path(STILL_SIDE, frames, given)
        if path is None:
            yield from (None for _ in stretch)
            continue
        chosen = path.follow(frames, given)
        for window in stretch:
            yield chosen[: len(window)]
            chosen = chosen[len(window) :]


def _stretches(
    windows: Iterable[Window],
) -> Iterator[tuple[list[list[list[Part]]], list[bool]]]:
    """Yield the parts in all windows of a stretch, and the frames with a given position."""
    stretch: list[list[list[Part]]] = []
    given: list[bool] = []
    for prepared, anchors in windows:
        labelled = prepared.labelled
        if anchors is not None:
            labelled = anchors.choose(labelled, prepared.evidence)
        stretch.append([each.parts for each in labelled])
        given += [False] * len(prepared.small) if anchors is None else anchors.given.tolist()
        if len(given) >= STRETCH:
            yield stretch, given
            stretch, given = [], []
    yield stretch, given
