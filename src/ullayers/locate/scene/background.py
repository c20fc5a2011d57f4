"""The scene without objects: medians over time, objects that rest or hide it."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels, optical_flow
from ullayers.locate.scene.still import NOISE_FLOOR, SAME_TEXTURE, StillScene, correlation, edges
from ullayers.video.parallel import in_parallel

ROW_BYTES = 2**26  # memory for the median over time of a band of rows
# The median of the absolute value of a normal deviate is 0.67 standard deviations.
MEDIAN_DEVIATION = 0.67
MOTION_SIDE, SHORTEST_SIDE = 320, 16  # sides in pixels of the frames in which motion is measured
MOVING = 0.5  # smallest motion from frame to frame, in pixels
CLOSING = np.ones((7, 7), np.uint8)  # fills the inside of an object, where flow is uncertain
# A pixel moves often if it moves in more than the first share of the frames, and rests in more than
# the second share, which is enough for its median.
OFTEN, SELDOM = 0.25, 0.15
MOVING_WEIGHT = 0.6  # weight of a frame with motion when two colours of the scene are compared
SAME_COLOUR = 10.0  # largest difference in grey levels of a frame that agrees with a colour
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
USUALLY = 0.5  # an object may hide pixels that move in more than this share of the frames
CLEAR_EVIDENCE = 4.0  # smallest evidence of an object, in units of the noise
# Share of the pixels around the hidden ones that stand out, over all frames. In rendered films it
# was 0.11 to 0.42 for objects, and up to 0.02 for water and leaves.
REACHING = 0.05
UNCERTAIN = 3.0  # times the usual noise: mixtures of an object's parts vary more than this
LEAST_HIDDEN = 100  # pixels
NEAR, FAR = np.ones((3, 3), np.uint8), np.ones((9, 9), np.uint8)  # what is around hidden pixels
FILLING = np.ones((15, 15), np.uint8)  # joins uncertain pixels
AROUND = np.ones((41, 41), np.uint8)  # pixels whose colours may be those of the object, too
REACH = 5  # pixels over which the colours around hidden pixels are continued
SHADE = np.ones((5, 5), np.uint8)  # around an object, its blur or shadow hides the scene, too
Mask = NDArray[np.bool_]
BANDS = 0.9  # rows have their own gains if these reduce the difference to less than this share
NOISE_BLUR = 2.0  # standard deviation of the filter of the noise, in pixels


def moving_pixels(sample: Frames, after: Frames) -> NDArray[np.bool_]:
    """Return the (time, height, width) pixels that move from each frame to the one after it.

    Args:
        sample: (time, height, width, 3) uint8.
        after: The frames that follow those of the sample.
    """
    size = sample.shape[2], sample.shape[1]
    scale = min(1.0, max(MOTION_SIDE / max(size), SHORTEST_SIDE / min(size)))

    def small(frame: Pixels) -> Pixels:
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
        reduced = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        return np.asarray(reduced, np.uint8)

    def moves(frame: Pixels, following: Pixels) -> NDArray[np.bool_]:
        flow = optical_flow(small(frame), small(following))
        flow -= np.median(flow, axis=(0, 1))
        found = (np.hypot(flow[..., 0], flow[..., 1]) > MOVING).astype(np.uint8)
        whole = cv2.dilate(cv2.morphologyEx(found, cv2.MORPH_CLOSE, CLOSING), CLOSING)
        return np.asarray(cv2.resize(whole, size, interpolation=cv2.INTER_NEAREST) > 0)

    return np.stack(in_parallel(moves, sample, after))


def median_over_time(
    frames: NDArray[np.uint8] | Floats, moving: NDArray[np.bool_] | None = None
) -> Floats:
    """Return the median of each pixel, computed in bands of rows to bound memory.

    Args:
        frames: (time, height, width) or (time, height, width, 3).
        moving: From `moving_pixels`. A pixel that moves often is the median of the other frames.
    """
    middle = np.empty(frames.shape[1:], np.float32)
    rows = max(1, min(ROW_BYTES // (8 * frames[:, 0].size), -(-len(middle) // 2)))

    def band(top: int) -> None:
        some = slice(top, top + rows)
        middle[some] = np.median(frames[:, some], axis=0)
        if moving is not None:
            often, median = _median_at_rest(frames[:, some], moving[:, some])
            middle[some][often] = median

    in_parallel(band, range(0, len(middle), rows))
    return middle


def hidden_by_motion(levelled: Frames, moving: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return `moving`, but only where the frames without motion show what is behind.

    Where an animal rests, the scene may be seen mostly while the animal moves nearby. The median of
    all frames and that of the frames without motion compete: the one with which more frames agree
    is the scene. Frames with motion count less, as they may show a large object.
    """
    hidden = moving.copy()

    def compare(row: int) -> None:
        often, at_rest = _median_at_rest(levelled[:, row], moving[:, row])
        if not often.any():
            return
        seen = levelled[:, row, often].astype(np.float32)
        weight = np.where(moving[:, row, often], MOVING_WEIGHT, 1)
        all_frames = np.median(seen, axis=0)
        support, support_at_rest = (
            (weight * (np.abs(seen - colour).mean(-1) < SAME_COLOUR)).sum(0)
            for colour in (all_frames, at_rest)
        )
        differ = np.abs(all_frames - at_rest).mean(-1) > SAME_COLOUR
        hidden[:, row, np.flatnonzero(often)[differ & (support > support_at_rest)]] = False

    in_parallel(compare, range(levelled.shape[1]))
    return hidden


def _median_at_rest(
    frames: NDArray[np.uint8] | Floats, moving: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Floats]:
    """Return the pixels that move often but not always, and their medians while they do not."""
    resting = np.count_nonzero(~moving, axis=0)
    often = (resting < (1 - OFTEN) * len(frames)) & (resting > SELDOM * len(frames))
    values = frames[:, often].astype(np.float32)
    values[moving[:, often]] = np.inf
    values.sort(axis=0)
    median: Floats = values[(resting[often] - 1) // 2, np.arange(values.shape[1])]
    return often, median


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


def without_unseen(scene: StillScene, sample: Frames, levelled: Frames, moving: Mask) -> StillScene:
    """Replace the scene where an object hides it in all frames.

    A first guess continues the colours around these pixels. It shows where the object is in each
    frame; pixels that are then free of it in some frames get the median of those.

    Args:
        scene: The scene, with the object in it.
        sample: (time, height, width, 3) uint8 frames.
        levelled: The same without changes of light.
        moving: From `moving_pixels`.
    """
    hidden = _hidden(scene, _stand_out(scene, sample), moving)
    if not hidden.any():
        return scene
    guess = _continued(scene, hidden)
    covered = _stand_out(guess, sample, SHADE)
    known = cv2.dilate(hidden.astype(np.uint8), AROUND) > 0
    known &= covered.mean(axis=0) < 1 - SELDOM
    backdrop, noise = guess.backdrop.copy(), guess.noise.copy()
    backdrop[known] = median_over_time(levelled, covered)[known]
    better = replace(guess, backdrop=backdrop)
    differences = np.stack(in_parallel(better.difference, sample))
    spread = median_over_time(differences, covered) / MEDIAN_DEVIATION
    noise[known] = np.maximum(spread[known], NOISE_FLOOR)
    return replace(better, noise=noise)


def _stand_out(scene: StillScene, frames: Frames, wider: Pixels | None = None) -> Mask:
    """Return the (time, height, width) pixels that differ clearly from the scene."""

    def find(frame: Pixels) -> Mask:
        clear = scene.evidence(frame) > CLEAR_EVIDENCE
        return clear if wider is None else cv2.dilate(clear.view(np.uint8), wider) > 0

    return np.stack(in_parallel(find, frames))


def _hidden(scene: StillScene, clear: Mask, moving: Mask) -> Mask:
    """Return the (height, width) pixels where an object hides the scene.

    Args:
        scene: The scene.
        clear: (time, height, width) pixels that differ clearly from it.
        moving: From `moving_pixels`.
    """
    usually = (moving.mean(axis=0) > USUALLY).astype(np.uint8)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(usually)
    uncertain = scene.noise > UNCERTAIN * float(np.median(scene.noise))
    often_clear: Floats = clear.mean(axis=0, dtype=np.float32)
    hidden = np.zeros(usually.shape, bool)
    for number in range(1, count):
        if stats[number, cv2.CC_STAT_AREA] < LEAST_HIDDEN:
            continue
        pixels = (labels == number).astype(np.uint8)
        around = (cv2.dilate(pixels, FAR) > 0) & (cv2.dilate(pixels, NEAR) == 0)
        if around.any() and often_clear[around].mean() > REACHING:
            hidden |= (pixels > 0) & uncertain
    whole = cv2.morphologyEx(hidden.astype(np.uint8), cv2.MORPH_CLOSE, FILLING)
    found: Mask = cv2.dilate(whole, FAR) > 0
    return found


def _continued(scene: StillScene, hidden: Mask) -> StillScene:
    """Return the scene with the colours around hidden pixels continued into them."""
    backdrop, noise = scene.backdrop.copy(), scene.noise.copy()
    colours = backdrop.round().clip(0, 255).astype(np.uint8)
    filled = cv2.inpaint(colours, hidden.astype(np.uint8), REACH, cv2.INPAINT_TELEA)
    backdrop[hidden] = filled[hidden]
    noise[hidden] = np.median(noise)
    return replace(scene, backdrop=backdrop, noise=noise)


def still_scene(sample: Frames, moving: NDArray[np.bool_] | None = None) -> StillScene:
    """Learn the scene from frames spread over a recording.

    Args:
        sample: (time, height, width, 3) uint8; a few dozen frames are enough.
        moving: (time, height, width) pixels that move, from `moving_pixels`. A large object may
            cover a pixel in more than half of the frames.
    """
    flat = np.ones(sample.shape[1:3], np.float32)
    scene = StillScene(median_over_time(sample), flat, bands=False)
    scene = StillScene(scene.backdrop, flat, bands=_has_bands(sample, scene))
    levelled = np.stack(in_parallel(scene.levelled, sample))
    hidden = None if moving is None else hidden_by_motion(levelled, moving)
    scene = StillScene(median_over_time(levelled, hidden), flat, scene.bands)
    differences = np.stack(in_parallel(scene.difference, sample))
    middle = median_over_time(differences, hidden)
    noise = cv2.GaussianBlur(middle, (0, 0), NOISE_BLUR) / MEDIAN_DEVIATION
    scene = StillScene(scene.backdrop, np.maximum(noise, NOISE_FLOOR), scene.bands)
    scene = without_resting(scene, levelled)
    return scene if moving is None else without_unseen(scene, sample, levelled, moving)


def _has_bands(sample: Frames, scene: StillScene) -> bool:
    """Return whether one gain per row explains the frames clearly better than a single gain."""
    banded = StillScene(scene.backdrop, scene.noise, bands=True)
    plain = np.mean([np.median(scene.difference(frame)) for frame in sample[::4]])
    return bool(np.mean([np.median(banded.difference(f)) for f in sample[::4]]) < BANDS * plain)
