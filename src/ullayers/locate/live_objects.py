"""Several objects while frames arrive: outlines, tracks, identities and their number."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.blobs import LEAST_MASS, find_blobs, outline_all, typical_area
from ullayers.locate.flow import Pixels
from ullayers.locate.live_identity import LiveIdentity
from ullayers.locate.live_scene import ComparedFrame, LiveScene, is_in_front
from ullayers.locate.live_tracks import LiveObject, LiveTrack
from ullayers.locate.selection import (
    LARGEST_J,
    RESIDENT,
    RESIDENT_J,
    RESIDENT_SHARE,
    SHORT_GAP,
    at_border,
    link_cost,
    pairs_of,
)
from ullayers.locate.tracking import CONFIRMED, Tracker

RECENT = 64  # frames over which the size of a typical object is measured
MOST_LOST = 64  # objects that are remembered after they were lost
MOST_TRACKS = 2**15
MOST_ENTERED = 1  # objects that enter the frame of an arena: the experimenter
# Shortest and longest wait before a track beside residents is a new object, in units of `patience`.
NEWCOMER_WAIT = 2, 10

Floats = NDArray[np.float64]
Labels = NDArray[np.int32]


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

    def _contour(self, name: int) -> Floats:
        """Return the longest outline of an object in 0..1."""
        mask = (self.labels == name).astype(np.uint8)
        edges, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        if not edges:
            return np.zeros((0, 2))
        longest = max(edges, key=len)[:, 0].astype(float)
        outline: Floats = (longest + 0.5) / mask.shape[::-1]
        return outline


def _has_moved(track: LiveTrack) -> bool:
    """Return whether the path of a track is that of an object."""
    return track.objective.value < LARGEST_J and track.has_left
