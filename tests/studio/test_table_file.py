"""Long tables of a run, copied once to a file of columns."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import ullayers.studio.tables as table_file
import ullayers.tracks.table as track_table
from tests.output.made_tracks import wanderers, write_tables
from ullayers.errors import Error
from ullayers.studio.tables import read_rows
from ullayers.tracks.reading import NAMES, REQUIRED, STEP, Track, extremes

FRAMES = 1000


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tracks of three objects in two sequences, which count as long ones from now on."""
    tracks = wanderers(3, FRAMES)[0] + wanderers(2, FRAMES, "b", 1)[0]
    write_tables(tmp_path, tracks, [])
    monkeypatch.setattr(table_file, "LONG", 0)
    monkeypatch.setattr(track_table, "ROWS_PER_PART", 500)
    table_file._read.cache_clear()
    return tmp_path / "tracks.csv"


def read(path: Path) -> list[Track]:
    table_file._read.cache_clear()
    return read_rows(path, NAMES, REQUIRED)


def wait_for(path: Path) -> Path:
    """Wait for a file that appears when its content is on the disk."""
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    return path


def same(one: list[Track], other: list[Track]) -> bool:
    """Whether tables are the same, as far as single precision tells."""
    assert [(rows.sequence, rows.object) for rows in one] == [
        (rows.sequence, rows.object) for rows in other
    ]
    return all(
        np.array_equal(np.float32(mine), np.float32(its.columns[name]), equal_nan=True)
        for rows, its in zip(one, other, strict=True)
        for name, mine in rows.columns.items()
    )


def test_a_long_table_is_copied_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = read(table)
    assert len(copied) == 5
    wait_for(table.with_name("tracks.columns"))
    with monkeypatch.context() as patched:
        patched.setattr(table_file, "_copy", None)  # it is not read again
        again = read(table)
    assert all(rows.stored is not None for rows in again)
    monkeypatch.setattr(table_file, "LONG", 2**40)
    plain = read(table)
    assert all(rows.stored is None for rows in plain)
    assert same(copied, plain)
    assert same(again, plain)
    for rows, its in zip(again, plain, strict=True):
        assert rows.extremes.keys() == its.extremes.keys()
        for name, column in rows.extremes.items():
            assert np.allclose(column, its.extremes[name], equal_nan=True, atol=1e-3), name


def test_extremes_of_extremes_are_those_of_the_rows(table: Path) -> None:
    rows = read(table)[0]
    step = 4 * STEP
    summed = extremes(rows.extremes, ["x_px"], step)
    for name, column in extremes(rows.columns, ["x_px"], step).items():
        assert np.array_equal(column, summed[name])


@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_a_damaged_copy_is_made_again(table: Path, damage: str) -> None:
    before = read(table)
    columns = wait_for(table.with_suffix(".columns"))
    content = columns.read_bytes()
    columns.unlink()  # a file that is mapped is never changed
    columns.write_bytes(content[:-1000] if damage == "cut" else b"x" * len(content))
    assert same(before, read(table))


def test_a_table_that_has_changed_is_read_again(table: Path) -> None:
    read(table)
    wait_for(table.with_suffix(".columns"))
    text = table.read_text()
    table.write_text("".join(line for line in text.splitlines(True) if ",999," not in line))
    assert {int(rows.frame[-1]) for rows in read(table)} == {998}
    table.write_text(text.replace("b,5,1,", "b,5,2,"))
    with pytest.raises(Error, match=r"is damaged \(the frames of object 2 in b are not in order"):
        read(table)


def test_a_folder_that_cannot_be_written_to(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert len(read(table)) == 5
    assert not table.with_suffix(".columns").exists()
