"""A whole recording, window by window, with a still or a moving camera."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels, camera_motion, optical_flow
from ullayers.locate.moving.segment import (
    FITTING,
    Segments,
    other_masses,
    part_places,
    reduced_size,
    resized,
    segment_motion,
    still_threshold,
)
from ullayers.locate.paths import (
    Anchors,
    Labelled,
    ObjectPath,
    Part,
    label_parts,
    taught_path,
    track_objective,
)
from ullayers.locate.recording.finder import (
    OVEREXPOSED,
    Looker,
    Notable,
    ObjectFinder,
    SeenFrame,
    least_mass,
)
from ullayers.locate.recording.movers import MoverChoice
from ullayers.locate.scene.background import moving_pixels, still_scene
from ullayers.locate.scene.still import (
    DARK,
    MIN_STILL_EVIDENCE,
    NOISE_FLOOR,
    StillScene,
    common_evidence,
    correlation,
    edges,
    without_common,
)
from ullayers.video import memory
from ullayers.video.parallel import Helper, for_each

STILL_SIDE = 320  # pixels of the longer side at which a still camera's objects are found
MIN_STILL_FRAMES = 150  # a shorter recording may show an object in the same place throughout
PAIR_SIDE = 160  # pixels of the longer side at which pairs of frames are compared
PAIR_BLUR = 1.5  # pixels
MAX_EXPLAINED = 0.7  # share of the change between frames left after removing the camera's motion
MAX_CHANGE = 3.0  # change over the recording, in units of the change from frame to frame
SAME_EDGES = 0.6  # correlation of the edges of two frames of the same scene
SAME_LIGHT = 0.1  # spread of the gain over a frame; larger for the shadow of a cloud, or motion
LEAST_CHANGE = 0.5  # grey levels: smaller changes need no explanation
STILL_PAIRS = 0.7  # least share of pairs of frames in which the camera is still
CLEAR_EDGES = 0.9  # quantile of the edges of a frame; motion is invisible on plain surfaces
# Share of its confidence that a position keeps between two pieces of an object, or on something
# that was never seen to move.
UNSURE = 0.5
TINY = np.float32(1e-30)  # attention: processors take much longer for the smallest numbers
UNCLEAR = 0.75  # an object at 1.5 times the threshold has a confidence of 0.5
STRETCH = 10_000  # frames whose path is chosen at once: a given position affects earlier frames


def find_still_scene(sample: Frames, after: Frames) -> StillScene | None:
    """Return the scene of a recording if its camera is still, otherwise None.

    Args:
        sample: (time, height, width, 3) uint8 frames spread over the recording.
        after: The frames that follow those of the sample.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> wall = cv2.GaussianBlur(rng.integers(0, 255, (60, 160, 3), np.uint8), (0, 0), 1)
        >>> still = np.stack([wall[:, :80]] * 8)
        >>> moving = np.stack([wall[:, 4 * t : 4 * t + 80] for t in range(9)])
        >>> find_still_scene(still, still) is None
        False
        >>> find_still_scene(moving[:-1], moving[1:]) is None
        True
    """
    small, following = resized(sample, STILL_SIDE), resized(after, STILL_SIDE)
    view = still_scene(small)
    before = [view.levelled(frame) for frame in small]
    later = [view.levelled(frame) for frame in following]
    if np.mean([_stands_still(*pair) for pair in zip(before, later, strict=True)]) < STILL_PAIRS:
        return None
    # A hand-held camera moves little from frame to frame, but more over the recording.
    middle = before[len(before) // 2]
    if np.mean([_stands_still(frame, middle) for frame in before]) < STILL_PAIRS:
        return None
    # Like light, a slow pan changes little from frame to frame but adds up over the recording.
    steps = [np.median(cv2.absdiff(*pair)) for pair in zip(before, later, strict=True)]
    changes = [np.median(view.difference(frame)) for frame in small]
    has_changed = np.median(changes) > MAX_CHANGE * max(float(np.median(steps)), NOISE_FLOOR)
    if has_changed and not _is_light(small, view):
        return None
    return still_scene(sample, moving_pixels(sample, after))


def _is_light(frames: Frames, scene: StillScene) -> bool:
    """Return whether frames that are far apart differ only by the brightness of the light.

    Edges are then in the same places, and the whole frame is brighter or darker by the same factor.
    """
    outlines = [edges(frame.astype(np.float32)) for frame in frames]
    pairs = zip(outlines, outlines[len(frames) // 2 :], strict=False)
    same = np.median([correlation(*pair) for pair in pairs])
    spreads = [_spread_of_gain(frame, scene.backdrop) for frame in frames]
    return bool(same > SAME_EDGES and np.median(spreads) < SAME_LIGHT)


def _spread_of_gain(frame: Pixels, backdrop: Floats) -> float:
    """Return the interquartile range of the gain over a frame, relative to its median."""
    before, after = (cv2.blur(image.astype(np.float32), (5, 5)) for image in (backdrop, frame))
    usable = (np.minimum(before, after) > DARK) & (np.maximum(before, after) < OVEREXPOSED)
    if not usable.any():
        return np.inf
    low, middle, high = np.quantile(after[usable] / before[usable], (0.25, 0.5, 0.75))
    return float((high - low) / middle)


def fits(scene: StillScene, frames: Frames) -> bool:
    """Return whether frames show a scene, regardless of moving objects."""
    height, width = scene.noise.shape
    if abs(frames.shape[1] * width - frames.shape[2] * height) > height + width:  # another shape
        return False
    small = resized(frames, STILL_SIDE)
    view = scene.resized(*small.shape[1:3])
    return bool(np.median([np.median(view.evidence(frame)) for frame in small]) < FITTING)


def _stands_still(first: Pixels, second: Pixels) -> bool:
    """Return whether camera motion does not explain the change between two frames."""
    pair = resized(np.stack([first, second]), PAIR_SIDE)
    # Blur first; otherwise warping would reduce noise by smoothing it.
    before, after = (
        cv2.GaussianBlur(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), (0, 0), PAIR_BLUR)
        for frame in pair
    )
    motion = camera_motion(optical_flow(before, after))
    if motion.model == "static":
        return True
    height, width = before.shape
    moved = cv2.warpPerspective(
        before.astype(np.float32), motion.matrix, (width, height), borderMode=cv2.BORDER_REPLICATE
    )
    steps = cv2.Sobel(after, cv2.CV_32F, 1, 0), cv2.Sobel(after, cv2.CV_32F, 0, 1)
    slope = cv2.magnitude(*steps)
    clear = slope >= np.quantile(slope, CLEAR_EDGES)
    change, explained = (
        np.median(np.abs(image.astype(np.float32) - after)[clear]) for image in (before, moved)
    )
    return bool(change <= LEAST_CHANGE or explained > MAX_EXPLAINED * change)


class PreparedWindow(NamedTuple):
    """What stands out in the frames of a window.

    Attributes:
        small: (time, rows, columns, 3) frames at a smaller size.
        evidence: (time, rows, columns) difference from the scene, in units of the noise.
        notable: What stands out in each frame.
    """

    small: Frames
    evidence: Floats
    notable: list[Notable]

    @property
    def labelled(self) -> list[Labelled]:
        """Parts of each frame."""
        return [each.labelled for each in self.notable]


@dataclass
class StillRecording:
    """Finds the main object with a still camera, window by window.

    Args:
        scene: The scene at the size of the frames.
        threshold: Evidence above which a pixel belongs to an object, in units of the noise.
        path: The path of the object so far.
        movers: Whether it has moved, to distinguish it from changes of the scene.
        usual: Usual value of `common_evidence`.
        is_known: Whether the scene was learned from another, longer recording. Anything that
            differs from it is then an object, even if it never moves.

    Attributes:
        finder: Follows all objects, if requested; see `follow_all`.
        helper: A second process that looks at frames, if requested; see `get_help`.
    """

    scene: StillScene
    threshold: float
    path: ObjectPath
    movers: MoverChoice = field(default_factory=MoverChoice)
    usual: float = 1.0
    is_known: bool = False
    view: StillScene = field(init=False)
    finder: ObjectFinder | None = field(default=None, init=False)
    helper: Helper | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        height, width = self.scene.noise.shape
        self.view = self.scene.resized(*reduced_size(height, width, STILL_SIDE))

    @classmethod
    def start(cls, scene: StillScene, sample: Frames) -> StillRecording:
        """Create a recording, with a threshold chosen from frames spread over it."""
        found = cls(scene, MIN_STILL_EVIDENCE, ObjectPath(STILL_SIDE, 1.0))
        small = resized(sample, STILL_SIDE)
        evidence = np.stack([found.view.evidence(frame) for frame in small])
        found.usual = float(np.median([common_evidence(values) for values in evidence]))
        evidence = np.stack([without_common(values, found.usual) for values in evidence])
        found.threshold = still_threshold(evidence)
        parts = [label_parts(values, found.threshold).parts for values in evidence]
        largest = [each[0].mass for each in parts if each]
        found.path.clear = float(np.median(largest)) if largest else 1.0
        return found

    def for_size(self, height: int, width: int) -> StillRecording:
        """Return another recording of the scene, for frames of this size."""
        path = ObjectPath(STILL_SIDE, self.path.clear)
        scene = self.scene.resized(height, width)
        return StillRecording(scene, self.threshold, path, usual=self.usual, is_known=True)

    def follow_all(self, patience: int) -> None:
        """From now on, also follow all other objects.

        Args:
            patience: Frames after which an unseen object is given up.
        """
        self.finder = ObjectFinder(self.threshold, patience)

    @property
    def looker(self) -> Looker:
        """Looks at single frames."""
        least = least_mass(self.path.clear, self.threshold)
        follows_all = self.finder is not None
        return Looker(self.scene, self.view, self.threshold, self.usual, least, follows_all)

    @contextmanager
    def with_help(self) -> Iterator[None]:
        """Look at frames in a second process, too; it takes a second to start.

        Call `follow_all` before.
        """
        self.helper = Helper(self.looker)
        try:
            yield
        finally:
            self.helper.close()
            self.helper = None

    def prepare(
        self, frames: Frames, attention: Floats | None = None, here: bool = True
    ) -> PreparedWindow:
        """Return what stands out in a window of frames, whatever was found before.

        Args:
            frames: As in `segment_motion`.
            attention: As in `segment_motion`.
            here: Whether this process takes part in it, if there is a second one.
        """
        small = resized(frames, STILL_SIDE)
        evidence = memory.empty(small.shape[:3], np.float32)
        labels = memory.empty(small.shape[:3], np.int32)
        masks = repeat(None) if attention is None else np.where(attention < TINY, 0, attention)
        arguments = small, masks, evidence, labels
        notable = for_each(self.looker, "stand_out", *arguments, helper=self.helper, here=here)
        return PreparedWindow(small, evidence, notable)

    def segment(
        self,
        frames: Frames,
        attention: Floats | None = None,
        anchors: Anchors | None = None,
        chosen: list[int | None] | None = None,
        prepared: PreparedWindow | None = None,
    ) -> Segments:
        """Find the object in the next window of frames; see `segment_motion`.

        Args:
            frames: As in `segment_motion`.
            attention: As in `segment_motion`.
            anchors: As in `segment_motion`.
            chosen: Number of the object's part in each frame, after `anchors`; None to find it.
            prepared: From `prepare`, if it was called before.
        """
        prepared = prepared or self.prepare(frames, attention)
        small, evidence, notable = prepared
        labelled = prepared.labelled
        if anchors is not None:
            labelled = anchors.choose(labelled, evidence)
        moved = np.ones(len(frames), bool)
        if chosen is None:
            chosen, moved = self.movers.follow(self.path, labelled)
            moved |= self.is_known
        notable = [n._replace(labelled=each) for n, each in zip(notable, labelled, strict=True)]
        typical = repeat(None if self.finder is None else self.finder.typical)
        arguments = frames, small, notable, chosen, typical
        looks: list[SeenFrame] = for_each(self.looker, "look", *arguments, helper=self.helper)
        soft = memory.zeros(frames.shape[:3], np.uint8)
        for mask, look in zip(soft, looks, strict=True):
            if look.outlined is not None:
                mask[look.outlined.box] = look.outlined.soft
        objective = track_objective(part_places(labelled, chosen))
        others = other_masses(labelled, chosen)
        owners = None
        if self.finder is not None:
            owners = self.finder.follow(frames, looks, evidence)
        confidence = clarity_of(np.array([look.peak for look in looks], np.float32), self.threshold)
        confidence[[look.between for look in looks]] *= UNSURE
        confidence[~moved | [look.lit for look in looks]] *= UNSURE
        places, cores = (np.stack(each) for each in list(zip(*looks, strict=True))[:2])
        return Segments(soft, places, confidence, others, objective, owners, cores)


def clarity_of(peak: Floats, threshold: float) -> NDArray[np.float64]:
    """Return how far the peak evidence of an object exceeds the threshold, from 0 to 1."""
    clear = 1 - UNCLEAR * threshold / np.maximum(peak, 1e-9)
    found: NDArray[np.float64] = np.where(peak > 0, np.clip(clear, 0, 1), 0).astype(float)
    return found


class MovingRecording:
    """Finds the main object with a moving camera or in short clips, window by window."""

    def segment(
        self,
        frames: Frames,
        attention: Floats | None = None,
        anchors: Anchors | None = None,
        chosen: list[int | None] | None = None,
    ) -> Segments:
        """Find the object in the next window of frames; see `segment_motion`.

        Windows are independent, so `chosen` is not used. Nothing is found in a single frame, which
        shows no motion.
        """
        if len(frames) > 1:
            return segment_motion(frames, attention, anchors=anchors)
        nothing = np.zeros(len(frames))
        places = np.full((len(frames), 2), np.nan)
        return Segments(np.zeros(frames.shape[:3], np.uint8), places, nothing, nothing, np.nan)


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
