"""The option --objects: the real command on films with several objects."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.command import UlCommand, check_refused
from tests.films import write_pictures
from ullayers.cli.main import main
from ullayers.tracks.masks import read_outlines
from ullayers.tracks.reading import read_crossings, read_tracks
from ullayers.video.files.writing import VideoWriter

FAST = "--size", "16", "--restarts", "1", "--steps", "5", "--quiet"
FRAMES = 240
PART = "--quiet", "--max-frames", "150"  # the discs meet and part once


def paths() -> np.ndarray:
    """Return (frames, 2, 2) places of two discs that meet three times."""
    t = np.arange(FRAMES)
    wave = 110 + 70 * np.cos(2 * np.pi * t / 160)
    return np.stack(
        [np.stack([wave, 62 + 0 * t], 1), np.stack([220 - wave, 78 + 0 * t], 1)], axis=1
    )


def write_film(path: Path, places: np.ndarray, shake: float = 0.0) -> str:
    """Write discs of different grey in front of a noisy wall; the camera shakes by some pixels."""
    rng = np.random.default_rng(0)
    wall = cv2.GaussianBlur(rng.normal(170, 40, (140, 220, 3)).astype(np.float32), (0, 0), 3)
    with VideoWriter(path, fps=25) as video:
        for t, discs in enumerate(places):
            frame = wall.copy()
            for i, (x, y) in enumerate(discs):
                cv2.circle(
                    frame, (round(16 * x), round(16 * y)), 9 * 16, (20 + 15 * i,) * 3, -1, 0, 4
                )
            if shake:
                frame = cv2.warpAffine(
                    frame, view(t, shake), (220, 140), borderMode=cv2.BORDER_REFLECT
                )
            frame = frame + rng.normal(0, 3, wall.shape)
            video.write(frame.clip(0, 255).astype(np.uint8))
    return str(path)


def view(t: int, shake: float) -> np.ndarray:
    """Return the view of a hand-held camera in a frame."""
    right, down = shake * np.sin(t / 11), shake * np.cos(t / 17)
    return np.array([[1, 0, right], [0, 1, down]])


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_film(tmp_path_factory.mktemp("film") / "two.mp4", paths())


@pytest.fixture(scope="module")
def run(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "run"
    assert main(["learn", film, "--out", str(folder), "--masks", *FAST]) == 0
    return folder


@pytest.fixture(scope="module")
def film_of_one(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_film(tmp_path_factory.mktemp("one") / "one.mp4", paths()[:150, :1])


def test_both_are_found_with_their_identities(run: Path) -> None:
    truth = paths()
    tracks = read_tracks(run / "tracks.csv")
    assert [track.object for track in tracks] == [1, 2]
    for track in tracks:
        assert track.frame.tolist() == list(range(FRAMES))
        found = np.stack([track.x_px, track.y_px], 1)
        distance = np.linalg.norm(found[:, None] - truth - 0.5, axis=2)
        own = int(distance[0].argmin())
        assert np.median(distance[:, own]) < 1
        assert (distance[:, own] < 9).mean() > 0.98, "the same disc in all frames"
        assert np.median(track.area) == pytest.approx(np.pi * 81, rel=0.25)
        assert (track.confidence >= 0.5).mean() > 0.95
    summary = json.loads((run / "summary.json").read_text())
    assert summary["sequences"][0]["objects"] == 2
    assert summary["trusted"], summary["reasons"]


def test_every_meeting_is_listed(run: Path) -> None:
    crossings = read_crossings(run / "crossings.csv")
    near = np.flatnonzero(np.abs(np.diff(paths()[:, :, 0], axis=1)[:, 0]) < 8)
    meetings = np.split(near, np.flatnonzero(np.diff(near) > 1) + 1)
    for meeting in meetings:
        during = [each for each in crossings if each.first_frame <= meeting[0] <= each.last_frame]
        assert during, meeting
        assert during[0].objects == (1, 2)
        assert during[0].start == pytest.approx(during[0].first_frame / 25)
        assert 0.5 < during[0].confidence <= 1


def test_soft_masks_are_of_one_object(
    run: Path, film: str, tmp_path: Path, here: UlCommand
) -> None:
    apply = ("apply", run, film, "--soft-masks", *PART, "--out")
    check_refused(here(*apply, tmp_path / "no", "--objects", "2"), "--soft-masks", "one object")
    assert here(*apply, tmp_path / "out", "--objects", "auto")[0] == 0
    with Image.open(tmp_path / "out" / "masks" / "two" / "000003.png") as mask:
        assert mask.mode == "P"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["notes"] == {"two": ["Masks of several objects have no soft edges."]}


def test_masks_are_numbered(run: Path) -> None:
    tracks = read_tracks(run / "tracks.csv")
    for frame in (3, 100, FRAMES - 1):
        mask = np.asarray(Image.open(run / "masks" / "two" / f"{frame:06d}.png"))
        assert mask.shape == (140, 220)
        assert set(np.unique(mask)) == {0, 1, 2}
        for track in tracks:
            rows, columns = np.nonzero(mask == track.object)
            place = columns.mean() + 0.5, rows.mean() + 0.5
            assert np.hypot(place[0] - track.x_px[frame], place[1] - track.y_px[frame]) < 2


def test_outlines_are_numbered(run: Path) -> None:
    tracks = read_tracks(run / "tracks.csv")
    outlines = read_outlines(run / "outlines.sqlite", "two", 0, FRAMES - 1)
    assert list(outlines) == list(range(FRAMES))
    for frame in (3, 100, FRAMES - 1):
        assert [each.object for each in outlines[frame]] == [1, 2]
        for outline, track in zip(outlines[frame], tracks, strict=True):
            place = outline.points.min(0) / 2 + outline.points.max(0) / 2
            assert np.hypot(place[0] - track.x_px[frame], place[1] - track.y_px[frame]) < 2
            assert cv2.contourArea(outline.points) == pytest.approx(track.area[frame], rel=0.1)


def test_one_object_on_request(run: Path, film: str, tmp_path: Path, here: UlCommand) -> None:
    out = tmp_path / "one"
    status, _, errors = here("apply", run, film, "--objects", "1", "--out", out, *PART)
    assert status == 0
    assert "track several with --objects" in errors
    with open(out / "tracks.csv") as file:
        rows = list(csv.reader(file))
    assert {row[2] for row in rows} == {"object", "1"}
    assert len(rows) == 150 + 1
    assert not (out / "crossings.csv").exists()


def test_more_than_there_are(run: Path, film: str, tmp_path: Path, here: UlCommand) -> None:
    out = tmp_path / "three"
    status, _, errors = here("apply", run, film, "--objects", "3", "--out", out, *PART)
    assert (status, errors) == (0, "ul apply: warning: two: 2 of 3 objects found\n")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["notes"] == {"two": ["2 of 3 objects found."]}
    assert len(read_tracks(out / "tracks.csv")) == 2


def test_several_films_in_one_table(
    run: Path, film: str, film_of_one: str, tmp_path: Path, here: UlCommand
) -> None:
    """A film with one object beside one with two: every row has the number of its object."""
    out = tmp_path / "both"
    status, _, _ = here("apply", run, film_of_one, film, "--out", out, "--overlay", *PART)
    assert status == 0
    found = [(track.sequence, track.object) for track in read_tracks(out / "tracks.csv")]
    assert found == [("one", 1), ("two", 1), ("two", 2)]
    objects = {
        entry["name"]: entry["objects"]
        for entry in json.loads((out / "summary.json").read_text())["sequences"]
    }
    assert objects == {"one": 1, "two": 2}
    assert (out / "crossings.csv").exists()
    assert here("apply", run, film_of_one, "--out", out, "--force", *PART)[0] == 0
    assert not (out / "crossings.csv").exists(), "results of several objects are replaced"
    assert len(read_tracks(out / "tracks.csv")) == 1


def test_a_camera_that_moves(run: Path, film: str, tmp_path: Path, here: UlCommand) -> None:
    """A film too short to show a still scene is treated like one of a moving camera."""
    out = tmp_path / "short"
    arguments = "--max-frames", "40", "--objects", "2", "--out", out, "--quiet"
    (run / "scenes.safetensors").rename(tmp_path / "scenes")
    try:
        status, _, errors = here("apply", run, film, *arguments)
    finally:
        (tmp_path / "scenes").rename(run / "scenes.safetensors")
    assert status == 0
    assert "only the main object was tracked" in errors
    assert len(read_tracks(out / "tracks.csv")) == 1


@pytest.mark.parametrize("number", ["0", "-1", "many", "65", "1.5"])
def test_numbers_that_are_refused(number: str, here: UlCommand, tmp_path: Path) -> None:
    check_refused(
        here("learn", "film.mp4", "--objects", number, "--out", tmp_path / "r"), "objects"
    )


def test_codes_have_no_objects(film: str, here: UlCommand, tmp_path: Path) -> None:
    asked = "--task", "orient", "--objects", "2", "--out", tmp_path / "run"
    check_refused(here("learn", film, *asked), "--objects is for --task locate")


def test_watching_several(film: str, tmp_path: Path, here: UlCommand) -> None:
    out = tmp_path / "watched"
    watch = "watch", film, "--size", "16", "--out", out
    status, table, errors = here(*watch, "--max-frames", "60")
    assert (status, errors) == (0, "")
    assert table == (out / "tracks.csv").read_text(), "rows are printed and saved"
    columns = "sequence,frame,object,time,x,y,confidence,x_px,y_px"
    assert table.splitlines()[0] == columns
    check_refused(here(*watch, "--resume", "--objects", "2"), "leave --objects out")
    assert here(*watch, "--resume", "--max-frames", "100", "--quiet") == (0, "", "")
    tracks = read_tracks(out / "tracks.csv")
    assert [track.object for track in tracks] == [1, 2]
    truth = paths()
    for track in tracks:
        assert track.frame[-1] == 60 + 100 - 1, "after two meetings"
        found = np.stack([track.x_px, track.y_px], 1)
        distance = np.linalg.norm(found[:, None] - truth[track.frame] - 0.5, axis=2)
        assert np.median(distance[:, int(distance[0].argmin())]) < 1.5
    whole = tmp_path / "whole"
    again = "watch", film, "--size", "16", "--out", whole, "--objects", "auto", "--quiet"
    assert here(*again, "--max-frames", "160") == (0, "", "")
    assert (whole / "tracks.csv").read_bytes() == (out / "tracks.csv").read_bytes()


def test_watching_one_is_not_continued_with_several(
    film: str, tmp_path: Path, here: UlCommand
) -> None:
    out = tmp_path / "one"
    watch = "watch", film, "--size", "16", "--max-frames", "5", "--out", out
    status, table, _ = here(*watch, "--objects", "1")
    assert status == 0
    assert table.startswith("sequence,frame,object,time,x,y,confidence,x_px,y_px\n")
    check_refused(here(*watch, "--resume", "--objects", "auto"), "leave --objects auto out")
    check_refused(here(*watch, "--force", "--task", "orient", "--objects", "auto"), "locate")


def test_watching_says_that_nothing_was_found(tmp_path: Path, here: UlCommand) -> None:
    still = np.random.default_rng(0).integers(100, 110, (40, 60, 80, 3), np.uint8)
    folder = write_pictures(tmp_path / "still", still)
    for options in ((), ("--objects", "2")):
        status, table, errors = here("watch", folder, *options)
        assert (status, len(table.splitlines())) == (0, 1)
        assert errors.startswith("ul watch: no object was found: nothing has moved")
    assert here("watch", folder, "--objects", "1")[2] == ""


def test_watching_several_in_a_region(film: str, here: UlCommand) -> None:
    """Positions are those in the whole frame."""
    arguments = "--objects", "2", "--roi", "0,40,220,60", "--max-frames", "60"
    status, table, _ = here("watch", film, "--size", "16", *arguments)
    assert status == 0
    last = [row.split(",") for row in table.splitlines() if row.startswith("two,59,")]
    found = np.array([[float(row[7]), float(row[8])] for row in last])
    distance = np.linalg.norm(found[:, None] - paths()[59] - 0.5, axis=2)
    assert sorted(distance.argmin(1)) == [0, 1]
    assert distance.min(1).max() < 2


def test_several_are_found_before_a_camera_held_by_hand(run: Path, tmp_path: Path) -> None:
    places = paths()[:160]
    film = write_film(tmp_path / "shaken.mp4", places, shake=4.0)
    assert main(["apply", str(run), film, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    with open(tmp_path / "out" / "tracks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["object"] for row in rows} == {"1", "2"}
    apart = []
    for row in rows:
        t = int(row["frame"])
        true = [view(t, 4.0) @ (*place, 1) + 0.5 for place in places[t]]
        found = float(row["x_px"]), float(row["y_px"])
        apart.append(min(np.hypot(*(found - place)) for place in true))
    assert len(rows) > 300
    assert np.quantile(apart, 0.9) < 3
