"""Memory of long videos: nothing may pile up with the number of frames."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import ullayers.tracks.table as results
from tests.films import write_ball
from ullayers.run.plan import Plan
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.masks import Spool
from ullayers.tracks.reading import read_tracks
from ullayers.tracks.store import GrowingTable
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.memory import EVERY, returning_memory
from ullayers.video.sources import find_sources

ROWS = 8_000


@dataclass
class Peak:
    """Largest memory that was allocated by Python and numpy."""

    bytes: int = 0


@contextmanager
def traced() -> Iterator[Peak]:
    peak = Peak()
    gc.collect()
    tracemalloc.start()
    try:
        yield peak
        peak.bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_results_are_not_kept_in_memory(either: Plan, tmp_path: Path) -> None:
    """Small arrays between large blocks would keep these from being used again."""
    film = write_ball(tmp_path / "film.mp4", 400)
    alive = []

    def count_results(_: int) -> None:
        alive.append(sum(type(each) is Answer for each in gc.get_objects()))

    options = ExportOptions(objects=1, masks=True, overlay=1)
    export(either, find_sources([film]), tmp_path / "out", options, count_results)
    half = len(alive) // 2
    assert max(alive[half:]) <= max(alive[:half])


def test_masks_wait_on_disk() -> None:
    """Memory hardly grows with their number, and they come back as they were."""
    count, part = 1_000, 100
    masks = np.zeros((count, 8, 8), np.uint8)
    masks[np.arange(count), np.arange(count) % 8, 3] = 200
    masks[::5] = 0
    answer = long_track().rows(slice(count))
    whole = replace(answer, masks=masks, owners=300 * (masks > 0).astype(np.uint16))
    kept = []
    with Spool() as spool, traced():
        for start in range(0, count, part):
            spool.add(whole.rows(slice(start, start + part)))
            kept.append(tracemalloc.get_traced_memory()[0])
        parts = list(spool.read(answer))
    assert kept[-1] - kept[1] < 20 * (count - 2 * part), "bytes per mask"
    for name in ("masks", "owners", "index", "values"):
        again = np.concatenate([getattr(each, name) for each in parts])
        assert np.array_equal(again, getattr(whole, name))
        assert again.dtype == getattr(whole, name).dtype


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_is_returned_to_the_system() -> None:
    """Blocks between others that stay in use, as after an hour of video."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = [bytearray(2**16) for _ in range(1_000)]
    kept, full = blocks[::8], resident()
    del blocks
    assert list(returning_memory(iter(range(EVERY)))) == list(range(EVERY))
    assert resident() < full - 2**25
    assert len(kept) == 125


def long_track() -> Answer:
    frame = np.arange(ROWS)
    values = np.stack([frame / ROWS, frame / ROWS, np.ones(ROWS)], 1)
    shapes = np.repeat(values[:, :1], 5, 1)
    return Answer("a", frame, frame / 25, TRACK, values, size=(320, 240), shapes=shapes)


def test_tables_are_written_and_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = long_track()
    monkeypatch.setattr(results, "ROWS_AT_ONCE", 200)
    monkeypatch.setattr(results, "ROWS_PER_PART", 200)
    table = GrowingTable(tmp_path / "tracks.csv", [], resume=False)
    with traced() as growing:
        for part in answer.in_parts():
            table.append(part)
        table.end(answer, {})
    with traced() as writing:
        table.__exit__(None)
    read_tracks(tmp_path / "tracks.csv")  # loads pandas
    with traced() as reading:
        [track] = read_tracks(tmp_path / "tracks.csv")
    assert np.allclose(track.x, answer.values[:, 0], atol=1e-6)
    assert growing.bytes < 8 * 11 * ROWS
    assert writing.bytes < 1e6
    numbers = 8 * 12 * ROWS
    assert reading.bytes < 2 * numbers + 1e6, "parts, and their concatenation"
