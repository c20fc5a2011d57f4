"""Hand-held cameras, which shake but keep showing the same scene.

Frames are registered to an image of the scene and then processed like those of a still camera, so
that objects at rest are found too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import INLIER, MIN_INLIERS, Floats, Frames, Pixels, optical_flow
from ullayers.locate.moving.segment import Segments, centroids, resized
from ullayers.locate.paths import Anchors, covariance_in_world, in_world
from ullayers.locate.recording.windows import (
    MAX_CHANGE,
    STILL_SIDE,
    MovingRecording,
    StillRecording,
)
from ullayers.locate.scene.background import still_scene
from ullayers.locate.scene.still import correlation, edges
from ullayers.tracks.masks import EDGE

REGISTERED = 0.9  # least share of the sample that shows the scene
MIN_OVERLAP = 0.75  # least share of a frame inside the image of the scene
SAME_DETAIL = 0.4  # correlation of details; lowered by noise and compression, zero for other scenes
STRONG_DETAIL = 1.5  # times the median: stronger details are clipped
DETAIL = 1.5, 8.0  # pixels: smaller details are noise, larger ones are shading
LEAST_STEP = 0.25  # grey levels: smaller changes of details are lost in rounding
ROUNDS = 4  # largest number of registration rounds
GRID_STEP = 4  # pixels between the flow vectors that the registration is fitted to
TEXTURED = 0.7  # quantile of the edges: below it, a surface is too plain to show motion
PRECISE = 0.5  # pixels: a smaller correction needs no further round
MIN_MATCHES = 8  # least number of corners that a frame and the picture have in common
MATCHED = 3.0  # pixels: largest distance between matching corners
PATCH = 15  # pixels of the square that describes a corner
Matrix = NDArray[np.float64]
Number = TypeVar("Number", np.uint8, np.uint16)
Corners = tuple[Floats, NDArray[np.uint8]]  # positions and descriptions


@dataclass
class Registration:
    """Registers frames to a picture.

    Args:
        picture: (height, width, 3) uint8, of the size of the frames.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> wall = cv2.GaussianBlur(rng.integers(0, 255, (120, 160, 3), np.uint8), (0, 0), 2)
        >>> frame = wall[10:110, 20:140]
        >>> found = Registration(wall[5:105, 13:133].copy()).place(frame.copy())
        >>> found[:2, 2].round().tolist()
        [7.0, 5.0]
    """

    picture: Pixels
    grey: Pixels = field(init=False)
    detail: Floats = field(init=False)
    textured: NDArray[np.bool_] = field(init=False)
    points: NDArray[np.intp] = field(init=False)
    corners: Corners = field(init=False)
    scale: Matrix = field(init=False)
    last: Matrix = field(init=False)

    def __post_init__(self) -> None:
        small = resized(self.picture[None], STILL_SIDE)[0]
        self.grey = _grey(small)
        self.detail = _detail(self.grey)
        slope = edges(small.astype(np.float32))
        self.textured = slope >= np.quantile(slope, TEXTURED)
        grid = np.zeros_like(self.textured)
        grid[::GRID_STEP, ::GRID_STEP] = True
        self.points = np.argwhere(grid & self.textured)
        self.corners = _corners(self.grey)
        ratio = small.shape[1] / self.picture.shape[1], small.shape[0] / self.picture.shape[0]
        self.scale = np.diag([*ratio, 1.0])
        self.last = np.eye(3)

    def place(self, frame: Pixels) -> Matrix | None:
        """Return the (3, 3) homography from pixels of a frame to pixels of the picture.

        The search starts at the registration of the last frame.

        Returns:
            The homography, or None if the frame does not show the picture.
        """
        grey = _grey(resized(frame[None], STILL_SIDE)[0])
        found = self._refine(grey, self.last)
        if not self._fits(grey, found):
            found = self._refine(grey, self._matched(grey))
            if not self._fits(grey, found):
                return None
        self.last = found
        return np.linalg.inv(self.scale) @ found @ self.scale

    def lay(self, frames: Frames) -> dict[int, Pixels]:
        """Return the frames that show the picture, by number, warped onto it."""
        places = [self.place(frame) for frame in frames]
        return {
            t: _onto(self.picture, frames[t], place)
            for t, place in enumerate(places)
            if place is not None
        }

    def shows_one_scene(self, frames: dict[int, Pixels], following: dict[int, Pixels]) -> bool:
        """Return whether frames differ from the picture hardly more than from the next frames.

        If the camera travels, near things move relative to far ones, which no registration removes.

        Args:
            frames: From `lay`.
            following: The next frames, also from `lay`.
        """
        both = frames.keys() & following.keys()
        if not both:
            return False
        changes, steps = [], []
        for t in both:
            here, later = (
                _detail(_grey(resized(each[t][None], STILL_SIDE)[0]))
                for each in (frames, following)
            )
            changes.append(np.median(np.abs(here - self.detail)[self.textured]))
            steps.append(np.median(np.abs(here - later)[self.textured]))
        return bool(np.median(changes) <= MAX_CHANGE * max(np.median(steps), LEAST_STEP))

    def _matched(self, grey: Pixels) -> Matrix:
        """Return the registration of a frame from its corners, however far it has moved."""
        points, features = _corners(grey)
        if min(len(points), len(self.corners[0])) < MIN_MATCHES:
            return np.eye(3)
        pairs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(features, self.corners[1])
        if len(pairs) < MIN_MATCHES:
            return np.eye(3)
        here = points[[pair.queryIdx for pair in pairs]]
        there = self.corners[0][[pair.trainIdx for pair in pairs]]
        affine, _ = cv2.estimateAffinePartial2D(here, there, ransacReprojThreshold=MATCHED)
        return np.eye(3) if affine is None else np.vstack([affine, [0, 0, 1]])

    def _refine(self, grey: Pixels, guess: Matrix) -> Matrix:
        """Refine the homography from a frame to the picture with the flow between them."""
        found = guess
        for _ in range(ROUNDS):
            flow = optical_flow(self.grey, _warped(grey, found))
            rows, columns = self.points.T
            here = self.points[:, ::-1].astype(np.float32)
            there = here + flow[rows, columns]
            affine, kept = cv2.estimateAffine2D(here, there, ransacReprojThreshold=INLIER)
            if affine is None or kept.mean() < MIN_INLIERS:
                break
            step = np.vstack([affine, [0, 0, 1]])
            found = np.linalg.inv(step) @ found
            if _largest_step(step, *grey.shape) < PRECISE:
                break
        return found

    def _fits(self, grey: Pixels, matrix: Matrix) -> bool:
        """Return whether a frame shows the same details as the picture where they overlap."""
        inside = _warped(np.ones_like(grey), matrix, cv2.BORDER_CONSTANT) > 0
        if inside.mean() < MIN_OVERLAP:
            return False
        inside &= self.textured
        own, other = self.detail[inside], _detail(_warped(grey, matrix))[inside]
        most = STRONG_DETAIL * float(np.median(np.abs(own)))  # otherwise objects would dominate
        return correlation(own.clip(-most, most), other.clip(-most, most)) > SAME_DETAIL


def _largest_step(matrix: Matrix, height: int, width: int) -> float:
    """Return the largest displacement of a corner of the frame, in pixels."""
    corners = np.array([[[0, 0], [width, 0], [width, height], [0, height]]], np.float64)
    return float(np.abs(cv2.perspectiveTransform(corners, matrix) - corners).max())


def _grey(image: Pixels) -> Pixels:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def _corners(grey: Pixels) -> Corners:
    finder = cv2.ORB.create(edgeThreshold=PATCH // 2, patchSize=PATCH)
    points, features = finder.detectAndCompute(grey, None)
    if not points:
        return np.zeros((0, 2), np.float32), np.zeros((0, 32), np.uint8)
    return np.array([point.pt for point in points], np.float32), np.asarray(features, np.uint8)


def _detail(grey: Pixels) -> Floats:
    """Return an image without noise and shading."""
    fine, coarse = (cv2.GaussianBlur(grey.astype(np.float32), (0, 0), side) for side in DETAIL)
    return np.asarray(fine - coarse, np.float32)


def _warped(image: Pixels, matrix: Matrix, border: int = cv2.BORDER_REPLICATE) -> Pixels:
    height, width = image.shape[:2]
    warped = cv2.warpPerspective(image, matrix, (width, height), borderMode=border)
    return np.asarray(warped, np.uint8)


def _onto(picture: Pixels, frame: Pixels, matrix: Matrix) -> Pixels:
    """Warp a frame onto a picture, which is kept outside the frame."""
    height, width = picture.shape[:2]
    laid = cv2.warpPerspective(
        frame, matrix, (width, height), dst=picture.copy(), borderMode=cv2.BORDER_TRANSPARENT
    )
    return np.asarray(laid, np.uint8)


@dataclass
class HandheldRecording(MovingRecording):
    """Finds objects with a hand-held camera, window by window.

    Args:
        scene: Finds objects in registered frames.
        registration: Registers frames to the backdrop of the scene.

    Attributes:
        views: Homographies from pixels of the scene to those of each frame, one array per window.
    """

    scene: StillRecording
    registration: Registration
    views: list[Matrix] = field(default_factory=list, init=False)

    @classmethod
    def start(cls, sample: Frames, after: Frames) -> HandheldRecording | None:
        """Return the recording if frames spread over it show one scene, otherwise None.

        Args:
            sample: (time, height, width, 3) uint8.
            after: The frames that follow those of the sample.
        """
        picture = sample[len(sample) // 2]
        for _ in range(2):  # the second time to the median of all frames
            registration = Registration(picture)
            laid = registration.lay(sample)
            if len(laid) < REGISTERED * len(sample):
                return None
            picture = np.median(np.stack([*laid.values()]), axis=0).astype(np.uint8)
        following = registration.lay(after)
        if not registration.shows_one_scene(laid, following):
            return None
        frames = np.stack([*laid.values()])
        scene = still_scene(frames)  # without objects at rest
        backdrop = scene.backdrop.round().astype(np.uint8)
        return cls(StillRecording.start(scene, frames), Registration(backdrop))

    def segment(
        self,
        frames: Frames,
        attention: Floats | None = None,
        anchors: Anchors | None = None,
        chosen: list[int | None] | None = None,
    ) -> Segments:
        """Find the object in the next window of frames; see `segment_motion`.

        Nothing is found in frames that do not show the scene. The attention of a network is not
        used, because it is not registered.
        """
        picture = self.registration.picture
        places = [self.registration.place(frame) for frame in frames]
        laid = np.stack(
            [
                picture if place is None else _onto(picture, frame, place)
                for frame, place in zip(frames, places, strict=True)
            ]
        )
        path = np.stack([np.eye(3) if place is None else place for place in places])
        found = self.scene.segment(laid, None, _in_scene(anchors, path, frames), chosen)
        views = np.linalg.inv(path).astype(np.float64)
        self.views.append(views)
        soft = _in_frames(found.soft, views, cv2.INTER_LINEAR)
        owners = None
        if found.owners is not None:
            owners = _in_frames(found.owners, views, cv2.INTER_NEAREST)
        cores = None if found.cores is None else covariance_in_world(found.cores, views)
        positions = centroids(soft >= EDGE)
        return replace(found, soft=soft, positions=positions, owners=owners, cores=cores)


def _in_frames(masks: NDArray[Number], views: Matrix, interpolation: int) -> NDArray[Number]:
    """Warp masks of the scene to the frames; pixels outside the scene are 0."""
    size = masks.shape[:0:-1]
    warped = np.empty_like(masks)
    for mask, view, place in zip(masks, views, warped, strict=True):
        cv2.warpPerspective(mask, view, size, dst=place, flags=interpolation)
    return warped


def _in_scene(anchors: Anchors | None, path: Matrix, frames: Frames) -> Anchors | None:
    """Convert given positions to coordinates of the scene."""
    if anchors is None:
        return None
    size = np.array(frames.shape[2:0:-1])
    return replace(anchors, places=in_world(anchors.places * size, path) / size)
