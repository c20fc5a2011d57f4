"""The path of an object that a person has shown, with a still camera."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from ullayers.locate.anchors import Anchors, taught_path
from ullayers.locate.flow import Floats, Frames
from ullayers.locate.objects import ObjectPath, Part
from ullayers.locate.recording import STILL_SIDE, StillRecording

STRETCH = 10_000  # frames whose path is chosen at once: a given place changes those before it, too

Window = tuple[Frames, Floats, Anchors | None]  # frames, masks of a network, given places
Choice = list[int | None]


def guided_choices(
    recording: StillRecording, windows: Iterable[Window]
) -> Generator[Choice | None, None, None]:
    """Yield which part the object is in each frame, window by window, for `segment`.

    Args:
        recording: The recording; it is not changed.
        windows: All windows, in order.

    Yields:
        Numbers of the parts; None for windows before the stretch with the first given place.
    """
    path: ObjectPath | None = None
    for stretch, given in _stretches(recording, windows):
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
    recording: StillRecording, windows: Iterable[Window]
) -> Iterator[tuple[list[list[list[Part]]], list[bool]]]:
    """Yield the parts in all windows of a stretch, and in which frames the place is given."""
    stretch: list[list[list[Part]]] = []
    given: list[bool] = []
    for frames, attention, anchors in windows:
        stretch.append(recording.parts(frames, attention, anchors))
        given += [False] * len(frames) if anchors is None else anchors.given.tolist()
        if len(given) >= STRETCH:
            yield stretch, given
            stretch, given = [], []
    yield stretch, given
