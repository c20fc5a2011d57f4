"""Reading masks from images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ullayers.learn.checkpoint import RunError

OUTLINE = 128  # grey value at the outline of a single object
MAX_PALETTE_OBJECTS = 255  # of a palette image
Labels = NDArray[np.uint8]


def read_labels(path: Path, single: int = 1) -> Labels:
    """Read a mask and return the object number of each pixel, 0 for the background.

    The values of a palette image are object numbers, as in DAVIS. In any other image, pixels
    brighter than grey belong to a single object.

    Args:
        path: The image.
        single: Number of a single object.

    Raises:
        RunError: The file is not an image.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.fromarray(np.array([[0, 255]], np.uint8)).save(f"{folder}/000000.png")
        ...     read_labels(Path(folder, "000000.png")).tolist()
        [[0, 1]]
    """
    try:
        with Image.open(path) as image:
            if image.mode == "P":
                return np.asarray(image)
            return np.where(np.asarray(image.convert("L")) >= OUTLINE, single, 0).astype(np.uint8)
    except (OSError, ValueError, SyntaxError, UnidentifiedImageError) as error:
        raise RunError(f"{path}: is not an image; write the masks again with --force") from error


def label_box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a mask that is not empty, in pixels.

    >>> label_box(np.array([[False, False, False], [False, True, True]]))
    (1, 1, 2, 1)
    """
    rows = np.flatnonzero(mask.any(1))
    columns = np.flatnonzero(mask.any(0))
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top
