"""Masks as images of the size of the video."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ullayers.learn.folders import MASK_FILES, check_inside
from ullayers.learn.results import Answer
from ullayers.locate.outline import EDGE
from ullayers.output.drawing import to_pixels
from ullayers.output.identity_colours import identity_colour
from ullayers.video.atomic_files import replacing
from ullayers.video.reader import Source

# Lookup table from soft to binary masks.
BINARY = [0] * EDGE + [255] * (256 - EDGE)


class MaskWriter:
    """Writes the masks of a source to masks/SEQUENCE/FRAME.png.

    The mask of a single object is black and white, or grey at its edges. Masks of several objects
    are palette images whose pixel values are object numbers; 0 is the background.

    Args:
        place: Folder of the export.
        source: Source of the masks.
        soft: Write masks of a single object in grey.
    """

    def __init__(self, place: Path, source: Source, soft: bool) -> None:
        info = source.probe()
        self.size = info.width, info.height
        self.soft = soft
        self.folder = place / "masks" / source.name
        check_inside(place, self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, answer: Answer, labels: NDArray[np.uint8] | None = None) -> None:
        """Write one image for each frame.

        Args:
            answer: Rows with masks.
            labels: (time, height, width) object number of each pixel, if there are several objects.
        """
        assert answer.masks is not None
        left, top, width, height = to_pixels(answer.box, *self.size)
        for row, number in enumerate(answer.index):
            if labels is None:
                image = Image.new("L", self.size)
                resample = Image.Resampling.BILINEAR
                part = Image.fromarray(answer.masks[row]).resize((width, height), resample)
                part = part if self.soft else part.point(BINARY)
            else:
                image = Image.new("P", self.size)
                image.putpalette(PALETTE)
                resample = Image.Resampling.NEAREST
                part = Image.fromarray(labels[row]).resize((width, height), resample)
            image.paste(part, (left, top))
            with replacing(self.folder / f"{number:06d}.png", "wb") as file:
                image.save(file, "png")


def renumber_masks(source: Path, target: Path, numbers: Sequence[int]) -> None:
    """Rewrite the masks of a sequence with new object numbers.

    Args:
        source: Folder of the masks.
        target: Folder to write to; created if needed.
        numbers: New numbers of the objects 1, 2, ... in the masks.
    """
    target.mkdir(parents=True, exist_ok=True)
    lookup = np.arange(256, dtype=np.uint8)
    lookup[1 : len(numbers) + 1] = numbers
    for path in sorted(source.glob(MASK_FILES)):
        with replacing(target / path.name, "wb") as file, Image.open(path) as image:
            if image.mode == "P":
                renumbered = Image.fromarray(lookup[np.asarray(image)]).convert("P")
                renumbered.putpalette(PALETTE)
                renumbered.save(file, "png")
            else:  # of a single object
                file.write(path.read_bytes())


PALETTE = [0, 0, 0] + [level for number in range(1, 256) for level in identity_colour(number)]
