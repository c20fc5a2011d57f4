"""The section of the report on where and how objects moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.output.made_tracks import HEIGHT, WIDTH, track_of, wanderers
from tests.pages import NASTY, Page, chart_named, labels, make, samples, track
from ullayers.report.behaviour import (
    _binned,
    _edges,
    _middles,
    _spans,
    heat_map,
    path_map,
    time_per_cell,
)
from ullayers.report.page import Contents, write_report
from ullayers.tracks.behaviour import Zones, measure_scenes
from ullayers.tracks.masks import identity_hex

pytestmark = pytest.mark.usefixtures("full_reports")

ZONES = Zones({"nest <1>": [(60, 60), (230, 60), (230, 200), (60, 200)]})
MAPS = 2  # a heat map and the paths


def page_of(folder: Path, objects: int) -> Page:
    tracks, crossings = wanderers(objects, frames=400)
    scenes = measure_scenes(tracks, {"a": (WIDTH, HEIGHT)})
    contents = Contents(
        title="x",
        samples=samples(1),
        answers=[track()],
        scenes=scenes,
        crossings=crossings,
        zones=ZONES,
        mm_per_pixel=0.5,
    )
    return make(folder, contents)


@pytest.mark.parametrize("objects", [2, 5, 20])
def test_several_objects(objects: int, tmp_path: Path) -> None:
    page = page_of(tmp_path, objects)
    assert "behaviour" in page.ids
    assert not {"time", "speed", "scatter"} & set(page.ids), "they show one object only"
    assert len(page.images) == 1 + MAPS + objects
    for number in range(1, objects + 1):
        assert identity_hex(number) in page.text
    for name in ("presence and crossings", "speed distribution"):
        assert {str(number) for number in range(1, objects + 1)} <= labels(chart_named(page, name))
    assert "nearest neighbour (mm)" in labels(chart_named(page, "nearest neighbour over time"))
    assert "keeps its number" in page.said
    for text in ("nest <1>", "Crossings, least certain first", "first entry (s)", "distance (mm)"):
        assert text in page.said


def test_one_object(tmp_path: Path) -> None:
    page = page_of(tmp_path, 1)
    assert {"behaviour", "time"} <= set(page.ids)
    assert "share of the time (%)" in labels(chart_named(page, "speed distribution"))
    assert "nearest neighbour" not in page.said
    assert "Crossings" not in page.said


def test_objects_that_are_never_found(tmp_path: Path) -> None:
    lost = track_of(np.full(5, 50.0), np.full(5, 50.0), confidence=0.1, sequence=NASTY)
    scenes = measure_scenes([lost, replace(lost, object=2)], {NASTY: (WIDTH, HEIGHT)})
    # Without frames, the maps are blank, which `make` would refuse.
    write_report(tmp_path / "report.html", Contents("x", scenes=scenes, zones=ZONES))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "unknown" in text
    assert "<script" not in text


def test_heat_is_where_the_time_was_spent() -> None:
    x = np.concatenate([np.full(90, 100.0), np.full(10, 500.0)])
    [scene] = measure_scenes([track_of(x, np.full(100, 240.0))], {"a": (WIDTH, HEIGHT)})
    seconds = time_per_cell(scene, [0])
    assert seconds.shape == (48, 64)
    assert seconds.sum() == pytest.approx(4, rel=0.01)
    assert divmod(int(seconds.argmax()), 64) == (24, 10)
    frame = np.zeros((90, 120), np.uint8)
    picture = heat_map(scene, [0], frame, ZONES.polygons(WIDTH, HEIGHT)).astype(int)
    assert picture.shape == (480, 640, 3)
    assert picture[240, 100].sum() > picture[240, 500].sum() > picture[400, 300].sum()
    assert (picture[60, 150] == 255).all(), "a side of the zone"
    assert path_map(scene, None, {}).shape == (480, 640, 3)
    tall = replace(scene, width=16, height=2000)
    assert heat_map(tall, [0], None, {}).shape == path_map(tall, None, {}).shape == (4000, 32, 3)


@pytest.mark.parametrize("rate", [10, 25])
def test_an_object_seen_in_all_frames_has_a_bar_without_gaps(rate: int) -> None:
    [one], _ = wanderers(1, frames=300)  # as many frames as a chart has time bins
    [scene] = measure_scenes([one.changed(time=one.frame / rate)], {"a": (WIDTH, HEIGHT)})
    edges = _edges(scene)
    [(start, length)] = _spans(_middles(scene, 0), edges)
    assert (start, start + length) == pytest.approx((0, 300 / rate))
    assert np.isfinite(_binned(_middles(scene, 0), np.ones(300), edges)).all()
