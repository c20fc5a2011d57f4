"""Masks kept on disk until the identities of all objects are known."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import IO, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ullayers.learn.results import Answer
from ullayers.locate.parallel import in_parallel

PNG = [cv2.IMWRITE_PNG_COMPRESSION, 1]  # higher levels take longer and save little


class Spool:
    """Keeps the masks of consecutive frames in a temporary file, compressed."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, answer: Answer) -> None:
        """Add the masks and owners of the next rows of a sequence."""
        np.save(self._file, len(answer.index))
        self._write(answer.masks)
        self._write(answer.owners)

    def read(self, answer: Answer) -> Iterator[Answer]:
        """Yield the rows that were added, with their masks and owners.

        Args:
            answer: All rows of the sequence.
        """
        end, start = self._file.tell(), 0
        self._file.seek(0)
        while self._file.tell() < end:
            rows = answer.rows(slice(start, start + int(np.load(self._file))))
            start += len(rows.index)
            yield replace(rows, masks=self._read(), owners=self._read())

    def _write(self, images: NDArray[Any] | None) -> None:
        encoded = [] if images is None else in_parallel(_encode, images)
        places = [(len(content), left, top) for content, left, top in encoded]
        np.save(self._file, np.array(places, np.int64))
        if images is not None and encoded:
            np.save(self._file, images[:0])  # their size and kind
            self._file.writelines(content for content, _, _ in encoded)

    def _read(self) -> NDArray[Any] | None:
        places = np.load(self._file)
        if not len(places):
            return None
        like = np.load(self._file)
        images = np.zeros((len(places), *like.shape[1:]), like.dtype)
        contents = [self._file.read(size) for size, _, _ in places.tolist()]
        in_parallel(_decode, contents, places.tolist(), images)
        return images


def _encode(image: NDArray[Any]) -> tuple[bytes, int, int]:
    """Encode an image without its black margin; return its left and top, too."""
    left, top, width, height = cv2.boundingRect((image > 0).view(np.uint8))
    if not width:
        return b"", 0, 0
    part = np.ascontiguousarray(image[top : top + height, left : left + width])
    return cv2.imencode(".png", part, PNG)[1].tobytes(), left, top


def _decode(content: bytes, place: list[int], image: NDArray[Any]) -> None:
    """Decode an image into a black one."""
    if content:
        part = np.asarray(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED))
        _, left, top = place
        image[top : top + part.shape[0], left : left + part.shape[1]] = part
