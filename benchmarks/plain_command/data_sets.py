"""The data sets: inputs of the command, truth of every film, and the scores of tracks."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ullayers.research.datasets import thrown_pillow, walking
from ullayers.video.scene import write_scene

from .films import HEIGHT, WIDTH, write_banding
from .scores import median_distance, on_object, pillow_scores, walk_scores, within
from .truth import OPAQUE, Bools, Boxes, Masks, Points, Track, Truth

WALK_ASPECT = 144 / 96
PILLOW_ASPECT = 720 / 1280
Image = np.ndarray[Any, Any]
SMALL = 0.02  # of the width: a small animal counts as found within this distance


@dataclass(frozen=True)
class Film:
    """A sequence with its truth. `source` is a video file or a folder of images."""

    name: str
    source: Path
    truth: Truth


@dataclass(frozen=True)
class DataSet:
    """Films that are scored together.

    Attributes:
        name: Name on the command line and in the table.
        inputs: Inputs of the command; each is learned from in a run of its own.
        films: The films that are scored.
        score: Scores of the tracks of all films, in the order of the films.
        goal: Name of the score by which the settings of MOG2 are chosen.
        lower_is_better: Whether that score is an error.
        apply_to: Input of `ul apply`, if the scored tracks are its output.
        options: Additional options of `ul learn`.
    """

    name: str
    inputs: list[Path]
    films: list[Film]
    score: Callable[[list[Truth], list[Track]], dict[str, float]]
    goal: str
    lower_is_better: bool = False
    apply_to: Path | None = None
    options: tuple[str, ...] = ()


def walk(data: Path, place: Path) -> DataSet:
    """Return twelve walking people, learned from and scored on whole sequences."""
    films = _walk_films(data, place / "walk", slice(None))
    return DataSet("walk", [place / "walk"], films, walk_scores, "r of x")


def halves(data: Path, place: Path) -> DataSet:
    """Return the walking people, learned from first halves and scored on second halves alone."""
    _walk_films(data, place / "first_halves", slice(None), half=0)
    films = _walk_films(data, place / "second_halves", slice(None), half=1)
    inputs = [place / "first_halves"]
    apply_to = place / "second_halves"
    return DataSet("halves", inputs, films, walk_scores, "r of x", apply_to=apply_to)


def walk_variants(data: Path, place: Path) -> list[DataSet]:
    """Return the walking people at other sizes and after changes that should not matter."""
    original = walk(data, place)
    sizes = [
        DataSet(
            f"walk, --size {size}",
            original.inputs,
            original.films,
            walk_scores,
            original.goal,
            options=("--size", str(size)),
        )
        for size in (48, 64, 96, 144)
    ]
    changes: dict[str, Callable[[Image], Image]] = {
        "half width": lambda image: cv2.resize(
            image, None, fx=0.5, fy=1, interpolation=cv2.INTER_AREA
        ),
        "double width": lambda image: cv2.resize(
            image, None, fx=2, fy=1, interpolation=cv2.INTER_LINEAR
        ),
        "mirrored": lambda image: image[:, ::-1],
        "darker by half": lambda image: image // 2,
    }
    sets = []
    for name, change in changes.items():
        folder = place / f"walk_{name.replace(' ', '_')}"
        films = _walk_films(data, folder, slice(None), change=change, mirror=name == "mirrored")
        sets.append(DataSet(f"walk, {name}", [folder], films, walk_scores, original.goal))
    folder = place / "walk_every_second_frame"
    films = _walk_films(data, folder, slice(None, None, 2))
    sets.append(DataSet("walk, every second frame", [folder], films, walk_scores, original.goal))
    return sizes + sets


def _walk_films(
    data: Path,
    folder: Path,
    rows: slice,
    *,
    half: int | None = None,
    change: Callable[[Image], Image] | None = None,
    mirror: bool = False,
) -> list[Film]:
    """Write some frames of every sequence, and return them with their truth."""
    films = []
    files = {}
    for scene in walking(data):
        middle = len(scene) // 2
        part = {None: rows, 0: slice(0, middle), 1: slice(middle, None)}[half]
        x = scene.truth["x"][part]
        points = np.stack([1 - x if mirror else x, np.full(len(x), np.nan)], 1)[:, None]
        files[scene.name] = scene.files[part]
        films.append(Film(scene.name, folder / scene.name, Points(points, WALK_ASPECT)))
    prepared(folder, lambda place: _write_pictures(place, files, change))
    return films


def pillow(data: Path, place: Path) -> DataSet:
    """Return all throws of the pillow; 32 of them have a truth."""
    known = {
        row["image"]: (float(row["x"]), float(row["y"]))
        for row in _read(data / "labelfree" / "cushion_truth.csv")
    }
    throws = thrown_pillow(data)
    folder = place / "pillow"
    films = []
    for throw in throws:
        missing = (np.nan, np.nan)
        points = np.array([known.get(file.name, missing) for file in throw.files])[:, None]
        films.append(Film(throw.name, folder / throw.name, Points(points, PILLOW_ASPECT)))
    files = {throw.name: throw.files for throw in throws}
    prepared(folder, lambda place: _write_pictures(place, files))
    goal = "median distance, of the frame"
    return DataSet("pillow", [folder], films, pillow_scores, goal, lower_is_better=True)


def mouse(data: Path, place: Path) -> DataSet:
    """Return the video of a mouse."""
    video = data / "tracktor" / "videos" / "mouse_video.mp4"
    rows = _read(data / "tracktor" / "output" / "mouse_video_tracked.csv")
    points = np.array([(float(row["pos_x"]), float(row["pos_y"])) for row in rows]) / (640, 480)
    film = Film(video.stem, video, Points(points[:, None], 480 / 640))
    goal = "median distance, % of the width"
    return DataSet("mouse", [video], [film], median_distance, goal, lower_is_better=True)


def demo(data: Path, place: Path) -> DataSet:
    """Return the video of `ul demo`."""

    def write(folder: Path) -> None:
        write_scene(folder)

    folder = prepared(place / "demo", write)
    rows = _read(folder / "truth.csv")
    points = np.array([(float(row["x"]), float(row["y"])) for row in rows])[:, None]
    video = folder / "scene.mp4"
    film = Film("scene", video, Points(points, 120 / 160))
    goal = "median distance, % of the width"
    return DataSet("demo", [video], [film], median_distance, goal, lower_is_better=True)


def banding(data: Path, place: Path) -> DataSet:
    """Return two small animals under light that flickers."""

    def write(folder: Path) -> None:
        np.save(folder / "truth.npy", write_banding(folder / "banding.mp4"))

    folder = prepared(place / "banding", write)
    video = folder / "banding.mp4"
    film = Film("banding", video, Points(np.load(folder / "truth.npy"), HEIGHT / WIDTH))
    return DataSet("banding", [video], [film], within(SMALL), "frames found")


def flies(data: Path, place: Path) -> DataSet:
    """Return two flies."""
    video = data / "flies" / "clip.mp4"
    rows = _read(data / "flies" / "truth.csv")
    points = np.full((1 + max(int(row["frame"]) for row in rows), 2, 2), np.nan)
    for row in rows:
        points[int(row["frame"]), int(row["animal"])] = float(row["x"]), float(row["y"])
    film = Film(video.stem, video, Points(points / 1024, 1.0))
    return DataSet("flies", [video], [film], within(SMALL), "frames found")


def pets(data: Path, place: Path) -> DataSet:
    """Return pedestrians on a campus."""
    video = data / "pets" / "vtest.avi"
    boxes: list[list[tuple[float, ...]]] = [[] for _ in range(795)]
    for row in _read(data / "pets" / "truth.csv"):
        left, top, width, height = (float(row[k]) for k in ("left", "top", "width", "height"))
        boxes[int(row["frame"])].append((left, top, left + width, top + height))
    scale = np.array([480, 360, 480, 360])
    truth = Boxes([np.array(some).reshape(-1, 4) / scale for some in boxes])
    return DataSet("pets", [video], [Film(video.stem, video, truth)], on_object, "frames found")


def davis(data: Path, place: Path) -> DataSet:
    """Return ten sequences with masks, each learned from alone."""
    films = []
    for folder in sorted((data / "davis" / "frames").iterdir()):
        files = sorted((data / "davis" / "masks" / folder.name).iterdir())
        masks = np.stack([_read_mask(file) for file in files])
        films.append(Film(folder.name, folder, Masks(masks)))
    inputs = [film.source for film in films]
    return DataSet("davis", inputs, films, on_object, "frames found", options=("--masks",))


SETS: dict[str, Callable[[Path, Path], DataSet]] = {
    "walk": walk,
    "halves": halves,
    "pillow": pillow,
    "mouse": mouse,
    "demo": demo,
    "banding": banding,
    "davis": davis,
    "flies": flies,
    "pets": pets,
}


def prepared(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder, and fill it first unless it exists."""
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        os.replace(partial, folder)
    return folder


def _write_pictures(
    place: Path,
    files: dict[str, tuple[Path, ...]],
    change: Callable[[Image], Image] | None = None,
) -> None:
    """Write a folder for each sequence, with its pictures numbered from 0."""
    for name, pictures in files.items():
        (place / name).mkdir()
        for number, file in enumerate(pictures):
            copy = place / name / f"{number:04d}{file.suffix}"
            if change is None:
                shutil.copyfile(file, copy)
            else:
                cv2.imwrite(str(copy), change(read_image(file)))


def read_image(file: Path, flag: int = cv2.IMREAD_COLOR) -> Image:
    image: Any = cv2.imread(str(file), flag)
    if image is None:
        raise ValueError(f"{file}: cannot be read")
    return np.asarray(image)


def _read_mask(file: Path) -> Bools:
    mask: Bools = read_image(file, cv2.IMREAD_GRAYSCALE) > OPAQUE
    return mask


def _read(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))
