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

JPEG_QUALITY = 95
PNG_COMPRESSION = 1  # masks have few edges, so that more is not worth its time


class Waiting(NamedTuple):
    """Consecutive frames of a sequence.

    Attributes:
        answer: Their rows, with masks and owners.
        frames: (time, 3, height, width) uint8 frames to draw on; fewer if only some are drawn.
    """

    answer: Answer
    frames: Tensor


class Spool:
    """Keeps frames and masks in a temporary file, compressed."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()
        self._parts: list[tuple[Answer, list[list[int]]]] = []

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
        pictures = frames.permute(0, 2, 3, 1).numpy()[..., ::-1] if len(frames) else frames.numpy()
        jpeg = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
        png = [cv2.IMWRITE_PNG_COMPRESSION, PNG_COMPRESSION]
        sizes = [
            self._write(".jpg", list(map(np.ascontiguousarray, pictures)), jpeg),
            self._write(".png", answer.masks, png),
            self._write(".png", answer.owners, png),
        ]
        self._parts.append((replace(answer, masks=None, owners=None), sizes))

    def __iter__(self) -> Iterator[Waiting]:
        self._file.seek(0)
        for answer, (frames, masks, owners) in self._parts:
            pictures = self._read(frames, cv2.IMREAD_COLOR)
            kept = [_stacked(self._read(sizes, cv2.IMREAD_UNCHANGED)) for sizes in (masks, owners)]
            planes = [torch.from_numpy(each[..., ::-1].copy()) for each in pictures]
            shown = torch.stack(planes).permute(0, 3, 1, 2) if planes else torch.empty(0)
            yield Waiting(replace(answer, masks=kept[0], owners=kept[1]), shown)

    def _write(self, kind: str, images: Any, options: list[int]) -> list[int]:
        sizes = []
        for image in () if images is None else images:
            content = cv2.imencode(kind, image, options)[1].tobytes()
            self._file.write(content)
            sizes.append(len(content))
        return sizes

    def _read(self, sizes: list[int], mode: int) -> list[NDArray[Any]]:
        contents = [np.frombuffer(self._file.read(size), np.uint8) for size in sizes]
        return [np.asarray(cv2.imdecode(content, mode)) for content in contents]


def _stacked(images: list[NDArray[Any]]) -> NDArray[Any] | None:
    return np.stack(images) if images else None
