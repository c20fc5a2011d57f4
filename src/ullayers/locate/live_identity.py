"""Identities after a crossing, while frames arrive, from the appearance so far.

As in `identity`, the appearance of an animal must change slowly while it is alone. W is measured
between blocks of frames of such a stretch, and distances in its metric tell animals apart. A
crossing is decided one block of frames after its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.locate.identity import (
    APPEARANCE,
    MIN_STRETCHES,
    MOST_COST,
    appearance,
    exchange_cost,
    metric_of,
)
from ullayers.locate.live_tracks import LiveTrack
from ullayers.locate.pairs import Pairs
from ullayers.locate.sightings import Sighting

FRAMES_PER_APPEARANCE = 12  # an appearance is averaged over this many frames
GALLERY_RATE = 0.02  # least rate at which the appearance of an object follows its blocks

Floats = NDArray[np.float64]


class LiveIdentity:
    """The appearance of each object, and decisions after crossings.

    Attributes:
        gallery: Mean appearance and number of blocks, by object number.
        within: Sum of squares of the change between blocks of a stretch.
        count: Number of such changes.
    """

    def __init__(self) -> None:
        self.gallery: dict[int, Floats] = {}
        self.within = np.zeros((APPEARANCE, APPEARANCE))
        self.count = 0

    def add(self, track: LiveTrack, sighting: Sighting) -> None:
        """Add the latest sighting of a track."""
        look = track.look
        if sighting.company:
            look.start_again()
            return
        block = look.add(appearance(sighting), FRAMES_PER_APPEARANCE)
        if block is None:
            return
        if look.blocks > 1:
            change = block - look.mean
            self.within += np.outer(change, change) * (look.blocks - 1) / look.blocks
            self.count += 1
        look.mean = look.mean + (block - look.mean) / look.blocks
        if track.name and look.decided:
            self._show(track.name, block)

    def _show(self, name: int, block: Floats) -> None:
        """Update the appearance of an object with a block of frames."""
        known = self.gallery.get(name, np.zeros(APPEARANCE + 1))
        count = known[-1] + 1
        mean = known[:-1] + (block - known[:-1]) * max(1 / count, GALLERY_RATE)
        self.gallery[name] = np.append(mean, count)

    def decide(self, tracks: dict[int, LiveTrack], pairs: Pairs) -> None:
        """Swap the numbers of objects that have separated, if their appearance requires it.

        Args:
            tracks: Tracks by number.
            pairs: Pairs that have met since the last decision.
        """
        metric = None
        for number in list(tracks):
            first = tracks[number]
            if first.look.decided or not first.look.blocks:
                continue
            met = [tracks[other] for other in pairs.partners(number) if other in tracks]
            if any(not each.look.blocks for each in met):
                continue  # they may still be together
            group = [each for each in (first, *met) if each.name]
            if len(group) > 1:
                metric = self._metric() if metric is None else metric
                if metric is not None:
                    self._assign(group, pairs, metric)
            first.look.decided = True
            for each in met:
                pairs.part(number, each.track)

    def _metric(self) -> Floats | None:
        """Return a matrix that makes W the identity; None if there is too little data."""
        if self.count < MIN_STRETCHES or len(self.gallery) < 2:
            return None
        means = np.stack([known[:-1] for known in self.gallery.values()])
        return metric_of(self.within / self.count, np.var(means, axis=0))

    def _assign(self, group: list[LiveTrack], pairs: Pairs, metric: Floats) -> None:
        """Reassign the names of a group to its tracks at the lowest cost."""
        names = [each.name for each in group]
        if any(name not in self.gallery for name in names):
            return
        known = np.stack([metric @ self.gallery[name][:-1] for name in names])
        seen = np.stack([metric @ each.look.mean for each in group])
        square = np.square(seen[:, None] - known).sum(2)
        # The variance of a block around the mean of others, in units of W.
        variance = 1 + 1 / np.array([self.gallery[name][-1] for name in names])
        cost = np.minimum(MOST_COST, square / (2 * variance))
        for i, one in enumerate(group):
            for j, other in enumerate(group):
                if i != j:  # each swap moves two
                    cost[i, j] += exchange_cost(pairs.nearest(one.track, other.track)) / 2
        rows, columns = linear_sum_assignment(cost)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            group[row].name = names[column]

    def forget(self, names: set[int]) -> None:
        """Forget all objects but these."""
        self.gallery = {name: known for name, known in self.gallery.items() if name in names}
