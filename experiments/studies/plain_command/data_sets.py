"""The data sets: inputs of the command, truth of every film, and the scores of tracks.

Synthetic films: two small animals under flickering light, and three without any object.
"""

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
from numpy.random import Generator
from numpy.typing import NDArray

from experiments.datasets import thrown_pillow, walking
from ullayers.video.demo_films import write_scene
from ullayers.video.files.writing import VideoWriter

from .scores import (
    OPAQUE,
    Bools,
    Boxes,
    Masks,
    Points,
    Track,
    Truth,
    median_distance,
    on_object,
    pillow_scores,
    walk_scores,
    within,
)

Floats = NDArray[np.floating[Any]]

FPS = 25
WIDTH, HEIGHT, FRAMES = 1920, 1080, 400  # of the film with banding
BANDING = 0.08  # relative amplitude of the bands
BANDS = 2.6  # periods of the light while the shutter passes over one frame
ROLL = 0.13  # periods by which the bands move from frame to frame
LIGHT_DRIFT = 0.06  # relative amplitude
NOISE = 0.02  # standard deviation of the sensor noise, for values of 0..1
NOISE_FIELDS = 8  # different noise fields, of which frames use random shifts
COLOUR = 0.2  # strength of the colours of a texture relative to its light and dark
ANIMAL = (6, 10)  # half the width and length in pixels
DARKNESS = 0.3  # brightness of an animal relative to the background


def write_banding(path: Path, seed: int = 0) -> Floats:
    """Write two animals on a still background under mains light; return (time, 2, 2) positions.

    Positions are x and y in 0..1.
    """
    random = np.random.default_rng(seed)
    background = texture(random, HEIGHT, WIDTH)
    paths = [_wander(random, side) for side in (0, 1)]
    noise = _noise_fields(random, HEIGHT, WIDTH)
    rows = np.arange(HEIGHT)[:, None, None] / HEIGHT
    with VideoWriter(path, FPS) as video:
        for t in range(FRAMES):
            frame = background.copy()
            for places, headings in paths:
                _draw_animal(frame, places[t], headings[t])
            bands = 1 + BANDING * np.sin(2 * np.pi * (BANDS * rows + ROLL * t))
            light = 1 + LIGHT_DRIFT * np.sin(2 * np.pi * t / FRAMES * 0.8)
            frame *= (light * bands).astype(np.float32)
            video.write(_exposed(frame, noise, random))
    return np.stack([places / (WIDTH, HEIGHT) for places, _ in paths], 1)


def _wander(random: Generator, side: int) -> tuple[Floats, Floats]:
    """Return places (time, 2) in pixels and headings of an animal that stays in one half.

    It walks a while, turning a little in every frame, and then pauses a while.
    """
    low = np.array([WIDTH / 2 * side, 0]) + 60
    high = np.array([WIDTH / 2 * (side + 1), HEIGHT]) - 60
    place = random.uniform(low, high)
    heading = random.uniform(0, 2 * np.pi)
    places, headings = [], []
    left, speed = 0, 0.0
    for _ in range(FRAMES):
        if left == 0:
            speed = random.uniform(2, 6) if speed == 0 else 0.0
            left = int(random.integers(30, 80) if speed else random.integers(15, 50))
        left -= 1
        heading += random.normal(0, 0.08) if speed else 0.0
        step = place + speed * np.array([np.cos(heading), np.sin(heading)])
        if ((step < low) | (step > high)).any():
            centre = (low + high) / 2 - place
            heading = np.arctan2(centre[1], centre[0])
        else:
            place = step
        places.append(place)
        headings.append(heading)
    return np.array(places), np.array(headings)


def _draw_animal(frame: Floats, place: Floats, heading: float) -> None:
    x, y = place
    reach = ANIMAL[1] + 2
    left, top = int(x) - reach, int(y) - reach
    rows, columns = np.mgrid[top : top + 2 * reach + 1, left : left + 2 * reach + 1]
    along = (columns + 0.5 - x) * np.cos(heading) + (rows + 0.5 - y) * np.sin(heading)
    across = (rows + 0.5 - y) * np.cos(heading) - (columns + 0.5 - x) * np.sin(heading)
    radius = np.hypot(across / ANIMAL[0], along / ANIMAL[1])
    alpha = ((1 - radius) * ANIMAL[0] + 0.5).clip(0, 1)[..., None]
    frame[top : top + 2 * reach + 1, left : left + 2 * reach + 1] *= 1 - (1 - DARKNESS) * alpha


def texture(random: Generator, height: int, width: int) -> Floats:
    """Return a picture (height, width, 3) with details of all sizes, values of 0..1."""
    picture = np.zeros((height, width, 3), np.float32)
    cells = 4
    while cells <= height:
        coarse = random.standard_normal((cells, cells * width // height, 3)).astype(np.float32)
        coarse = COLOUR * coarse + coarse[..., :1]  # mostly grey
        picture += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) * cells**-0.3
        cells *= 2
    found: Floats = (0.5 + 0.12 * picture / picture.std()).clip(0.1, 0.9)
    return found


def _noise_fields(random: Generator, height: int, width: int) -> Floats:
    return NOISE * random.standard_normal((NOISE_FIELDS, height, width, 3), np.float32)


def _exposed(frame: Floats, noise: Floats, random: Generator) -> NDArray[np.uint8]:
    """Add sensor noise and convert to bytes."""
    height, width = frame.shape[:2]
    shift = int(random.integers(height)), int(random.integers(width))
    grain = np.roll(noise[random.integers(len(noise))], shift, (0, 1))
    exposed: NDArray[np.uint8] = ((frame + grain).clip(0, 1) * 255 + 0.5).astype(np.uint8)
    return exposed


def write_empty_films(folder: Path, seed: int = 0) -> list[Path]:
    """Write films without an object: a still picture, white noise, and a panning camera."""
    height, width, frames = 360, 640, 200
    random = np.random.default_rng(seed)
    scene = texture(random, height, width + frames * 3)
    noise = _noise_fields(random, height, width)
    films: dict[str, Callable[[int], Floats]] = {
        "still": lambda t: scene[:, :width],
        "white_noise": lambda t: random.random((height, width, 3), np.float32),
        "pan": lambda t: scene[:, 3 * t : 3 * t + width],
    }
    paths = []
    for name, picture in films.items():
        paths.append(folder / f"{name}.mp4")
        with VideoWriter(paths[-1], FPS) as video:
            for t in range(frames):
                video.write(_exposed(picture(t), noise, random))
    return paths


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
