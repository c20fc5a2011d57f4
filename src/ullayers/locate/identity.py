"""Identities after a crossing, from motion and an appearance learned without labels.

Between two crossings, a track shows one animal. Its appearance must change slowly within such a
stretch and vary over all stretches: the objective of the paper, with stretches as clips. W is
measured between the two halves of a stretch, and distances in its metric tell animals apart.
Identities are the sequence of permutations with the lowest cost, one per crossing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.locate.crossings import Crossing
from ullayers.locate.sightings import ALONE, Sighting, Sightings
from ullayers.locate.tracking import TrackedObject

MIN_STRETCH = 6  # least number of frames to measure an appearance
MIN_STRETCHES = 6  # with fewer, the appearance is not used
RIDGE = 0.1  # of the variance between stretches, added to W
APPEARANCE = 9  # numbers
PRECISION = np.array([0.5] * 6 + [0.02] * 3)  # of an appearance: grey levels, relative sizes
MOST_COST = 12.0  # of the appearance of a stretch, so that one odd stretch cannot decide everything
BEAM = 200
ROUNDS = 4
ALL_ORDERS = 5  # up to this many objects, all initial permutations are tried
# Cost of a swap, by motion: of objects that hide each other, and of objects that are always
# separate.
HIDDEN_COST, APART_COST = 0.5, 8.0
FOLLOWED = 0.25  # least separation that counts when identities are chosen
CLEAR = 0.6  # separation from which motion alone decides
TRUSTS = np.linspace(0, 1, 21)  # possible weights of the appearance

Floats = NDArray[np.float64]
Order = tuple[int, ...]  # identity of each track


@dataclass(frozen=True)
class _Stretch:
    """A track between two crossings.

    Attributes:
        mean: Mean appearance.
        halves: Difference of the appearance of its two halves.
        frames: Number of frames in which it is alone.
    """

    mean: Floats
    halves: Floats
    frames: int


@dataclass(frozen=True)
class _State:
    """A sequence of permutations.

    Attributes:
        cost: Cost of all swaps and appearances.
        order: Identity of each track now.
        previous: The state before the last crossing; None before the first one.
    """

    cost: float
    order: Order
    previous: _State | None = None

    def history(self) -> tuple[Order, ...]:
        """Return the identity of each track before the first crossing, and after each one."""
        orders = []
        state: _State | None = self
        while state is not None:
            orders.append(state.order)
            state = state.previous
        return tuple(reversed(orders))


def resolve(
    objects: Sequence[TrackedObject], crossings: Sequence[Crossing]
) -> tuple[list[TrackedObject], list[Crossing]]:
    """Swap the tracks of objects after crossings if their appearance requires it.

    Args:
        objects: From `choose_objects`.
        crossings: From `find_crossings`.

    Returns:
        The objects, and the crossings with confidences that include the appearance.
    """
    stretches = _stretches(objects, crossings)
    metric = _metric_of_w(stretches)
    if metric is None:
        return list(objects), list(crossings)
    search = _Search(crossings, stretches, metric, len(objects))
    gallery = search.first_gallery()
    for _ in range(ROUNDS):
        history = search.best(gallery)
        gallery = search.gallery(history)
    search.trust = search.measured_trust(history)
    if search.trust < 1:
        history = search.best(gallery)
    names = np.argsort(history[0])  # an object has the number of the track with which it begins
    confidence = search.confidences(history)
    history = tuple(tuple(int(names[i]) for i in order) for order in history)
    found = [
        replace(
            each,
            objects=_pair(history[n + 1][k - 1] + 1 for k in each.objects),
            confidence=confidence[n],
        )
        for n, each in enumerate(crossings)
    ]
    return _exchanged(objects, crossings, history), found


def _pair(numbers: Iterable[int]) -> tuple[int, int]:
    first, second = sorted(numbers)
    return first, second


def _stretches(
    objects: Sequence[TrackedObject], crossings: Sequence[Crossing]
) -> dict[tuple[int, int], _Stretch]:
    """Return the stretches by track and number of the preceding crossing, from 0; -1 for none."""
    found = {}
    for k, each in enumerate(objects):
        alone = each.sightings.where(each.sightings.column("company") == ALONE)
        frames, looks = alone.column("frame"), appearances(alone)
        own = [n for n, crossing in enumerate(crossings) if k + 1 in crossing.objects]
        starts = [-1, *(crossings[n].last for n in own)]
        ends = [*(crossings[n].first for n in own), np.inf]
        for n, start, end in zip([-1, *own], starts, ends, strict=True):
            rows = looks[np.searchsorted(frames, start, "right") : np.searchsorted(frames, end)]
            if len(rows) >= MIN_STRETCH:
                half = len(rows) // 2
                halves = rows[:half].mean(0) - rows[half:].mean(0)
                found[k, n] = _Stretch(np.median(rows, 0), halves, len(rows))
    return found


def appearances(sightings: Sightings) -> Floats:
    """Return (sightings, 9) colours, and the logarithms of area and axes."""
    lengths = np.sqrt(np.linalg.eigvalsh(sightings.column("spread")))
    sizes = np.column_stack([sightings.column("area"), lengths])
    return np.column_stack([sightings.column("colours"), np.log(sizes)])


def appearance(sighting: Sighting) -> Floats:
    """Return the appearance in a single sighting."""
    lengths = np.sqrt(np.linalg.eigvalsh(sighting.spread))
    return np.concatenate([sighting.colours, np.log([sighting.area, *lengths])])


def _metric_of_w(stretches: dict[tuple[int, int], _Stretch]) -> Floats | None:
    """Return a matrix that makes W the identity; None if there are too few stretches."""
    if len(stretches) < MIN_STRETCHES:
        return None
    weights = np.array([each.frames for each in stretches.values()], float)
    weights /= weights.sum()
    halves = np.stack([each.halves for each in stretches.values()])
    means = np.stack([each.mean for each in stretches.values()])
    within = (halves * weights[:, None]).T @ halves / 2
    between = np.cov(means.T, aweights=weights)
    return metric_of(within, np.diag(between))


def metric_of(within: Floats, between: Floats) -> Floats:
    """Return a matrix that makes W the identity.

    Args:
        within: (numbers, numbers) W, the covariance of the appearance while an object is alone.
        between: (numbers,) variance of the appearances of all objects.
    """
    ridge = np.diag(RIDGE * between + np.square(PRECISION))
    values, vectors = np.linalg.eigh(within + ridge)
    metric: Floats = (vectors / np.sqrt(values)).T
    return metric


def exchange_cost(apart: float) -> float:
    """Return the cost of swapping two objects, by how clearly they were separated (0 to 1)."""
    return HIDDEN_COST + (APART_COST - HIDDEN_COST) * apart


def motion_gain(apart: float) -> float:
    """Return the log odds that two objects were not confused, by how clearly they were separated.

    Objects that hide each other are confused as often as not.

    >>> motion_gain(0.0), motion_gain(1.0)
    (0.0, 8.0)
    """
    return APART_COST * apart**2


class _Search:
    """Search for the sequence of permutations with the lowest cost.

    Args:
        crossings: In order of time.
        stretches: From `_stretches`.
        metric: From `_metric_of_w`.
        tracks: Number of tracks, which is also the number of identities.

    Attributes:
        trust: Weight of the appearance, from 0 to 1; see `measured_trust`.
    """

    def __init__(
        self,
        crossings: Sequence[Crossing],
        stretches: dict[tuple[int, int], _Stretch],
        metric: Floats,
        tracks: int,
    ) -> None:
        self.crossings = crossings
        self.stretches = stretches
        self.metric = metric
        self.tracks = tracks
        self.trust = 1.0
        self.means = {key: metric @ each.mean for key, each in stretches.items()}
        self.everyone = np.mean(list(self.means.values()), 0)
        self.usual = float(np.median([each.frames for each in stretches.values()]))

    def first_gallery(self) -> Floats:
        """Return an appearance of each identity, from the longest time when all are separate."""
        last = [(k, -1) for k in range(self.tracks)]
        known = [self._frames(key) for key in last]
        chosen = min(known), sum(known), list(last)
        for n, crossing in enumerate(self.crossings):
            for k in crossing.objects:
                last[k - 1] = k - 1, n
                known[k - 1] = self._frames(last[k - 1])
            chosen = max(chosen, (min(known), sum(known), list(last)))
        rows = [self.means.get(key, self._mean_of_track(key[0])) for key in chosen[2]]
        return np.stack(rows)

    def _frames(self, key: tuple[int, int]) -> int:
        return self.stretches[key].frames if key in self.stretches else 0

    def _mean_of_track(self, track: int) -> Floats:
        own = [mean for (k, _), mean in self.means.items() if k == track]
        mean: Floats = np.mean(own or list(self.means.values()), 0)
        return mean

    def best(self, gallery: Floats) -> tuple[Order, ...]:
        """Return the identity of each track before the first crossing and after each one."""
        states = [self._start(order, gallery) for order in self._first_orders(gallery)]
        for n, crossing in enumerate(self.crossings):
            following: dict[Order, _State] = {}
            for state in states:
                for moved in self._orders(state.order, crossing):
                    cost = state.cost + self._cost(n, state.order, moved, gallery)
                    known = following.get(moved)
                    if known is None or cost < known.cost:
                        following[moved] = _State(cost, moved, state)
            states = sorted(following.values(), key=lambda state: state.cost)[:BEAM]
        return states[0].history()

    def _start(self, order: Order, gallery: Floats) -> _State:
        costs = [self._look((k, -1), order[k], gallery) for k in range(self.tracks)]
        return _State(sum(costs), order)

    def _first_orders(self, gallery: Floats) -> list[Order]:
        if self.tracks <= ALL_ORDERS:
            return list(permutations(range(self.tracks)))
        table = [
            [self._look((k, -1), i, gallery) for i in range(self.tracks)]
            for k in range(self.tracks)
        ]
        best = tuple(int(i) for i in linear_sum_assignment(np.array(table))[1])
        return [best, tuple(range(self.tracks))]

    def _orders(self, order: Order, crossing: Crossing) -> tuple[Order, Order]:
        """Return the possible identities after a crossing."""
        first, second = crossing.objects[0] - 1, crossing.objects[1] - 1
        exchanged = list(order)
        exchanged[first], exchanged[second] = order[second], order[first]
        return order, tuple(exchanged)

    def _cost(self, n: int, before: Order, after: Order, gallery: Floats) -> float:
        """Return the cost of a swap at a crossing and of the appearances until the next."""
        # The motion of objects that hide each other says little, but more than nothing.
        price = exchange_cost(max(self.crossings[n].apart, FOLLOWED))
        return (price if before != after else 0.0) + self._looks(n, after, gallery)

    def _looks(self, n: int, order: Order, gallery: Floats) -> float:
        """Return the cost of the appearances of both objects after a crossing."""
        objects = self.crossings[n].objects
        return sum(self._look((k - 1, n), order[k - 1], gallery) for k in objects)

    def _look(self, key: tuple[int, int], identity: int, gallery: Floats) -> float:
        """Return the cost of assigning a stretch to an identity; 0 if its appearance is unknown."""
        if key not in self.means:
            return 0.0
        certainty = min(1.0, self.stretches[key].frames / self.usual)
        square = float(np.square(self.means[key] - gallery[identity]).sum())
        return self.trust * min(MOST_COST, certainty * square / 2)

    def gallery(self, history: tuple[Order, ...]) -> Floats:
        """Return the mean appearance of each identity, given the result of `best`."""
        return self._averaged(*self._sums(history))

    def _sums(self, history: tuple[Order, ...]) -> tuple[Floats, Floats]:
        """Return the sum of the appearances of each identity, and its number of frames."""
        total = np.zeros((self.tracks, len(self.metric)))
        weight = np.zeros((self.tracks, 1))
        for (k, n), mean in self.means.items():
            identity = history[n + 1][k]
            total[identity] += self.stretches[k, n].frames * mean
            weight[identity] += self.stretches[k, n].frames
        return total, weight

    def _averaged(self, total: Floats, weight: Floats) -> Floats:
        known: Floats = np.where(weight > 0, total / np.maximum(weight, 1), self.everyone)
        return known

    def _gallery_without(
        self, n: int, history: tuple[Order, ...], sums: tuple[Floats, Floats]
    ) -> Floats:
        """Return the mean appearances without the stretches that begin at a crossing."""
        total, weight = sums[0].copy(), sums[1].copy()
        for key in [(k - 1, n) for k in self.crossings[n].objects]:
            if key in self.means:
                identity = history[n + 1][key[0]]
                total[identity] -= self.stretches[key].frames * self.means[key]
                weight[identity] -= self.stretches[key].frames
        return self._averaged(total, weight)

    def measured_trust(self, history: tuple[Order, ...]) -> float:
        """Return how far the appearance can be trusted, measured where motion alone decides.

        W is the variation within a stretch. The appearance of an animal may vary more from one
        stretch to another, and animals may look the same. At crossings of objects that remain
        clearly separate, it is known who is who: the trust is the weight of the appearance with
        which it predicts this best (maximum likelihood), for stretches that are not in the means.
        """
        clear = [n for n, crossing in enumerate(self.crossings) if crossing.apart >= CLEAR]
        sums = self._sums(history)
        gains = np.array([self._gain(n, history, sums) for n in clear])
        likelihood = -np.logaddexp(0, -TRUSTS[:, None] * gains).sum(1)
        return float(TRUSTS[len(TRUSTS) - 1 - likelihood[::-1].argmax()])

    def _gain(self, n: int, history: tuple[Order, ...], sums: tuple[Floats, Floats]) -> float:
        """Return by how much the appearance after a crossing favours the chosen order."""
        gallery = self._gallery_without(n, history, sums)
        kept, exchanged = self._orders(history[n + 1], self.crossings[n])
        return self._looks(n, exchanged, gallery) - self._looks(n, kept, gallery)

    def confidences(self, history: tuple[Order, ...]) -> list[float]:
        """Return the probability of the order after each crossing, among all possible ones."""
        sums = self._sums(history)
        gains = np.array(
            [
                self._gain(n, history, sums) + motion_gain(each.apart)
                for n, each in enumerate(self.crossings)
            ]
        )
        chances: list[float] = (1 / (1 + np.exp(-np.clip(gains, -50, 50)))).tolist()
        return chances


def _exchanged(
    objects: Sequence[TrackedObject], crossings: Sequence[Crossing], history: tuple[Order, ...]
) -> list[TrackedObject]:
    """Return the objects with their sightings swapped where the objects were nearest."""
    parts: list[list[Sightings]] = [[] for _ in objects]
    for k, each in enumerate(objects):
        own = [n for n, crossing in enumerate(crossings) if k + 1 in crossing.objects]
        nearest = np.array([crossings[n].nearest for n in own])
        past = np.searchsorted(nearest, each.sightings.column("frame"))
        identity = np.array([history[n + 1][k] for n in (-1, *own)])[past]
        for number in np.unique(identity):
            parts[number].append(each.sightings.where(identity == number))
    return [
        replace(each, sightings=Sightings.merged(own))
        for each, own in zip(objects, parts, strict=True)
        if own
    ]
