"""outlines.sqlite: polygons that enclose the masks, readable while they are written."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path as Polygon
from PIL import Image

from tests.exports import broken_middle, sources_in
from ullayers.errors import RunError
from ullayers.run.plan import Plan
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.masks import (
    OUTLINES,
    PARTIAL,
    SCHEMA,
    Contours,
    OutlineWriter,
    _decoded,
    encoded,
    find_outlines,
    read_outlines,
    remove_partial_outlines,
)
from ullayers.tracks.table import TRACK, Answer
from ullayers.video.sources import VideoError, find_sources


def drawn(polygons: list[Any], width: int, height: int) -> np.ndarray[Any, Any]:
    """The pixels whose middle is in a polygon."""
    middles = np.stack(np.meshgrid(np.arange(width), np.arange(height)), 2).reshape(-1, 2) + 0.5
    inside = [Polygon(points).contains_points(middles) for points in polygons]
    return np.asarray(np.any(inside, axis=0)).reshape(height, width)


def rows(folder: Path, sequence: str) -> list[Any]:
    found = read_outlines(folder / OUTLINES, sequence, 0, 99)
    return [(frame, each.object, each.points.tolist()) for frame in found for each in found[frame]]


SQUARE = np.ones((3, 3), np.uint8)


def part(first: int, count: int, **more: Any) -> Answer:
    """Frames in which a square moves to the right."""
    masks = np.zeros((count, 48, 64), np.uint8)
    for row in range(count):
        masks[row, 10:20, first + row : first + row + 10] = 255
    index = np.arange(first, first + count)
    return Answer("a", index, index / 25, TRACK, np.zeros((count, 3)), masks=masks, **more)


def test_polygons_enclose_the_masks_that_are_written(run: Plan, tmp_path: Path) -> None:
    [source] = sources_in(tmp_path / "in", 40)
    export(run, [source], tmp_path / "out", ExportOptions(masks=True))
    path = tmp_path / "out" / OUTLINES
    assert find_outlines(tmp_path / "out") == path
    found = read_outlines(path, source.name, 0, 39)
    for frame in range(40):
        mask = np.asarray(Image.open(tmp_path / f"out/masks/{source.name}/{frame:06d}.png")) > 0
        assert mask.any() == (frame in found)
        shown = drawn([each.points for each in found[frame]], *mask.shape[::-1])
        # Outlines are smooth, so they may leave those of the pixels by one pixel.
        inner, outer = (change(mask.astype(np.uint8), SQUARE) for change in (cv2.erode, cv2.dilate))
        assert (inner <= shown).all(), frame
        assert (shown <= outer).all(), frame
        border = mask.sum() - inner.sum()
        assert abs(shown.sum() - mask.sum()) <= border / 2, frame  # half a pixel on average
    assert {each.object for some in found.values() for each in some} == {1}
    assert list(read_outlines(path, source.name, 7, 9)) == [7, 8, 9]
    assert read_outlines(path, source.name, 40, 10**9) == {}
    assert read_outlines(path, "another", 0, 39) == {}


@pytest.mark.parametrize("scale", [1, 3, 7])
def test_polygons_of_larger_videos(scale: int) -> None:
    mask = np.zeros((1, 60, 80), np.uint8)
    cv2.ellipse(mask[0], (30, 25), (20, 9), 30, 0, 360, 255, -1)
    cv2.circle(mask[0], (66, 50), 8, 255, -1)
    whole = cv2.resize(mask[0], (80 * scale, 60 * scale), interpolation=cv2.INTER_LINEAR) >= 128
    place = 20, 10, 80 * scale, 60 * scale
    [polygons] = Contours((80, 60), place).of_masks(mask)
    assert len(polygons) == 2
    shown = drawn([points - (20, 10) for points in polygons], 80 * scale, 60 * scale)
    assert (shown & whole).sum() > 0.93 * (shown | whole).sum()
    assert sum(map(len, polygons)) < 100, "few points are enough"


def test_tracks_that_touch_and_single_pixels() -> None:
    owners = np.zeros((2, 40, 40), np.uint16)
    owners[0, 5:15, 5:15] = 300
    owners[0, 5:15, 15:25] = 7
    owners[0, 30, 30] = 9
    owners[0, 38:, 38:] = 300  # and somewhere else
    first, second = Contours((40, 40), (0, 0, 40, 40)).of_tracks(owners)
    assert second == {}
    assert set(first) == {7, 9, 300}
    assert len(first[300]) == 2
    for track, polygons in first.items():
        area = sum(cv2.contourArea(points) for points in polygons)
        assert area == (owners[0] == track).sum()


def test_reading_while_frames_are_added(tmp_path: Path) -> None:
    with OutlineWriter(tmp_path) as writer:
        writer.start("a", 64, 48)
        for first in (0, 10):
            writer.add(part(first, 10))
            path = find_outlines(tmp_path)
            assert path == tmp_path / PARTIAL
            assert list(read_outlines(path, "a", 0, 99)) == list(range(first + 10))
        writer.finish(None)
        writer.start("b", 64, 48)  # which does not end
        writer.add(part(0, 3))
        reader = sqlite3.connect(f"{(tmp_path / PARTIAL).as_uri()}?mode=ro", uri=True)
        rows = reader.execute("SELECT * FROM outlines")
        rows.fetchone()  # and does not go on while the writer ends
    remove_partial_outlines(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [OUTLINES], "no other files are left"
    assert len(rows.fetchall()) == 22
    reader.close()
    assert read_outlines(tmp_path / OUTLINES, "b", 0, 99) == {}
    [[outline], *_] = read_outlines(tmp_path / OUTLINES, "a", 3, 9).values()
    assert outline.points.tolist() == [[3, 10], [3, 20], [13, 20], [13, 10]]


def test_a_stopped_export_is_resumed(run: Plan, tmp_path: Path) -> None:
    sources = broken_middle(tmp_path / "in")
    out = tmp_path / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    assert (out / PARTIAL).exists()
    assert len(read_outlines(out / PARTIAL, "film0", 0, 99)) == 12
    assert read_outlines(out / PARTIAL, "film1", 0, 99) == {}, "it is not in the table either"
    sources_in(tmp_path / "in", 12, 12, 12)
    whole = find_sources([str(tmp_path / "in")])
    export(run, whole, out, ExportOptions(resume=True))
    assert not (out / PARTIAL).exists()
    export(run, whole, tmp_path / "at_once", ExportOptions())
    for source in whole:
        assert rows(out, source.name) == rows(tmp_path / "at_once", source.name) != []


def test_nothing_is_left_of_an_export_that_finished_nothing(run: Plan, tmp_path: Path) -> None:
    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(run, sources_in(tmp_path / "in", 30), tmp_path / "out", ExportOptions(), stop)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_damaged_partial_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / PARTIAL).write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match=r"outlines.partial.sqlite: is damaged; start again"):
        OutlineWriter(tmp_path, ["a"])
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    (tmp_path / PARTIAL).unlink()
    os.link(other, tmp_path / PARTIAL)
    with OutlineWriter(tmp_path, ["a"]):  # a link is never written through
        pass
    assert other.read_bytes() == b"something else"


@given(
    st.lists(
        st.lists(st.tuples(*[st.integers(-(2**20), 2**20)] * 2), min_size=1, max_size=40),
        max_size=5,
    )
)
def test_polygons_as_bytes(polygons: list[list[tuple[int, int]]]) -> None:
    arrays = [np.array(points, np.int32) for points in polygons]
    decoded = _decoded(encoded(arrays))
    assert [points.tolist() for points in decoded] == [points.tolist() for points in arrays]


def hostile(path: Path, *statements: str) -> Path:
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    columns = "i AS sequence, i AS frame, i AS object, i AS polygons"
    sequence = "INSERT INTO sequences VALUES (1, 'a', 1)"
    (tmp_path / "text").write_text("no database\n" * 1000)
    (tmp_path / "cut").write_bytes(hostile(tmp_path / "whole", *SCHEMA).read_bytes()[:5000])
    os.mkfifo(tmp_path / "pipe")
    bad = [tmp_path / name for name in ("text", "cut", "pipe", "missing")]
    views = f"CREATE VIEW outlines AS SELECT {columns} FROM ({endless})"
    bad.append(hostile(tmp_path / "view", SCHEMA[0], views, sequence))
    for number, polygons in enumerate(["'text'", "12", "x'0102'", "x'01FFFFFFFF0000000000000000'"]):
        row = f"INSERT INTO outlines VALUES (1, 5, 1, {polygons})"
        bad.append(hostile(tmp_path / f"row{number}", *SCHEMA, sequence, row))
    for path in bad:
        with pytest.raises(RunError, match=rf"{path.name}: cannot be read \(.*\); apply the run"):
            read_outlines(path, "a", 0, 10)
