"""Score `segment_motion` on DAVIS sequences: IoU of masks, and whether the centre is on the object.

    python benchmarks/davis.py DATA

DATA has frames/NAME/*.jpg and masks/NAME/*.png. The truth is used to score only.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.locate.moving.segment import segment_motion


def read(folder: Path, flag: int) -> NDArray[np.uint8]:
    images: list[Any] = [cv2.imread(str(path), flag) for path in sorted(folder.iterdir())]
    return np.stack(images)


def score(frames: NDArray[np.uint8], truth: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the mean IoU, and the share of frames whose centre is on the object."""
    found = segment_motion(frames)
    both = (found.masks & truth).sum(axis=(1, 2))
    either = (found.masks | truth).sum(axis=(1, 2))
    _, height, width = truth.shape
    hits = 0
    for mask, (x, y) in zip(truth, found.positions, strict=True):
        if not np.isnan(x):
            hits += bool(mask[min(height - 1, int(y * height)), min(width - 1, int(x * width))])
    return float(np.mean(both / np.maximum(either, 1))), hits / len(truth)


def main(data: Path) -> None:
    scores = []
    for folder in sorted((data / "frames").iterdir()):
        frames = np.ascontiguousarray(read(folder, cv2.IMREAD_COLOR)[..., ::-1])
        truth = read(data / "masks" / folder.name, cv2.IMREAD_GRAYSCALE) > 127
        begin = time.perf_counter()
        scores.append(score(frames, truth))
        seconds = time.perf_counter() - begin
        print(f"{folder.name:20} {scores[-1][0]:.3f} {scores[-1][1]:.2f} {seconds:6.1f} s")
    iou, centre = np.mean(scores, axis=0)
    print(f"{'mean':20} {iou:.3f} {centre:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
