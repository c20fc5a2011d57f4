"""The same animals in several videos of one command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

import ullayers as ul
from tests.films import contents
from ullayers.errors import RunError
from ullayers.run.folder import clear_run
from ullayers.run.parts import apply_part, join_parts
from ullayers.run.plan import Plan, load_plan
from ullayers.run.summary import summary_lines
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.masks import read_outlines, renumber_masks
from ullayers.tracks.reading import Track, read_crossings, read_tracks
from ullayers.tracks.tracked_video import read_videos
from ullayers.video.demo_films import AnimalPaths, render_animals, walk
from ullayers.video.files.writing import VideoWriter
from ullayers.video.sources import find_sources

SIDE = 160
CUT = 150  # the second film starts here
SEED = 5


@pytest.fixture(scope="module")
def paths() -> AnimalPaths:
    found = walk(2, crossings=6, seed=SEED)
    order = [np.argsort(found.x[t]).tolist() for t in (0, CUT)]
    assert order[0] != order[1], "numbers by place would not be the same"
    return found


def write_films(folder: Path, paths: AnimalPaths, variety: float) -> list[str]:
    """Write one scene as two films."""
    files = [folder / "a.mp4", folder / "b.mp4"]
    frames = list(render_animals(paths, SIDE, seed=SEED, variety=variety))[: 2 * CUT]
    for file, part in zip(files, (frames[:CUT], frames[CUT:]), strict=True):
        with VideoWriter(file, fps=25) as video:
            for frame in part:
                video.write(frame)
    return list(map(str, files))


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory, paths: AnimalPaths) -> list[str]:
    return write_films(tmp_path_factory.mktemp("films"), paths, variety=0.2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, films: list[str]) -> Plan:
    """With a still camera, a hardly trained network is enough."""
    folder = tmp_path_factory.mktemp("watched")
    for _ in ul.watch(films[0], size=16, max_frames=5, folder=folder):
        pass
    return load_plan(folder)


@pytest.fixture(scope="module")
def plain(run: Plan, films: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    export(run, find_sources(films), folder, ExportOptions(objects=None, masks=True))
    return folder


def animal_of(track: Track, paths: AnimalPaths) -> int:
    """Return the animal that a track follows most of the time."""
    start = CUT if track.sequence == "b" else 0
    offset = paths.x[start + track.frame] * SIDE - track.x_px[:, None]
    down = paths.y[start + track.frame] * SIDE - track.y_px[:, None]
    return int(np.bincount(np.hypot(offset, down).argmin(1)).argmax())


def recognised(folder: Path) -> dict[str, list[dict[str, object]]]:
    entries = json.loads((folder / "summary.json").read_text())["sequences"]
    return {entry["name"]: entry["recognised"] for entry in entries if "recognised" in entry}


def test_animals_have_the_same_number_in_both_films(plain: Path, paths: AnimalPaths) -> None:
    animals: dict[int, set[int]] = {}
    for track in read_tracks(plain / "tracks.csv"):
        animals.setdefault(track.object, set()).add(animal_of(track, paths))
    assert sorted(animals) == [1, 2]
    assert sorted(min(each) for each in animals.values()) == [0, 1]
    assert all(len(each) == 1 for each in animals.values())
    [(name, found)] = recognised(plain).items()
    assert name == "b"
    assert sorted(each["object"] for each in found) == [1, 2]  # type: ignore[type-var]
    assert all(each["video"] == "a" and each["confidence"] >= 0.95 for each in found)  # type: ignore[operator]


def test_masks_outlines_and_crossings_have_these_numbers(plain: Path) -> None:
    tracks = [track for track in read_tracks(plain / "tracks.csv") if track.sequence == "b"]
    mask = np.asarray(Image.open(plain / "masks" / "b" / "000090.png"))
    outlines = read_outlines(plain / "outlines.sqlite", "b", 90, 90)
    for track in tracks:
        row = int(np.flatnonzero(track.frame == 90)[0])
        assert mask[int(track.y_px[row]), int(track.x_px[row])] == track.object
        [outline] = (each for each in outlines[90] if each.object == track.object)
        place = float(track.x_px[row]), float(track.y_px[row])
        assert cv2.pointPolygonTest(outline.points, place, False) > 0
    for crossing in read_crossings(plain / "crossings.csv"):
        if crossing.sequence == "b":
            first, second = (
                next(each for each in tracks if each.object == number)
                for number in crossing.objects
            )
            rows = [np.searchsorted(each.frame, crossing.first_frame) for each in (first, second)]
            distance = np.hypot(
                first.x_px[rows[0]] - second.x_px[rows[1]],
                first.y_px[rows[0]] - second.y_px[rows[1]],
            )
            assert distance < 0.09 * SIDE, "one and a half lengths: they touch"


def test_identical_animals_are_not_recognised(
    run: Plan, paths: AnimalPaths, tmp_path: Path
) -> None:
    films = write_films(tmp_path, paths, variety=0.0)
    out = tmp_path / "out"
    export(run, find_sources(films), out, ExportOptions(objects=None))
    assert [track.object for track in read_tracks(out / "tracks.csv")] == [1, 2] * 2
    assert recognised(out) == {}


def test_a_fleet_and_a_resumed_export_give_the_same_numbers(
    run: Plan, plain: Path, films: list[str], tmp_path: Path
) -> None:
    sources = find_sources(films)
    options = ExportOptions(objects=None, masks=True)
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    notes = {source.name: apply_part(run, source, options, fleet) for source in sources}
    other = Path(shutil.copytree(fleet, tmp_path / "other"))
    merged = join_parts(run, sources, fleet, notes)
    for name in ("tracks.csv", "crossings.csv", "summary.json"):
        assert (fleet / name).read_bytes() == (plain / name).read_bytes()
    assert contents(fleet / "masks") == contents(plain / "masks")
    outlines = [read_outlines(each / "outlines.sqlite", "b", 0, CUT) for each in (fleet, plain)]
    assert repr(outlines[0]) == repr(outlines[1])
    # With the other numbers in the part of b, its objects get those that they do not have there.
    swapped = notes["b"].portraits[::-1]
    join_parts(run, sources, other, notes | {"b": replace(notes["b"], portraits=swapped)})
    first, second = (
        [each for each in read_tracks(folder / "tracks.csv") if each.sequence == "b"]
        for folder in (plain, other)
    )
    assert [each.x.tolist() for each in first] == [each.x.tolist() for each in second[::-1]]
    rows = (other / "tracks.csv").read_text().splitlines()
    assert rows[1:] == sorted(rows[1:], key=lambda row: (row[0], *map(int, row.split(",")[1:3])))
    masks = [np.asarray(Image.open(each / "masks/b/000090.png")) for each in (plain, other)]
    np.testing.assert_array_equal(masks[1], np.array([0, 2, 1])[masks[0]])
    found = [read_outlines(each / "outlines.sqlite", "b", 90, 90)[90] for each in (plain, other)]
    by_number = [{each.object: each.points.tolist() for each in some} for some in found]
    assert by_number[1] == {1: by_number[0][2], 2: by_number[0][1]}
    stopped = tmp_path / "stopped"

    def stop(count: int) -> None:
        if count > CUT:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(run, sources, stopped, ExportOptions(objects=None), stop)
    again = ExportOptions(objects=None, overlay=4, resume=True)
    resumed = export(run, sources, stopped, again)
    assert resumed.sequences[1]["recognised"] == merged.sequences[1]["recognised"]
    assert summary_lines(run, resumed)[1].startswith("In 1 sequence, objects were recognised")
    for name in ("tracks.csv", "crossings.csv"):
        expected = (plain / name).read_bytes()
        assert (stopped / name).read_bytes() == expected


def test_masks_get_other_numbers(plain: Path, tmp_path: Path) -> None:
    """In a fleet, objects have their final numbers only when all videos are finished."""
    before, other, again = plain / "masks" / "b", tmp_path / "other", tmp_path / "again"
    renumber_masks(before, other, [7, 1])
    first, second = (np.asarray(Image.open(each / "000090.png")) for each in (before, other))
    assert set(np.unique(first)) == {0, 1, 2}
    np.testing.assert_array_equal(second, np.array([0, 7, 1])[first])
    renumber_masks(other, again, [2, 0, 0, 0, 0, 0, 1])
    assert contents(again) == contents(before)


def test_a_table_that_was_cut_is_refused(plain: Path, tmp_path: Path) -> None:
    """Also at the end of a row, where its rows alone do not show it."""
    table = (plain / "tracks.csv").read_text()
    (tmp_path / "summary.json").write_bytes((plain / "summary.json").read_bytes())
    (tmp_path / "tracks.csv").write_text(table)
    assert len(read_videos(tmp_path)) == 2
    (tmp_path / "tracks.csv").write_text(table[: table.rindex("\n", 0, -1) + 1])
    with pytest.raises(RunError, match=r"tracks.csv: has \d+ of \d+ rows of b; write it again"):
        read_videos(tmp_path)


def test_exports_of_an_earlier_run_are_removed_with_it(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "tracks.csv").write_text("sequence,frame,time,x,y,confidence\n")
    names = "tracks.slp", "a.dlc.csv", "tracks.csv", "crossings.csv", "mine.txt"
    for name in names:
        (tmp_path / "export" / name).touch()
    clear_run(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["export", "mine.txt"]
