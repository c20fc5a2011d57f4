"""Objects that rest for about half of the time or more: the median shows them, not the scene."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.scene_median import MEDIAN_DEVIATION
from ullayers.locate.still import NOISE_FLOOR, SAME_TEXTURE, StillScene, correlation, edges

RESTING_EVIDENCE = 6.0  # smallest evidence that such an object has left, in units of the noise
RESTING_PIXELS = 9  # smallest area of a difference that is checked
# Largest step of the frame across the outline of such a difference, as a share of the difference.
RESTING_STEP = 1 / 3
# Both sides are compared at these distances from the outline, in pixels; evidence widens it.
STEP_OUT, STEP_IN = 2.0, 5.0
MOST_POINTS = 10_000  # of a long outline, only some points are compared
STEP_BLUR, NORMAL_BLUR = 1.0, 2.0  # pixels; filters of the images and of the outline's normals
RESTING_FRAMES = 3  # smallest number of frames that show the same scene behind the object
WEAK = 1 / 3  # smallest difference of the whole object, as a share of that of its clear part
MOST_GROWTH = 6.0  # largest area of the whole object, as a multiple of that of its clear part
MOST_VISITS = 4  # an object that comes and goes more often is part of the scene
RESTING_SAME = 2.0  # largest difference of two equal regions, in units of the noise
SQUARE = np.ones((3, 3), np.uint8)


def without_resting(scene: StillScene, levelled: Frames) -> StillScene:
    """Remove objects that rest for about half of the time or more.

    Where such an object has left, frames differ from the backdrop, but it is the backdrop that
    changes across the outline of the difference, not the frame. There, the frame shows the scene.
    """
    backdrop, noise = scene.backdrop.copy(), scene.noise.copy()
    for frame in levelled:
        seen = StillScene(backdrop, noise, bands=False)
        mask = (seen.evidence(frame) > RESTING_EVIDENCE).astype(np.uint8)
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
        if count == 1:  # only the scene
            continue
        image = frame.astype(np.float32)
        images = edges(image), edges(backdrop)
        difference = seen.distance(image)
        for number in range(1, count):
            if stats[number, cv2.CC_STAT_AREA] < RESTING_PIXELS:
                continue
            part = (labels == number).astype(np.uint8)
            if abs(_step_share(image, backdrop, part)) < RESTING_STEP:
                inside = _whole(part, difference)
                if correlation(images[0][inside], images[1][inside]) > SAME_TEXTURE:
                    continue  # a lamp: the same scene in different light
                alike = _frames_alike(levelled, frame, inside, noise)
                if alike.sum() >= RESTING_FRAMES:
                    shown = levelled[alike][:, inside]
                    backdrop[inside] = np.median(shown, axis=0)
                    if np.count_nonzero(np.diff(alike)) <= MOST_VISITS:  # else a lamp that flickers
                        noise[inside] = np.minimum(noise[inside], _noise(shown, backdrop[inside]))
    return StillScene(backdrop, noise, scene.bands)


def _step_share(frame: Floats, backdrop: Floats, part: Pixels) -> float:
    """Return how much of the step of a difference across its outline is in the frame.

    It is 1 for an object in the frame and 0 for one in the backdrop, even if the scene or the
    object has edges of its own there, because those do not depend on the difference.

    Args:
        frame: (height, width, 3).
        backdrop: (height, width, 3).
        part: (height, width) connected pixels where they differ.
    """
    left, top, width, height = cv2.boundingRect(part)
    margin = int(STEP_OUT + 4 * NORMAL_BLUR)
    box = tuple(
        slice(max(0, a - margin), a + b + margin) for a, b in ((top, height), (left, width))
    )
    contours, _ = cv2.findContours(part[box], cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    points = np.concatenate(contours)[:, 0]
    points = points[:: 1 + len(points) // MOST_POINTS]
    filled = cv2.GaussianBlur(part[box].astype(np.float32), (0, 0), NORMAL_BLUR)
    slopes = cv2.Sobel(filled, cv2.CV_32F, 1, 0), cv2.Sobel(filled, cv2.CV_32F, 0, 1)
    inwards = np.stack([slope[points[:, 1], points[:, 0]] for slope in slopes], axis=1)
    inwards /= np.maximum(np.linalg.norm(inwards, axis=1, keepdims=True), 1e-6)
    depth = min(STEP_IN, float(cv2.distanceTransform(part[box], cv2.DIST_L2, 3).max()))
    outside, inside = points - STEP_OUT * inwards, points + depth * inwards
    seen = ((outside >= 0) & (outside < part[box].shape[::-1])).all(axis=1)
    places = [place[seen].astype(np.float32).T[..., None] for place in (inside, outside)]
    if not seen.any():
        return 1.0
    steps = []
    for image in (frame, backdrop):
        smooth = cv2.GaussianBlur(image[box], (0, 0), STEP_BLUR)
        within, beyond = (
            cv2.remap(smooth, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            for x, y in places
        )
        steps.append(within - beyond)
    change = steps[0] - steps[1]
    return float((steps[0] * change).sum() / max(float(np.square(change).sum()), 1e-6))


def _whole(part: Pixels, difference: Floats) -> NDArray[np.bool_]:
    """Return the whole object that a part with clear evidence belongs to.

    The noise is high where an object rests for half of the time, so the evidence shows only its
    part of highest contrast.
    """
    weak = difference > WEAK * np.median(difference[part > 0])
    _, labels = cv2.connectedComponents((weak | (part > 0)).astype(np.uint8), connectivity=8)
    whole = labels == labels[part > 0][0]
    if np.count_nonzero(whole) > MOST_GROWTH * np.count_nonzero(part):  # it touches something else
        whole = part > 0
    return np.asarray(cv2.dilate(whole.astype(np.uint8), SQUARE) > 0)


def _noise(shown: NDArray[np.uint8], backdrop: Floats) -> Floats:
    """Return the noise of pixels (frames, pixels, 3) around their backdrop (pixels, 3)."""
    squares = np.square(shown - backdrop).mean(-1)
    noise: Floats = np.median(np.sqrt(squares), axis=0) / MEDIAN_DEVIATION
    return np.maximum(noise, NOISE_FLOOR)


def _frames_alike(
    levelled: Frames, frame: Pixels, inside: NDArray[np.bool_], noise: Floats
) -> NDArray[np.bool_]:
    """Return which frames are the same as `frame` in a region."""
    difference = levelled[:, inside].astype(np.float32) - frame[inside]
    length = np.sqrt(np.square(difference).mean(-1)) / noise[inside]
    alike: NDArray[np.bool_] = np.median(length, axis=1) < RESTING_SAME
    return alike
