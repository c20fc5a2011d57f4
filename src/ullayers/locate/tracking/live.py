"""Several objects while frames arrive: scene, tracks, identities, saved state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.locate.flow import Floats, Pixels
from ullayers.locate.moving.segment import FITTING, still_threshold
from ullayers.locate.paths import RunningObjective
from ullayers.locate.scene.background import (
    BANDS,
    MEDIAN_DEVIATION,
    NOISE_BLUR,
    RESTING_FRAMES,
    RESTING_PIXELS,
)
from ullayers.locate.scene.still import (
    ENERGY_BLUR,
    MEAN,
    MIN_STILL_EVIDENCE,
    NOISE_FLOOR,
    StillScene,
    edges,
)
from ullayers.locate.tracking.blobs import LEAST_MASS, find_blobs, outline_all, typical_area
from ullayers.locate.tracking.identity import (
    APPEARANCE,
    MIN_STRETCHES,
    MOST_COST,
    appearance,
    exchange_cost,
    metric_of,
)
from ullayers.locate.tracking.selection import (
    LARGEST_J,
    RESIDENT,
    RESIDENT_J,
    RESIDENT_SHARE,
    SHORT_GAP,
    at_border,
    link_cost,
    pairs_of,
)
from ullayers.locate.tracking.tracker import (
    CONFIRMED,
    PAIRS,
    Pairs,
    Sighting,
    Sightings,
    TrackedObject,
    Tracker,
)

RATE = 0.02  # rate at which the scene follows the frames
OUTLIER = 3.0  # times the noise: a larger difference counts as this much
FADING = 0.5  # grey levels per frame at which something that stays becomes part of the scene,
HOLD = 64.0  # and this many times slower, if it is an object
MARGIN = np.ones((5, 5), np.uint8)  # pixels around an object that do not change the scene
OUTLINE = np.ones((3, 3), np.uint8)
RESTING_EDGES = 1.5  # edges of the scene are this many times stronger where an object has left
BORDER = 6  # pixels around something within which its edges are computed
CHECK_INTERVAL = 8  # frames between two updates of the threshold
THRESHOLD_RATE = 0.1
VACATED_INTERVAL = 4  # frames between two checks for objects that have left, if all are known
CHANGED = 0.5  # share of the frame: if more stands out, the scene has changed
Mask = NDArray[np.bool_]
SPEED_RATE = 0.1
TRAIL_RATE = 0.04
MOVING = 0.5  # of its extent: least distance of a moving object from its trail
Doubles = NDArray[np.float64]
FRAMES_PER_APPEARANCE = 12  # an appearance is averaged over this many frames
GALLERY_RATE = 0.02  # least rate at which the appearance of an object follows its blocks
RECENT = 64  # frames over which the size of a typical object is measured
MOST_LOST = 64  # objects that are remembered after they were lost
MOST_TRACKS = 2**15
MOST_ENTERED = 1  # objects that enter the frame of an arena: the experimenter
# Shortest and longest wait before a track beside residents is a new object, in units of `patience`.
NEWCOMER_WAIT = 2, 10
Labels = NDArray[np.int32]
Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


class ComparedFrame(NamedTuple):
    """A frame compared with the scene.

    Attributes:
        scene: The scene before this frame.
        gain: Gain of the light.
        offset: (height, width, 3) difference from the scene, without light changes.
        difference: (height, width) length of the offset.
        evidence: (height, width) the same in units of the noise.
    """

    scene: StillScene
    gain: Floats
    offset: Floats
    difference: Floats
    evidence: Floats


class LiveScene:
    """The scene of a still camera without moving objects, from the frames so far.

    Something that stays becomes part of the scene, an object only after a long time. When it then
    leaves, the scene behind it is learned within a few frames.

    Attributes:
        count: Number of frames since the scene changed.
        backdrop: (height, width, 3) the scene.
        level: (height, width) usual difference of a frame from the scene.
        vacated: (height, width) number of frames for which an object seems to have left.
        bands: Whether each row has its own gain.
        threshold: Evidence above which a pixel belongs to something.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scene, nothing = LiveScene(), np.zeros((24, 32), bool)
        >>> for frame in rng.normal(100, 4, (20, 24, 32, 3)).astype(np.uint8):
        ...     look = scene.look(frame)
        ...     scene.update(look, nothing, nothing)
        >>> frame[10:14, 10:14] = 180
        >>> bool((scene.look(frame).evidence > scene.threshold)[10:14, 10:14].all())
        True
    """

    def __init__(self) -> None:
        self.count = 0
        self.backdrop = np.zeros((0, 0, 3), np.float32)
        self.level = np.zeros((0, 0), np.float32)
        self.vacated = np.zeros((0, 0), np.uint8)
        self.bands = False
        self.threshold = MIN_STILL_EVIDENCE

    def look(self, frame: Pixels) -> ComparedFrame:
        """Compare a frame (height, width, 3) with the scene so far."""
        if self.count == 0 or frame.shape != self.backdrop.shape:
            self._start(frame)
        noise = cv2.GaussianBlur(self.level, (0, 0), NOISE_BLUR) / MEDIAN_DEVIATION
        scene = StillScene(self.backdrop, np.maximum(noise, NOISE_FLOOR), self.bands)
        gain = scene.gain(frame)
        offset = np.asarray(frame / gain - self.backdrop, np.float32)
        difference = np.sqrt(np.asarray(cv2.transform(offset * offset, MEAN), np.float32))
        if self.count == 1:  # the noise is not known yet
            self.level[:] = np.median(difference)
            noise = np.maximum(self.level / MEDIAN_DEVIATION, NOISE_FLOOR)
            scene = StillScene(self.backdrop, noise, self.bands)
        squares = cv2.GaussianBlur(np.square(difference / scene.noise), (0, 0), ENERGY_BLUR)
        look = ComparedFrame(
            scene, gain, offset, difference, np.sqrt(np.asarray(squares, np.float32))
        )
        if self.count % CHECK_INTERVAL == 1:
            self._adjust(frame, look)
        return look

    def fits(self, frame: Pixels) -> bool:
        """Return whether a frame shows the scene so far, regardless of moving objects."""
        if self.count == 0 or frame.shape != self.backdrop.shape:
            return False
        noise = np.maximum(self.level / MEDIAN_DEVIATION, NOISE_FLOOR)
        scene = StillScene(self.backdrop, noise, self.bands)
        return bool(np.median(scene.evidence(frame)[::2, ::2]) < FITTING)

    def _start(self, frame: Pixels) -> None:
        self.count = 0
        self.backdrop = frame.astype(np.float32)
        self.level = np.zeros(frame.shape[:2], np.float32)
        self.vacated = np.zeros(frame.shape[:2], np.uint8)

    def _adjust(self, frame: Pixels, look: ComparedFrame) -> None:
        """Adjust the threshold to the evidence, and the gain to the kind of light."""
        wanted = still_threshold(look.evidence[::2, ::2])
        rate = max(CHECK_INTERVAL / (CHECK_INTERVAL + self.count), THRESHOLD_RATE)
        self.threshold += rate * (wanted - self.threshold)
        plain, banded = (
            np.median(StillScene(self.backdrop, self.level, bands).difference(frame)[::2, ::2])
            for bands in (False, True)
        )
        self.bands = bool(banded < BANDS * plain)

    def update(self, look: ComparedFrame, things: Mask, held: Mask) -> None:
        """Update the scene with a frame.

        Args:
            look: The frame, from `look`.
            things: (height, width) pixels that stand out.
            held: Those of them that belong to objects.
        """
        if things.mean() > CHANGED:
            self.count = 0
            return
        self.count += 1
        rate = max(1 / (self.count + 1), RATE)
        near = cv2.dilate(things.astype(np.uint8), MARGIN) > 0
        kept = cv2.dilate(held.astype(np.uint8), MARGIN) > 0
        most = rate * OUTLIER * look.scene.noise
        most = np.where(near, np.float32(FADING), most)
        most = np.where(kept, np.float32(FADING / HOLD), most)[..., None]
        self.backdrop = self.backdrop + np.clip(rate * look.offset, -most, most)
        change = np.minimum(look.difference, OUTLIER * look.scene.noise) - self.level
        self.level = self.level + np.where(near, 0, rate * change).astype(np.float32)
        if self.count % VACATED_INTERVAL == 0 or (things & ~held).any():
            self._forget_vacated(look, things)

    def _forget_vacated(self, look: ComparedFrame, things: Mask) -> None:
        """Replace the scene where an outline has edges in the scene but not in the frame."""
        if not things.any():
            self.vacated[:] = 0
            return
        frame = look.scene.backdrop + look.offset
        images = edges(look.scene.backdrop), edges(frame)
        # An object that moves by less than its length vacates a place next to itself. One of the
        # two is brighter than the scene, the other one darker.
        brighter = look.offset.sum(2) > 0
        left = _vacated(things & brighter, *images) | _vacated(things & ~brighter, *images)
        self.vacated = np.where(left, self.vacated + 1, 0).astype(np.uint8)
        behind = self.vacated >= RESTING_FRAMES
        if behind.any():
            self.backdrop = np.where(behind[..., None], frame, self.backdrop)
            self.vacated[behind] = 0


def is_in_front(look: ComparedFrame, thing: Mask) -> bool:
    """Return whether something is in front of the scene: its outline is an edge of the frame only.

    This is not the case for the place of an object that has left, for the part of an object that
    has moved by less than its length, or for a change of light.

    Args:
        look: The frame, compared with the scene.
        thing: (height, width) its pixels.
    """
    left, top, width, height = cv2.boundingRect(thing.view(np.uint8))
    around = tuple(
        slice(max(0, start - BORDER), start + extent + BORDER)
        for start, extent in ((top, height), (left, width))
    )
    mask = thing[around].astype(np.uint8)
    backdrop = look.scene.backdrop[around]
    outline = (cv2.dilate(mask, OUTLINE) > 0) & (cv2.erode(mask, OUTLINE, borderValue=0) == 0)
    scene, frame = (
        float(edges(image)[outline].sum()) for image in (backdrop, backdrop + look.offset[around])
    )
    return frame > RESTING_EDGES * scene


def _vacated(things: Mask, in_scene: Floats, in_frame: Floats) -> Mask:
    """Return the regions, and the pixels around them, whose outline is an edge of the scene.

    Args:
        things: (height, width) mask of regions that stand out.
        in_scene: (height, width) strength of the edges of the scene.
        in_frame: Strength of the edges of the frame.
    """
    mask = things.astype(np.uint8)
    count, labels = cv2.connectedComponents(mask, connectivity=8)
    inside = cv2.dilate(labels.astype(np.float32), OUTLINE).astype(np.int32)
    outline = (inside > 0) & (cv2.erode(mask, OUTLINE, borderValue=0) == 0)
    number = inside[outline]
    scene, frame = (np.bincount(number, image[outline], count) for image in (in_scene, in_frame))
    large = np.bincount(labels.ravel(), minlength=count) >= RESTING_PIXELS
    left: Mask = (large & (scene > RESTING_EDGES * frame))[inside]
    return left & (inside > 0)


@dataclass(frozen=True)
class LiveObject:
    """An object in the latest frame.

    Attributes:
        number: Its number, from 1.
        x: Position in 0..1, from the top left corner of the frame.
        y: Position in 0..1.
        confidence: From 0 to 1; 0 if it is not seen in this frame and x, y is its predicted
            position.
        outline: (points, 2) x, y of its outline in 0..1; empty if it is not seen.
    """

    number: int
    x: float
    y: float
    confidence: float
    outline: Doubles


@dataclass
class Place:
    """Position of an object.

    Attributes:
        frame: Number of the frame.
        x: Position in pixels.
        y: Position in pixels.
        box: (4,) left, top, right, bottom in pixels.
    """

    frame: int = 0
    x: float = 0.0
    y: float = 0.0
    box: Doubles = field(default_factory=lambda: np.zeros(4))

    @property
    def extent(self) -> Doubles:
        """Width and height in pixels."""
        return self.box[2:] - self.box[:2]


@dataclass
class RecentAppearance:
    """Appearance of a track since it last shared a blob.

    Attributes:
        total: Sum of the appearances in the current block of frames.
        frames: Number of these frames.
        mean: Mean appearance in the previous blocks.
        blocks: Number of blocks.
        decided: Whether its identity is known.
    """

    total: Doubles = field(default_factory=lambda: np.zeros(APPEARANCE))
    frames: int = 0
    mean: Doubles = field(default_factory=lambda: np.zeros(APPEARANCE))
    blocks: int = 0
    decided: bool = True

    def add(self, appearance: Doubles, block: int) -> Doubles | None:
        """Add a frame; return the mean of the block of frames if it is complete."""
        self.total = self.total + appearance
        self.frames += 1
        if self.frames < block:
            return None
        mean: Doubles = self.total / self.frames
        self.total, self.frames = np.zeros(APPEARANCE), 0
        self.blocks += 1
        return mean

    def start_again(self) -> None:
        """Forget the appearance, because the track shares a blob."""
        self.total, self.frames = np.zeros(APPEARANCE), 0
        self.mean, self.blocks = np.zeros(APPEARANCE), 0
        self.decided = False


@dataclass
class LiveTrack:
    """Memory of a track.

    Attributes:
        track: Number of the track.
        name: Number of the object; 0 until it is known to be an object.
        seen: Number of frames in which it was seen.
        length: Length of the object in pixels.
        speed: Its usual step from frame to frame, in pixels.
        clarity: Confidence of the latest sighting.
        objective: J of its path.
        trail: Its position, smoothed over time.
        first: First position.
        last: Last position at which it was alone.
        look: Appearance.
    """

    track: int = 0
    name: int = 0
    seen: int = 0
    length: float = 0.0
    speed: float = 0.0
    clarity: float = 0.0
    objective: RunningObjective = field(default_factory=RunningObjective)
    trail: Doubles = field(default_factory=lambda: np.zeros(2))
    first: Place = field(default_factory=Place)
    last: Place = field(default_factory=Place)
    look: RecentAppearance = field(default_factory=RecentAppearance)

    def add(self, one: TrackedObject, sighting: Sighting) -> None:
        """Add its sighting in the latest frame."""
        position = np.array([sighting.x, sighting.y])
        place = Place(sighting.frame, sighting.x, sighting.y, sighting.box)
        if self.seen == 0:
            self.first = self.last = place
            self.trail = position
        else:
            self.trail = self.trail + TRAIL_RATE * (position - self.trail)
            step = float(np.linalg.norm(position - self.objective.last))
            self.speed += SPEED_RATE * (step - self.speed)
        if not sighting.company:
            self.last = place
        self.seen += 1
        self.length = one.length
        self.clarity = sighting.clarity
        self.objective.add(position)

    @property
    def moves(self) -> bool:
        """Whether it has moved lately."""
        ahead = np.abs(self.objective.last - self.trail)
        return bool((ahead > MOVING * self.last.extent).any())

    @property
    def has_left(self) -> bool:
        """Whether it has left the place where it was first seen."""
        first, last = self.first, self.last
        apart = np.abs(np.array([last.x - first.x, last.y - first.y]))
        return bool((apart > (first.extent + last.extent) / 2).any())


class LiveIdentity:
    """The appearance of each object, and decisions after crossings.

    Attributes:
        gallery: Mean appearance and number of blocks, by object number.
        within: Sum of squares of the change between blocks of a stretch.
        count: Number of such changes.
    """

    def __init__(self) -> None:
        self.gallery: dict[int, Doubles] = {}
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

    def _show(self, name: int, block: Doubles) -> None:
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

    def _metric(self) -> Doubles | None:
        """Return a matrix that makes W the identity; None if there is too little data."""
        if self.count < MIN_STRETCHES or len(self.gallery) < 2:
            return None
        means = np.stack([known[:-1] for known in self.gallery.values()])
        return metric_of(self.within / self.count, np.var(means, axis=0))

    def _assign(self, group: list[LiveTrack], pairs: Pairs, metric: Doubles) -> None:
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


class LiveObjects:
    """Finds and follows all objects seen by a still camera, frame by frame, in constant memory.

    A track is an object if its path so far is slow and varied, that is, if its J is low.

    Args:
        wanted: Number of objects; None to find it.
        patience: Frames after which an unseen object is given up.

    Attributes:
        labels: (height, width) object number of each pixel of the latest frame.
        main: Number of the only object while the camera moves; otherwise 0.

    Example:
        >>> live = LiveObjects(wanted=None, patience=10)
        >>> for t in range(30):  # two squares move to the right, one above the other
        ...     frame = np.full((48, 96, 3), 200, np.uint8)
        ...     frame[8:14, 2 * t : 2 * t + 8] = 20
        ...     frame[30:36, 3 * t : 3 * t + 8] = 60
        ...     found = live.see(frame)
        >>> [(each.number, round(48 * each.y)) for each in found]
        [(1, 33), (2, 11)]
    """

    def __init__(self, wanted: int | None, patience: int) -> None:
        self.wanted = wanted
        self.scene = LiveScene()
        self.tracker = Tracker(patience, keeps=False, largest_part=1.0)
        self.tracks: dict[int, LiveTrack] = {}
        self.lost: list[LiveTrack] = []
        self.names = 0
        self.main = 0
        self.identity = LiveIdentity()
        self.areas: deque[list[float]] = deque(maxlen=RECENT)
        self.masses: deque[float] = deque(maxlen=RECENT)
        self.labels: Labels = np.zeros((0, 0), np.int32)

    def see(self, frame: Pixels) -> tuple[LiveObject, ...]:
        """Find the objects of the next frame.

        Args:
            frame: (height, width, 3) uint8; all frames have the same size.

        Returns:
            The objects, sorted by number.
        """
        self.main = 0
        if self.tracker.count >= MOST_TRACKS:
            self._renumber()
        look = self.scene.look(frame)
        mask = self._outline(frame, look)
        typical = self._typical(mask, look)
        blobs = find_blobs(frame, mask, look.evidence, self.scene.threshold, typical)
        owner = np.zeros(mask.shape, np.uint16)
        self.tracker.step(blobs, owner)
        self._remember()
        self._check_new(look, owner)
        self._name_new()
        self.identity.decide(self.tracks, self.tracker.pairs)
        lookup = np.zeros(self.tracker.count + 1, np.int32)
        for track in self.tracks.values():
            lookup[track.track] = track.name
        self.labels = lookup[owner]
        self.scene.update(look, mask, self.labels > 0)
        return self._shown()

    def see_main(self, values: Sequence[float], mask: NDArray[np.bool_]) -> tuple[LiveObject, ...]:
        """Add a frame of a moving camera, in which only the main object is known.

        All other objects are lost; when the camera is still again, they get new numbers.

        Args:
            values: x, y and confidence of the main object.
            mask: (height, width) mask of the main object.
        """
        if not self.main:
            self.scene = LiveScene()
            self.tracker.active.clear()
            self.tracks.clear()
            self.lost.clear()
            self.names = 1 if self.wanted else self.names + 1
            self.main = self.names
        self.labels = np.where(mask, self.main, 0).astype(np.int32)
        x, y, confidence = values
        return (LiveObject(self.main, x, y, confidence, self._contour(self.main)),)

    def _outline(self, frame: Pixels, look: ComparedFrame) -> NDArray[np.bool_]:
        """Outline everything that stands out."""
        threshold = self.scene.threshold
        least = LEAST_MASS * float(np.median(self.masses)) if self.masses else 0.0
        return outline_all(frame, look.scene, look.gain, look.evidence, threshold, least)

    def _typical(self, mask: NDArray[np.bool_], look: ComparedFrame) -> float:
        """Return the area of a typical object in the latest frames."""
        count, labels = cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)
        inside = labels[mask]
        self.areas.append(np.bincount(inside, minlength=count)[1:].tolist())
        if count > 1:
            self.masses.append(float(np.bincount(inside, look.evidence[mask]).max()))
        recent = [area for areas in self.areas for area in areas]
        return typical_area(recent) if recent else 0.0

    def _remember(self) -> None:
        """Add the latest sighting of each track; move tracks that ended to the lost ones."""
        for one in self.tracker.active:
            sighting = self.tracker.latest.get(one.number)
            if sighting is not None:
                track = self.tracks.setdefault(one.number, LiveTrack(one.number))
                track.add(one, sighting)
                self.identity.add(track, sighting)
        self._join_parts()
        active = {one.number for one in self.tracker.active}
        ended = [track for number, track in self.tracks.items() if number not in active]
        for track in ended:
            del self.tracks[track.track]
        self.lost = (self.lost + [track for track in ended if track.name])[-MOST_LOST:]
        self.identity.forget({track.name for track in [*self.tracks.values(), *self.lost]})
        self.tracker.ended.clear()

    def _renumber(self) -> None:
        """Renumber the tracks from 1, as their numbers are limited; object numbers are kept."""
        order = sorted(self.tracker.active, key=lambda each: each.number)
        pairs = self.tracker.pairs
        pairs.keep(np.array([one.number for one in order], np.int64))
        pairs.tracks = np.arange(1, len(order) + 1)
        renumbered = {}
        for number, one in enumerate(order, 1):
            renumbered[number] = self.tracks[one.number]
            one.number = renumbered[number].track = number
        self.tracks, self.tracker.count = renumbered, len(order)

    def _join_parts(self) -> None:
        """Transfer the number of a track that was part of another track to that track.

        If both have a number, one of them is dropped.
        """
        for kept, lost in self.tracker.joined:
            whole, part = self.tracks[kept], self.tracks[lost]
            if not whole.name:
                whole.name, part.name = part.name, 0

    def _check_new(self, look: ComparedFrame, owner: NDArray[np.uint16]) -> None:
        """Start to count again how long a new track was seen alone if it is not an object now.

        Args:
            look: The frame.
            owner: (height, width) track of each pixel.
        """
        for one in self.tracker.active:
            sighting = self.tracker.latest.get(one.number)
            if sighting is None or sighting.company or self.tracks[one.number].name:
                continue
            if not is_in_front(look, owner == one.number):
                one.alone = 0

    def _name_new(self) -> None:
        """Give numbers to the tracks that have turned out to be objects."""
        named = [track for track in self.tracks.values() if track.name]
        known = {one.number for one in self.tracker.active if one.alone >= CONFIRMED}
        now = self.tracker.frame - 1
        new = [
            track
            for track in self.tracks.values()
            # While it is not alone, it may be part of another object.
            if not track.name and track.track in known and track.last.frame == now
        ]
        new = [track for track in new if self._is_object(track, named)]
        if not new:
            return
        self._name_again(new)
        for track in new:
            if not track.name and (self.wanted is None or self.names < self.wanted):
                self.names += 1
                track.name = self.names

    def _is_object(self, track: LiveTrack, named: list[LiveTrack]) -> bool:
        if not _has_moved(track) or not track.moves:
            return False
        if not named or not self._is_arena():
            return True
        if not self._has_entered(track):
            return True
        if track.objective.value > RESIDENT_J * min(each.objective.value for each in named):
            return False
        # An experimenter who puts an animal into its arena is not another animal.
        shortest, longest = (times * self.tracker.patience for times in NEWCOMER_WAIT)
        wait = np.clip(RESIDENT_SHARE * self.tracker.frame, shortest, longest)
        if any(self._hides(each) for each in self.lost):  # which it may be
            wait = shortest
        return track.first.frame < shortest or bool(track.seen >= wait)

    def _hides(self, lost: LiveTrack) -> bool:
        """Return whether a lost object was present most of the time and did not leave."""
        is_resident = lost.seen >= RESIDENT * (lost.last.frame + 1)
        return is_resident and not at_border(lost.last, self._size)

    def _is_arena(self) -> bool:
        """Return whether the scene is an arena.

        Most objects so far were present most of the time, and they do not enter the frame.
        """
        known = [*self.tracks.values(), *self.lost]
        entered = [each for each in known if each.name or _has_moved(each)]
        if sum(map(self._has_entered, entered)) > MOST_ENTERED:
            return False
        seen = np.array([each.seen for each in known if each.name])
        return bool(2 * seen[seen >= RESIDENT * self.tracker.frame].sum() >= seen.sum())

    def _has_entered(self, track: LiveTrack) -> bool:
        """Return whether an object appeared at the border of the frame, after the first second."""
        return track.first.frame >= self.tracker.patience and at_border(track.first, self._size)

    @property
    def _size(self) -> tuple[int, int]:
        """(width, height) of the frames."""
        height, width = self.scene.level.shape
        return width, height

    def _name_again(self, new: list[LiveTrack]) -> None:
        """Let new tracks continue lost objects.

        With a known number of objects, they must. An animal that hides in an arena is still there,
        wherever it is, but does not enter the frame.
        """
        closed = self.wanted is not None and self.names >= self.wanted
        arena = self._is_arena()
        cost = np.full((len(new), len(self.lost)), np.inf)
        for i, track in enumerate(new):
            stayed = arena and not self._has_entered(track)
            longest = self.tracker.frame if closed or stayed else SHORT_GAP
            for j, lost in enumerate(self.lost):
                if track.first.frame - lost.last.frame <= longest:
                    ends = lost.last, track.first
                    cost[i, j] = link_cost(*ends, lost.length, lost.speed, self._size)
                    must = closed or (stayed and self._hides(lost))
                    if must and not np.isfinite(cost[i, j]):
                        away = np.hypot(track.first.x - lost.last.x, track.first.y - lost.last.y)
                        cost[i, j] = 1e3 + away
        again = {j: i for i, j in pairs_of(cost).items()}
        for number, row in again.items():
            new[row].name = self.lost[number].name
            new[row].seen += self.lost[number].seen
        self.lost = [each for j, each in enumerate(self.lost) if j not in again]

    def _shown(self) -> tuple[LiveObject, ...]:
        width, height = self._size
        found = []
        for one in self.tracker.active:
            track = self.tracks[one.number]
            if not track.name:
                continue
            x, y = one.expected if one.unseen else one.place
            found.append(
                LiveObject(
                    track.name,
                    float(np.clip(x / width, 0, 1)),
                    float(np.clip(y / height, 0, 1)),
                    0.0 if one.unseen else track.clarity,
                    np.zeros((0, 2)) if one.unseen else self._contour(track.name),
                )
            )
        return tuple(sorted(found, key=lambda each: each.number))

    def _contour(self, name: int) -> Doubles:
        """Return the longest outline of an object in 0..1."""
        mask = (self.labels == name).astype(np.uint8)
        edges, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        if not edges:
            return np.zeros((0, 2))
        longest = max(edges, key=len)[:, 0].astype(float)
        outline: Doubles = (longest + 0.5) / mask.shape[::-1]
        return outline


def _has_moved(track: LiveTrack) -> bool:
    """Return whether the path of a track is that of an object."""
    return track.objective.value < LARGEST_J and track.has_left


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
