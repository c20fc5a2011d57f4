"""outlines.sqlite of `ul watch`, written while frames arrive."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np

from ullayers.learn.checkpoint import RunError
from ullayers.learn.sightings import WatchResult
from ullayers.output.outlines import OUTLINES, PARTIAL, OutlineWriter, encoded

MIN_POINTS = 3  # of an outline


def keep_outlines(
    sightings: Generator[WatchResult, None, None], folder: str | os.PathLike[str]
) -> Generator[WatchResult, None, None]:
    """Yield the results of `watch`, and write their outlines to its folder.

    Each frame is written before its result is yielded, so a killed process loses no frame that its
    next checkpoint includes. Outlines of frames that are processed again are replaced.

    Args:
        sightings: Results of `watch`; the generator is closed at the end.
        folder: The folder of `watch`.
    """
    with closing(sightings), ExitStack() as stack:
        writer = None
        for sighting in sightings:
            if sighting.size is not None:  # a code has no outline
                writer = writer or stack.enter_context(LiveOutlines(Path(folder), sighting))
                writer.see(sighting)
            yield sighting


class LiveOutlines(OutlineWriter):
    """Writes the outlines of frames as they arrive.

    Args:
        folder: The folder of `watch`. Existing outlines are those before the first frame.
        first: The result for the first frame.

    Raises:
        RunError: The outlines in the folder are damaged.
    """

    def __init__(self, folder: Path, first: WatchResult) -> None:
        if not (folder / PARTIAL).exists():  # left by a killed process
            with suppress(FileNotFoundError):
                os.replace(folder / OUTLINES, folder / PARTIAL)
        super().__init__(folder, kept=[first.sequence])
        assert first.size is not None
        self._begin(first.sequence, first.frame, *first.size)

    def _begin(self, sequence: str, frame: int, width: int, height: int) -> None:
        with self._changing() as database:
            row = database.execute("SELECT id FROM sequences WHERE name = ?", (sequence,))
            known = row.fetchone()
            if known is not None:
                [self._sequence] = known
                database.execute("UPDATE sequences SET finished = 0 WHERE id = ?", known)
                database.execute(
                    "DELETE FROM outlines WHERE sequence = ? AND frame >= ?", (*known, frame)
                )
        self._size = width, height
        if known is None:
            self.start(sequence, width, height)

    def see(self, sighting: WatchResult) -> None:
        """Add a frame."""
        if sighting.objects is None:
            self.add(sighting.answer)
            return
        with self._changing():
            self._insert(self._rows(sighting))

    def _rows(self, sighting: WatchResult) -> Iterator[tuple[int, int, bytes]]:
        for each in sighting.objects or ():
            if len(each.outline) >= MIN_POINTS:
                points = np.rint(each.outline * np.array(self._size)).astype(np.int32)
                yield sighting.frame, each.number, encoded([points])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Complete the file; it can be continued later."""
        try:
            self.finish(None)
            super().__exit__(None)
            self._remove()
        except (RunError, OSError):
            if kind is None:
                raise
