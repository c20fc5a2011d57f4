"""Who is who: crossings, identities after them, objects that come back or are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.locate.tracking.selection import (
    IMPOSSIBLE,
    LINK_REACH,
    SHORT_GAP,
    Ends,
    at_border,
    chained,
    choose_objects,
    in_order,
    pairs_of,
)
from ullayers.locate.tracking.tracker import ALONE, CONFIRMED, Sighting, Sightings, TrackedObject

ENDLESS = 2**31  # frame in which an object appears that does not come back
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
FRAMES_PER_BLOCK = 25  # a portrait is the mean over blocks of this many frames
MIN_BLOCKS = 4  # with fewer, no object can be recognised
SURE = 0.95  # least confidence to call an object recognised or new
LARGEST_NUMBER = 255  # of an object; masks have one byte per pixel
LARGEST_GAIN = 6.9  # a confidence of 0.999: appearances are not known more precisely


@dataclass(frozen=True)
class Encounter:
    """Two objects that cannot be distinguished for a while.

    Attributes:
        first: Number of the first frame among those read.
        last: Number of the last frame.
        objects: Their numbers, from 1.
        confidence: Confidence that each object has the same number before and after, from 0 to 1.
        apart: How clearly they are separated when they are nearest, from 0 to 1.
        nearest: Number of the frame in which they are nearest.
    """

    first: int
    last: int
    objects: tuple[int, int]
    confidence: float
    apart: float
    nearest: int


def find_crossings(objects: Sequence[TrackedObject], pause: int) -> list[Encounter]:
    """List all crossings of the objects.

    Args:
        objects: From `choose_objects`; they are numbered in this order, from 1.
        pause: Frames; objects that separate for a shorter time are in the same crossing.
    """
    owner = {
        int(number): k
        for k, each in enumerate(objects, 1)
        for number in np.unique(each.sightings.column("number"))
    }
    found: list[Encounter] = []
    for k, each in enumerate(objects, 1):
        for other, (times, apart) in _together(each, k, owner).items():
            for rows in np.split(np.arange(len(times)), np.flatnonzero(np.diff(times) > pause) + 1):
                first, last = int(times[rows[0]]), int(times[rows[-1]])
                nearest = rows[apart[rows].argmin()]
                least = float(apart[nearest])
                confidence = 0.5 + 0.5 * least
                pair = k, other
                found.append(Encounter(first, last, pair, confidence, least, int(times[nearest])))
    found += _hidden_together(objects)
    return sorted(found, key=lambda each: (each.nearest, each.objects))


def _together(
    one: TrackedObject, number: int, owner: dict[int, int]
) -> dict[int, tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """Return frames in which an object shares a blob with later ones, and the separation.

    Args:
        one: The object.
        number: Its number.
        owner: Numbers of objects by numbers of tracks.
    """
    company = one.sightings.column("company")
    shared = one.sightings.where(company != ALONE)
    company, times, apart = map(shared.column, ("company", "frame", "apart"))
    groups = [one.sightings.log.companies[i] for i in np.unique(company)]
    others = {owner.get(track, 0) for group in groups for track in group}
    found = {}
    for other in sorted(other for other in others if other > number):
        tracks = {track for track, k in owner.items() if k == other}
        with_it = [i for i in np.unique(company) if tracks & set(one.sightings.log.companies[i])]
        rows = np.isin(company, with_it)
        found[other] = times[rows], apart[rows]
    return found


def _hidden_together(objects: Sequence[TrackedObject]) -> list[Encounter]:
    """List when one of several hidden objects appears: it may be any of them."""
    gaps = [_gaps(each) for each in objects]
    found = []
    for k, other in combinations(range(len(objects)), 2):
        for (start, end), (begin, stop) in product(gaps[k], gaps[other]):
            first, last = max(start, begin), min(end, stop)
            if first < last < ENDLESS:
                found.append(Encounter(first, last, (k + 1, other + 1), 0.5, 0.0, last - 1))
    return found


def _gaps(one: TrackedObject) -> list[tuple[int, int]]:
    """Return the last frame before, and the first after, each time when an object was hidden."""
    frames = one.sightings.column("frame")
    breaks = np.diff(one.sightings.column("number")) != 0
    hidden = np.flatnonzero(breaks & (np.diff(frames) > SHORT_GAP))
    gaps = [(int(frames[i]), int(frames[i + 1])) for i in hidden]
    return [*gaps, (int(frames[-1]), ENDLESS)]


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
    objects: Sequence[TrackedObject], crossings: Sequence[Encounter]
) -> tuple[list[TrackedObject], list[Encounter]]:
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
    objects: Sequence[TrackedObject], crossings: Sequence[Encounter]
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
        crossings: Sequence[Encounter],
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

    def _orders(self, order: Order, crossing: Encounter) -> tuple[Order, Order]:
        """Return the possible identities after a crossing."""
        first, second = crossing.objects[0] - 1, crossing.objects[1] - 1
        exchanged = list(order)
        exchanged[first], exchanged[second] = order[second], order[first]
        return order, tuple(exchanged)

    def _cost(self, n: int, before: Order, after: Order, gallery: Floats) -> float:
        """Return the cost of a swap at a crossing and of the appearances until the next."""
        # Motion behind each other is weak evidence, so it has a least weight.
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
    objects: Sequence[TrackedObject], crossings: Sequence[Encounter], history: tuple[Order, ...]
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


@dataclass(frozen=True)
class Portrait:
    """Appearance of an object in a video.

    Attributes:
        mean: Mean appearance; empty if the object was seen too briefly.
        scatter: Sum of squares of blocks of frames around the mean, row by row.
        blocks: Number of these blocks.
    """

    mean: list[float] = field(default_factory=list)
    scatter: list[float] = field(default_factory=list)
    blocks: int = 0

    @classmethod
    def of(cls, sightings: Sightings, scale: float) -> Portrait:
        """Measure the frames in which an object is alone.

        Args:
            sightings: Sightings of the object.
            scale: Pixels of the video per pixel of these sightings, along a side.
        """
        alone = sightings.where(sightings.column("company") == ALONE)
        blocks = len(alone) // FRAMES_PER_BLOCK
        if blocks < MIN_BLOCKS:
            return cls()
        looks = appearances(alone)[: blocks * FRAMES_PER_BLOCK] + np.log(scale) * SIZES
        means = looks.reshape(blocks, FRAMES_PER_BLOCK, APPEARANCE).mean(1)
        apart = means - means.mean(0)
        return cls(means.mean(0).tolist(), (apart.T @ apart).ravel().tolist(), blocks)

    def __post_init__(self) -> None:
        expected = (APPEARANCE, APPEARANCE**2) if self.mean else (0, 0)
        if (len(self.mean), len(self.scatter)) != expected:
            raise ValueError(f"expected {APPEARANCE} numbers, got {len(self.mean)}")


# Change of each number of an appearance with the logarithm of the scale: colours, area, axes.
SIZES = np.array([0.0] * 6 + [2.0, 1.0, 1.0])


@dataclass(frozen=True)
class Recognised:
    """An object that was seen in an earlier video.

    Attributes:
        object: Its number, in both videos.
        video: Name of the earlier video in which it was first seen.
        confidence: From 0 to 1.
    """

    object: int
    video: str
    confidence: float


@dataclass
class KnownObjects:
    """Objects that can be recognised, from all videos so far.

    Attributes:
        portraits: Portraits by object number.
        videos: Video in which each object was first seen.
    """

    portraits: dict[int, Portrait] = field(default_factory=dict)
    videos: dict[int, str] = field(default_factory=dict)

    def meet(self, portraits: Sequence[Portrait], video: str) -> tuple[list[int], list[Recognised]]:
        """Number the objects of the next video.

        Recognised objects keep their number from earlier videos. Clearly new objects get a number
        that no other object has. Unclear objects get a number that no other object of this video
        has.

        Args:
            portraits: Portraits of the objects in the video.
            video: Its name.

        Returns:
            The number of each object, and the recognised objects.
        """
        if not self.portraits and len(portraits) > 1:
            numbers = list(range(1, len(portraits) + 1))
            self._add(dict(zip(numbers, portraits, strict=True)), video)
            return numbers, []
        known = list(self.portraits)
        chosen, confidence = self._compare(portraits, known)
        recognised: dict[int, int] = {}
        fresh: dict[int, int] = {}
        for row, column in enumerate(chosen):
            if confidence[row] < SURE:
                continue
            if column < len(known):
                recognised[row] = known[column]
            elif len(portraits) > 1:  # a single object is not numbered
                new = max([*known, *fresh.values()]) + 1
                if new <= LARGEST_NUMBER:
                    fresh[row] = new
        self._add({number: portraits[row] for row, number in fresh.items()}, video)
        numbers = _filled(recognised | fresh, len(portraits))
        return numbers, [
            Recognised(number, self.videos[number], round(confidence[row], 3))
            for row, number in recognised.items()
        ]

    def _add(self, portraits: dict[int, Portrait], video: str) -> None:
        known = {number: each for number, each in portraits.items() if each.blocks}
        self.portraits |= known
        self.videos |= dict.fromkeys(known, video)

    def _compare(
        self, portraits: Sequence[Portrait], known: list[int]
    ) -> tuple[list[int], list[float]]:
        """Assign objects to known objects, or to none, at the lowest cost.

        Returns: The column of each object, and the probability that it is right; 0 if the object
        was seen too briefly.
        """
        members = [self.portraits[number] for number in known]
        seen = [row for row, each in enumerate(portraits) if each.blocks]
        columns, confidence = [len(known)] * len(portraits), [0.0] * len(portraits)
        if not seen or not members:
            return columns, confidence
        looks = in_metric_of_w([*members, *(portraits[row] for row in seen)])
        offset = looks[len(members) :, None] - looks[: len(members)]
        new = np.full((len(seen), len(seen)), MOST_COST)
        cost = np.column_stack([np.square(offset).sum(2) / 2, new])
        best, chosen = _assigned(cost)
        for row, (number, column) in enumerate(zip(seen, chosen, strict=True)):
            other = cost.copy()
            other[row, column if column < len(known) else slice(len(known), None)] = IMPOSSIBLE
            gain = min(_assigned(other)[0] - best, LARGEST_GAIN)
            columns[number], confidence[number] = column, float(1 / (1 + np.exp(-gain)))
        return columns, confidence


def in_metric_of_w(portraits: Sequence[Portrait]) -> Floats:
    """Return (portraits, numbers) mean appearances, in a metric that makes W the identity."""
    means = np.array([each.mean for each in portraits])
    count = sum(each.blocks - 1 for each in portraits)
    scatter = sum(np.array(each.scatter) for each in portraits)
    within = np.reshape(scatter, (APPEARANCE, APPEARANCE)) / count
    # With few blocks, only the diagonal of W is known.
    unknown = APPEARANCE / (APPEARANCE + count)
    within = (1 - unknown) * within + unknown * np.diag(np.diag(within))
    looks: Floats = means @ metric_of(within, np.zeros(APPEARANCE)).T
    return looks


def _assigned(cost: Floats) -> tuple[float, list[int]]:
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum()), columns.tolist()


def _filled(numbers: dict[int, int], count: int) -> list[int]:
    """Return the number of each object; objects without one get the smallest free numbers.

    >>> _filled({1: 1, 2: 5}, 4)
    [2, 1, 5, 3]
    """
    free = iter(sorted(set(range(1, count + len(numbers) + 1)) - set(numbers.values())))
    return [numbers[row] if row in numbers else next(free) for row in range(count)]


def find_objects(
    tracked: Sequence[TrackedObject],
    frames: int,
    size: tuple[int, int],
    wanted: int | None = None,
    seen: bool = False,
) -> tuple[list[TrackedObject], int]:
    """Return the tracks that are objects, and the number of objects that move.

    Args:
        tracked: As in `choose_objects`.
        frames: As in `choose_objects`.
        size: As in `choose_objects`.
        wanted: As in `choose_objects`.
        seen: As in `choose_objects`.
    """
    found = choose_objects(tracked, frames, size, seen=seen)
    if is_closed(found, frames, size):
        found = in_order(_joined_where_hidden(found))
    if wanted is None:
        return found, len(found)
    if most_at_once(found, frames) <= wanted < len(found):
        found = in_order(_joined_to(wanted, found))
    if len(found) == wanted:
        return found, wanted
    return choose_objects(tracked, frames, size, wanted), len(found)


def is_closed(objects: Sequence[TrackedObject], frames: int, size: tuple[int, int]) -> bool:
    """Return whether objects mostly vanish and appear inside the frame, not at its border."""
    ends = [Ends.of(each) for each in objects]
    places = [each.start for each in ends if each.start.frame > SHORT_GAP]
    places += [each.end for each in ends if each.last < frames - 1 - SHORT_GAP]
    return 2 * sum(at_border(place, size) for place in places) < len(places)


def most_at_once(objects: Sequence[TrackedObject], frames: int) -> int:
    """Return the largest number of objects at the same time, in at least `CONFIRMED` frames."""
    changes = np.zeros(frames + 1, np.int64)
    for each in objects:
        changes[each.sightings[0].frame] += 1
        changes[each.sightings[-1].frame + 1] -= 1
    present = np.sort(np.cumsum(changes))[::-1]
    return int(present[min(CONFIRMED, frames) - 1])


def _joined_where_hidden(objects: list[TrackedObject]) -> list[TrackedObject]:
    """Join tracks that end where another one starts, if both look the same."""
    ends = [Ends.of(each) for each in objects]
    reach = np.array([LINK_REACH * each.length for each in ends])
    unlike = _unlikeness(objects)
    unlike[(_distances(ends) > reach[:, None]) | (unlike > MOST_COST)] = np.inf
    return chained(objects, pairs_of(unlike))


def _joined_to(wanted: int, objects: list[TrackedObject]) -> list[TrackedObject]:
    """Join tracks until this number is left, if possible; the nearest ends first."""
    distance = _distances([Ends.of(each) for each in objects])
    links = sorted(pairs_of(distance).items(), key=lambda link: float(distance[link]))
    return chained(objects, dict(links[: len(objects) - wanted]))


def _distances(ends: list[Ends]) -> Floats:
    """Return the distance from the end of each track to the start of each later one."""
    last = np.array([(each.end.x, each.end.y) for each in ends]).reshape(-1, 2)
    first = np.array([(each.start.x, each.start.y) for each in ends]).reshape(-1, 2)
    distance: Floats = np.linalg.norm(last[:, None] - first, axis=2)
    until = np.array([each.last for each in ends], np.int64)
    since = np.array([each.start.frame for each in ends], np.int64)
    distance[since <= until[:, None]] = np.inf
    return distance


def _unlikeness(objects: list[TrackedObject]) -> Floats:
    """Return how much objects differ in appearance; infinity if one was seen too briefly."""
    portraits = [Portrait.of(each.sightings, 1.0) for each in objects]
    known = [i for i, each in enumerate(portraits) if each.blocks]
    unlike = np.full((len(objects), len(objects)), np.inf)
    if known:
        looks = in_metric_of_w([portraits[i] for i in known])
        unlike[np.ix_(known, known)] = np.square(looks[:, None] - looks).sum(2) / 2
    return unlike
