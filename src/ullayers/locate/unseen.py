"""A scene that is never seen, because an object hides it in all frames.

An animal that grooms itself or a dancer never leaves some pixels. There, the median shows a mixture
of the parts of the object. It cannot be told from leaves that always move by these pixels alone,
but by those around them: the object reaches beyond them and stands out there from a known scene,
whereas the leaves are as noisy there as the scene is known to be.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.flow import Floats, Frames, Pixels
from ullayers.locate.parallel import in_parallel
from ullayers.locate.scene_median import MEDIAN_DEVIATION, SELDOM, median_over_time
from ullayers.locate.still import NOISE_FLOOR, StillScene

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
