"""Pairs of tracks: their distance, and whether both are parts of one object."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ullayers.locate.sightings import Sighting

PAIRS = ("common", "together", "streak", "farthest", "hidden")
MOSTLY = 0.5  # of the time
LONG = 3  # times the least number of frames

Floats = NDArray[np.float64]


class Pairs:
    """Distance of each pair of tracks since both exist.

    Attributes:
        tracks: (tracks,) numbers of the tracks.
        common: (tracks, tracks) frames in which both were seen.
        together: Frames in which they shared a blob.
        streak: Frames in which they shared a blob without interruption, up to now.
        farthest: Largest distance between them, in pixels.
        hidden: How much one hid the other since the last decision, from 0 to 1, plus 1; 0 if they
            did not meet.
    """

    def __init__(self) -> None:
        self.tracks = np.zeros(0, np.int64)
        self._shared = np.zeros((0, 0), bool)
        self.common, self.together, self.streak, self.farthest, self.hidden = (
            np.zeros((0, 0)) for _ in PAIRS
        )

    def add(self, tracks: NDArray[np.int64], seen: Sequence[Sighting | None]) -> None:
        """Add a frame.

        Args:
            tracks: (tracks,) numbers of all tracks, ascending.
            seen: Their sightings; None for tracks that are not seen.
        """
        self.keep(tracks)
        places = np.array([(np.nan, np.nan) if s is None else (s.x, s.y) for s in seen])
        places = places.reshape(-1, 2)
        apart = np.array([1.0 if s is None else s.apart for s in seen])
        shared = np.zeros((len(tracks), len(tracks)), bool)
        for row, sighting in enumerate(seen):
            if sighting is not None and sighting.company:
                shared[row] = np.isin(tracks, sighting.company)
        self._shared = shared
        away = np.linalg.norm(places[:, None] - places, axis=2)
        self.common += np.isfinite(away)
        self.together += shared
        self.streak = np.where(shared, self.streak + 1, 0)
        self.farthest = np.fmax(self.farthest, away)
        clear = np.minimum(apart[:, None], apart)
        self.hidden = np.maximum(self.hidden, np.where(shared, 2 - clear, 0))

    def parts(
        self, seen: Sequence[Sighting | None], least: int, whole: float
    ) -> list[tuple[int, int]]:
        """Return pairs of tracks that are parts of one object.

        Either they have always been as close as now, in one blob, or they have long shared a blob
        that is not larger than an object.

        Args:
            seen: As in `add`, of the same frame.
            least: Least number of frames in which both were seen.
            whole: Largest area of an object.
        """
        mostly = (self.common >= least) & (self.together > MOSTLY * self.common)
        long = self.streak >= LONG * least
        found = []
        for i, j in np.argwhere(np.triu(self._shared & (mostly | long))).tolist():
            first, second = seen[i], seen[j]
            if first is None or second is None:
                continue
            extent = np.maximum(first.box, second.box)[2:] - np.minimum(first.box, second.box)[:2]
            is_near = mostly[i, j] and self.farthest[i, j] < np.linalg.norm(extent)
            is_alone = len(first.company) == 1
            is_small = long[i, j] and is_alone and first.area + second.area <= whole
            if is_near or is_small:
                found.append((int(self.tracks[i]), int(self.tracks[j])))
        return found

    def keep(self, tracks: NDArray[np.int64]) -> None:
        """Keep only these tracks, some of which may be new."""
        if np.array_equal(tracks, self.tracks):
            return
        before = np.isin(tracks, self.tracks)
        old = np.searchsorted(self.tracks, tracks[before])
        for name in PAIRS:
            grown = np.zeros((len(tracks), len(tracks)))
            grown[np.ix_(before, before)] = getattr(self, name)[np.ix_(old, old)]
            setattr(self, name, grown)
        self.tracks = tracks

    def partners(self, track: int) -> list[int]:
        """Return the tracks that a track has met since the last decision."""
        row = np.searchsorted(self.tracks, track)
        met: list[int] = self.tracks[self.hidden[row] > 0].tolist()
        return met

    def nearest(self, first: int, second: int) -> float:
        """Return how clearly two tracks were separated since the last decision, from 0 to 1."""
        i, j = np.searchsorted(self.tracks, [first, second])
        return float(np.clip(2 - self.hidden[i, j], 0, 1))

    def part(self, first: int, second: int) -> None:
        """Forget that two tracks have met."""
        i, j = np.searchsorted(self.tracks, [first, second])
        self.hidden[i, j] = self.hidden[j, i] = 0
