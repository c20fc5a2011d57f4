"""Frames and masks that wait on disk until the identities of all objects are known."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import IO, Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learn.results import Answer
from ullayers.locate.parallel import in_parallel

JPEG = (".jpg", [cv2.IMWRITE_JPEG_QUALITY, 95])
# Masks have few edges, so that more compression is not worth its time.
PNG = (".png", [cv2.IMWRITE_PNG_COMPRESSION, 1])


class Waiting(NamedTuple):
    """Consecutive frames of a sequence.

    Attributes:
        answer: Their rows, with masks and owners.
        frames: (time, 3, height, width) uint8 frames to draw on; fewer if only some are drawn.
    """

    answer: Answer
    frames: Tensor


class _Stored(NamedTuple):
    """An image in the file; only what is not black is stored.

    Attributes:
        bytes: Length in the file; 0 if all of it is black.
        left: Of the stored part, in pixels.
        top: Of the stored part.
        shape: Of the whole image.
        kind: Type of its values.
    """

    bytes: int
    left: int
    top: int
    shape: tuple[int, ...]
    kind: np.dtype[Any]


class Spool:
    """Keeps frames and masks in a temporary file, compressed."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._parts: list[tuple[Answer, list[list[_Stored]]]] = []

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, answer: Answer, frames: Tensor) -> None:
        """Keep the next frames of a sequence.

        Args:
            answer: Rows with masks.
            frames: (time, 3, height, width) uint8, at most as many as rows.
        """
        pictures = frames.permute(0, 2, 3, 1).numpy()[..., ::-1] if len(frames) else None
        stored = [
            self._write(pictures, JPEG),
            self._write(answer.masks, PNG),
            self._write(answer.owners, PNG),
        ]
        self._parts.append((replace(answer, masks=None, owners=None), stored))

    def __iter__(self) -> Iterator[Waiting]:
        self._file.seek(0)
        for answer, (frames, masks, owners) in self._parts:
            pictures, *kept = (self._read(each) for each in (frames, masks, owners))
            shown = torch.empty(0)
            if pictures is not None:
                shown = torch.from_numpy(pictures[..., ::-1].copy()).permute(0, 3, 1, 2)
            yield Waiting(replace(answer, masks=kept[0], owners=kept[1]), shown)

    def _write(self, images: NDArray[Any] | None, form: tuple[str, list[int]]) -> list[_Stored]:
        if images is None:
            return []
        stored = []
        for content, left, top in in_parallel(_encode, images, [form] * len(images)):
            self._file.write(content)
            stored.append(_Stored(len(content), left, top, images.shape[1:], images.dtype))
        return stored

    def _read(self, stored: list[_Stored]) -> NDArray[Any] | None:
        if not stored:
            return None
        contents = [self._file.read(each.bytes) for each in stored]
        return np.stack(in_parallel(_decode, contents, stored))


def _encode(image: NDArray[Any], form: tuple[str, list[int]]) -> tuple[bytes, int, int]:
    """Return an image without its black margin, and the left and top of what is left."""
    left, top, width, height = 0, 0, image.shape[1], image.shape[0]
    if image.ndim == 2:
        left, top, width, height = cv2.boundingRect((image > 0).view(np.uint8))
        if not width:
            return b"", 0, 0
    part = np.ascontiguousarray(image[top : top + height, left : left + width])
    return cv2.imencode(form[0], part, form[1])[1].tobytes(), left, top


def _decode(content: bytes, stored: _Stored) -> NDArray[Any]:
    image = np.zeros(stored.shape, stored.kind)
    if content:
        part = np.asarray(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED))
        left, top = stored.left, stored.top
        image[top : top + part.shape[0], left : left + part.shape[1]] = part
    return image
