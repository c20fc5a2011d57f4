"""The state of `LiveObjects` as arrays, for saving and resuming."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.identity import APPEARANCE
from ullayers.locate.live_objects import LiveObjects
from ullayers.locate.live_tracks import LiveTrack
from ullayers.locate.pairs import PAIRS
from ullayers.locate.sightings import Sightings
from ullayers.locate.tracking import TrackedObject

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


def live_state(live: LiveObjects) -> Arrays:
    """Return the complete state."""
    tracker, scene = live.tracker, live.scene
    return {
        "backdrop": scene.backdrop,
        "level": scene.level,
        "vacated": scene.vacated,
        "scene": np.array([scene.count, scene.bands, scene.threshold]),
        "counts": np.array([tracker.count, tracker.frame, live.names, live.main]),
        "tracked": _table(tracker.active),
        "tracks": _table(list(live.tracks.values())),
        "lost": _table(live.lost),
        "pair_tracks": tracker.pairs.tracks,
        "pairs": np.stack([getattr(tracker.pairs, name) for name in PAIRS]),
        "gallery_names": np.array(list(live.identity.gallery), np.int64),
        "gallery": _stacked(list(live.identity.gallery.values())),
        "within": np.append(live.identity.within.ravel(), live.identity.count),
        "areas": np.array([area for areas in live.areas for area in areas], float),
        "area_counts": np.array([len(areas) for areas in live.areas], np.int64),
        "masses": np.array(live.masses),
    }


def restore(live: LiveObjects, arrays: Arrays) -> None:
    """Continue from a `live_state`.

    Raises:
        KeyError: An array is missing.
        ValueError: An array has an unexpected shape.
    """
    tracker, scene = live.tracker, live.scene
    backdrop, level, vacated = (arrays[name] for name in ("backdrop", "level", "vacated"))
    if backdrop.shape != (*level.shape, 3) or vacated.shape != level.shape:
        raise ValueError(f"expected a scene of one size, got {backdrop.shape} and {level.shape}")
    count, bands, threshold = arrays["scene"].tolist()
    nowhere = TrackedObject(0, np.zeros(2), np.zeros((2, 2)), 0.0, Sightings(tracker.log))
    tracked = _read(nowhere, arrays["tracked"])
    tracks, lost = (_read(LiveTrack(), arrays[name]) for name in ("tracks", "lost"))
    if [one.number for one in tracked] != [track.track for track in tracks]:
        raise ValueError("expected the same tracks in both tables")
    ends = np.cumsum(arrays["area_counts"])[:-1]
    areas = [part.tolist() for part in np.split(arrays["areas"], ends)]
    pairs = arrays["pairs"]
    if pairs.shape != (len(PAIRS), *2 * arrays["pair_tracks"].shape):
        raise ValueError(f"expected a table of pairs of tracks, got {pairs.shape}")
    tracker.count, tracker.frame, live.names, live.main = arrays["counts"].astype(int).tolist()
    scene.backdrop = backdrop.copy()
    scene.level = level.copy()
    scene.vacated = vacated.copy()
    scene.count = int(count)
    scene.bands = bool(bands)
    scene.threshold = threshold
    tracker.active = tracked
    live.lost = lost
    live.tracks = {track.track: track for track in tracks}
    tracker.pairs.tracks = arrays["pair_tracks"].copy()
    for name, values in zip(PAIRS, pairs, strict=True):
        setattr(tracker.pairs, name, values.copy())
    names = arrays["gallery_names"].tolist()
    live.identity.gallery = dict(zip(names, arrays["gallery"].copy(), strict=True))
    live.identity.within = arrays["within"][:-1].reshape(APPEARANCE, APPEARANCE).copy()
    live.identity.count = int(arrays["within"][-1])
    live.areas.extend(areas)
    live.masses.extend(arrays["masses"].tolist())


def _stacked(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.reshape(rows, (len(rows), APPEARANCE + 1)).astype(float)


def _table(records: Sequence[Any]) -> NDArray[np.float64]:
    """Return (records, numbers) all numbers of dataclasses."""
    return np.array([list(_numbers(record)) for record in records], float)


def _numbers(record: Any) -> Iterator[float]:
    for value in _values(record):
        if is_dataclass(value):
            yield from _numbers(value)
        else:
            yield from np.ravel(value).tolist()


def _values(record: Any) -> list[Any]:
    """Return the fields of a dataclass, without sightings, which are not saved."""
    values = [getattr(record, each.name) for each in fields(record)]
    return [value for value in values if not isinstance(value, Sightings)]


def _read(example: T, table: NDArray[np.float64]) -> list[T]:
    """Return the dataclasses of a table, with the shapes of an example."""
    width = len(list(_numbers(example)))
    if len(table) and table.shape[1:] != (width,):
        raise ValueError(f"expected {width} numbers in each row, got {table.shape[1:]}")
    return [_rebuilt(example, iter(row.tolist())) for row in table]


def _rebuilt(example: T, numbers: Iterator[float]) -> T:
    content: dict[str, Any] = {}
    for each in fields(example):  # type: ignore[arg-type]
        value = getattr(example, each.name)
        if isinstance(value, Sightings):
            content[each.name] = value
        elif is_dataclass(value):
            content[each.name] = _rebuilt(value, numbers)
        elif isinstance(value, np.ndarray):
            flat = [next(numbers) for _ in range(value.size)]
            content[each.name] = np.array(flat, value.dtype).reshape(value.shape)
        else:
            content[each.name] = type(value)(next(numbers))
    return type(example)(**content)
