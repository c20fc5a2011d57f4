"""Behaviour tables, compared with motion that is known."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.output.made_tracks import FPS, HEIGHT, WIDTH, track_of, wanderers, write_tables
from ullayers.errors import RunError
from ullayers.tracks.behaviour import (
    BEHAVIOUR_COLUMNS,
    ZONE_COLUMNS,
    Scene,
    Zones,
    behaviour_rows,
    measure_folder,
    measure_scenes,
    write_behaviour,
    zone_rows,
)
from ullayers.tracks.reading import Track, read_crossings, read_tracks

SIZES = {"a": (WIDTH, HEIGHT)}
HALVES = Zones({"left": [(0, 0), (320, 0), (320, 480), (0, 480)]})


def measured(*tracks: Track) -> list[Scene]:
    return measure_scenes(tracks, SIZES)


def test_distance_and_speed_of_straight_motion() -> None:
    x = np.concatenate([np.full(50, 50.0), 50 + 4 * np.arange(1, 101)])  # 100 pixels per second
    [row] = behaviour_rows(measured(track_of(x, np.full(150, 99.0), length=20)))
    assert row["seconds"] == pytest.approx(6)
    assert row["distance_px"] == pytest.approx(400, rel=0.01)
    assert row["mean_speed_px_per_s"] == pytest.approx(400 / 6, rel=0.02)
    assert row["p95_speed_px_per_s"] == pytest.approx(100, rel=0.01)
    assert row["moving_share"] == pytest.approx(100 / 150, abs=0.03)
    assert row["moving_from_px_per_s"] == 5
    assert row["nearest_px"] is None


def test_frames_with_low_confidence_do_not_count() -> None:
    x = np.arange(0, 400, 4.0)
    x[40:60] = 600  # far away while lost
    confidence = np.where((np.arange(100) >= 40) & (np.arange(100) < 60), 0.49, 0.5)
    [scene] = measured(track_of(x, np.full(100, 50.0), confidence=confidence))
    [row], [zone] = behaviour_rows([scene]), zone_rows([scene], HALVES)
    assert row["seconds"] == pytest.approx(80 / FPS)
    assert row["distance_px"] == pytest.approx(4 * (39 + 39), rel=0.02)
    assert zone["time_in_zone"] == pytest.approx(60 / FPS)
    assert zone["share"] == pytest.approx(60 / 80)


def test_rows_that_are_missing_are_gaps() -> None:
    frame = np.concatenate([np.arange(50), np.arange(500, 550)])
    x = np.concatenate([np.full(50, 10.0), np.full(50, 600.0)])
    full = track_of(np.full(550, 300.0), np.full(550, 50.0), number=2)
    [scene] = measured(track_of(x, np.full(100, 50.0), frame=frame), full)
    row = behaviour_rows([scene])[0]
    assert row["distance_px"] == pytest.approx(0, abs=1e-6)
    assert row["seconds"] == pytest.approx(100 / FPS)


def test_every_fifth_frame_is_consecutive() -> None:
    frame = np.arange(0, 500, 5)
    [row] = behaviour_rows(measured(track_of(frame / 5, np.zeros(100), frame=frame)))
    assert row["seconds"] == pytest.approx(20)
    assert row["distance_px"] == pytest.approx(99)


def test_nearest_neighbour() -> None:
    y = np.full(10, 100.0)
    first, second = track_of(np.full(10, 100.0), y), track_of(np.full(10, 130.0), y, number=2)
    third = track_of(np.full(10, 180.0), y, number=3, confidence=np.r_[np.ones(5), np.zeros(5)])
    rows = behaviour_rows(measured(first, second, third))
    assert [row["nearest_px"] for row in rows] == [30, 30, 50]


def test_visits_of_a_zone() -> None:
    """Outside, inside, outside for a moment, inside, outside for two seconds, inside."""
    inside = np.repeat([0, 1, 0, 1, 0, 1], [25, 50, 3, 47, 50, 25])
    x = np.where(inside, 100.0, 500.0)
    [row] = zone_rows(measured(track_of(x, np.full(200, 9.0))), HALVES)
    assert row["entries"] == 2
    assert row["first_entry"] == 1
    assert row["time_in_zone"] == pytest.approx(122 / FPS)
    assert row["share"] == pytest.approx(122 / 200)


def test_distance_is_divided_among_zones() -> None:
    zones = Zones({**HALVES.zones, "right": [(320, 0), (640, 0), (640, 480), (320, 480)]})
    [track], _ = wanderers(1)
    scenes = measured(track)
    [row], both = behaviour_rows(scenes), zone_rows(scenes, zones)
    assert sum(zone["distance_px"] for zone in both) == pytest.approx(row["distance_px"])
    assert sum(zone["time_in_zone"] for zone in both) == pytest.approx(row["seconds"])


def test_object_that_is_never_found() -> None:
    lost = track_of(np.full(20, 50.0), np.full(20, 50.0), confidence=0.1)
    scenes = measured(lost)
    [row], [zone] = behaviour_rows(scenes), zone_rows(scenes, HALVES)
    assert (row["seconds"], row["distance_px"], row["moving_share"]) == (0, None, None)
    assert (zone["time_in_zone"], zone["entries"], zone["first_entry"]) == (0, 0, None)


@pytest.mark.parametrize("objects", [1, 2, 5, 20])
def test_tables_of_a_folder(objects: int, tmp_path: Path) -> None:
    write_tables(tmp_path, *wanderers(objects, frames=200))
    scenes = measure_scenes(read_tracks(tmp_path / "tracks.csv"), SIZES)
    written = write_behaviour(tmp_path, scenes, HALVES, 0.5)
    assert [path.name for path in written] == ["behaviour.csv", "zones.csv"]
    for path, columns in zip(written, (BEHAVIOUR_COLUMNS, ZONE_COLUMNS), strict=True):
        with open(path) as file:
            rows = list(csv.DictReader(file))
        assert tuple(rows[0])[: len(columns)] == columns
        assert [int(row["object"]) for row in rows] == list(range(1, objects + 1))
        for row in rows:
            pixels, millimetres = float(row["distance_px"]), float(row["distance_mm"])
            assert millimetres == pytest.approx(pixels / 2, abs=1e-4)
    assert len(read_crossings(tmp_path / "crossings.csv")) == (0, 5 * objects)[objects > 1]


def test_nothing_was_found(tmp_path: Path) -> None:
    (tmp_path / "tracks.csv").write_text("sequence,frame,object,time,x,y,confidence\n")
    scenes = measure_folder(tmp_path, [{"name": "a", "width": WIDTH, "height": HEIGHT}])
    write_behaviour(tmp_path, scenes, HALVES, 0.5)
    for name in ("behaviour.csv", "zones.csv"):
        [header] = (tmp_path / name).read_text().splitlines()
        assert "distance_px" in header
        assert "distance_mm" in header


def test_one_sequence_at_a_time(tmp_path: Path) -> None:
    """Rows are sorted by sequence, whatever the order of the sequences in the table."""
    write_tables(tmp_path, *wanderers(3, frames=200))
    header, *rows = (tmp_path / "tracks.csv").read_text().splitlines(keepends=True)
    names = ("b", "c", "a")
    other = [name + row[row.index(",") :] for name in names for row in rows]
    (tmp_path / "tracks.csv").write_text("".join([header, *other]))
    entries = [{"name": name, "width": WIDTH, "height": HEIGHT} for name in names]
    scenes = measure_folder(tmp_path, entries)
    assert next(scenes).sequence == "b"
    write_behaviour(tmp_path, measure_folder(tmp_path, entries))
    with open(tmp_path / "behaviour.csv") as file:
        lines = list(csv.reader(file))[1:]
    assert [tuple(line[:2]) for line in lines] == [(name, n) for name in "abc" for n in "123"]
    assert len({tuple(line[1:]) for line in lines}) == 3, "the same in each sequence"


def test_damaged_crossings(tmp_path: Path) -> None:
    path = tmp_path / "crossings.csv"
    assert read_crossings(path) == []
    for text in ("sequence\na\n", "", f"{','.join(['sequence'] * 7)}\n"):
        path.write_text(text)
        with pytest.raises(RunError, match="damaged"):
            read_crossings(path)
    header = "sequence,first_frame,last_frame,start,end,objects,confidence\n"
    for row in ("a,1,2,0,0,1 2,7\n", "a,1,2,0,0,1 x,1\n", "a,1\n"):
        path.write_text(header + row)
        with pytest.raises(RunError, match="damaged"):
            read_crossings(path)
