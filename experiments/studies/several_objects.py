"""Several objects: the plain command, and two trackers of other kinds, on the same videos.

    python -m experiments.studies.several_objects DATA OUT [NAME ...]

DATA has the folders flies and pets; the other videos are rendered. The truth is used to score, and
to choose the best setting of the other trackers, which are also told the number of animals where
they need it. Tables are kept in OUT.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ullayers.video.demo_films import write_animals

Places = NDArray[np.float64]
UL = sys.executable, "-m", "ullayers"


@dataclass(frozen=True)
class Video:
    """A video with truth.

    Attributes:
        name: For the table.
        path: The file.
        truth: CSV with true positions.
        animals: Number of animals; 0 if they come and go.
        within: Pixels from the truth at which an object is found.
        area: Smallest area of a blob in pixels, for the other trackers.
    """

    name: str
    path: Path
    truth: Path
    animals: int
    within: float
    area: int


def videos(data: Path, out: Path, names: list[str]) -> Iterator[Video]:
    """Yield the videos with these names, or all; those that are rendered are written once."""
    for video in (
        Video("flies", data / "flies/clip.mp4", data / "flies/truth.csv", 2, 30, 200),
        Video("pets", data / "pets/vtest.avi", data / "pets/truth.csv", 0, 30, 60),
    ):
        if not names or video.name in names:
            yield video
    scenes = ((2, 384, 0.06), (5, 512, 0.06), (20, 1024, 0.06), (2, 384, 0.0), (5, 512, 0.0))
    for animals, side, variety in scenes:
        name = f"{animals} animals" + ("" if variety else ", identical")
        if names and name not in names:
            continue
        folder = out / name.replace(", ", "_").replace(" ", "_")
        if not (folder / "truth.csv").exists():
            write_animals(folder, animals, side=side, variety=variety)
        path, truth = folder / "animals.mp4", folder / "truth.csv"
        yield Video(name, path, truth, animals, 0.03 * side, side * side // 4000)


def frames_of(video: Video) -> Iterator[NDArray[np.uint8]]:
    capture = cv2.VideoCapture(str(video.path))
    while True:
        is_read, frame = capture.read()
        if not is_read:
            return
        yield np.asarray(frame, np.uint8)


def blob_places(mask: NDArray[np.uint8], area: int) -> Places:
    """Return the centroids of all blobs that are large enough."""
    count, _, stats, centres = cv2.connectedComponentsWithStats(mask)
    kept = [i for i in range(1, count) if stats[i, cv2.CC_STAT_AREA] >= area]
    return np.asarray(centres[kept] + 0.5).reshape(-1, 2)


def mog2_tracks(video: Video, threshold: float) -> Iterator[list[tuple[int, float, float]]]:
    """Subtract the background with MOG2; assign blobs to the nearest tracks."""
    subtractor = cv2.createBackgroundSubtractorMOG2(500, threshold, detectShadows=False)
    tracks: dict[int, tuple[Places, int]] = {}
    count = 0
    for frame in frames_of(video):
        mask = np.asarray(cv2.medianBlur(subtractor.apply(frame), 5), np.uint8)
        places = blob_places(mask, video.area)
        numbers = list(tracks)
        free = set(range(len(places)))
        found = []
        if numbers and len(places):
            before = np.stack([tracks[number][0] for number in numbers])
            distance = np.linalg.norm(before[:, None] - places, axis=2)
            for i, j in np.stack(linear_sum_assignment(distance), 1).tolist():
                if distance[i, j] < 2 * video.within:
                    tracks[numbers[i]] = places[j], 0
                    free.discard(j)
                    found.append((numbers[i], *places[j]))
        seen = {number for number, *_ in found}
        tracks = {
            number: (place, unseen if number in seen else unseen + 1)
            for number, (place, unseen) in tracks.items()
            if unseen < 25
        }
        for j in sorted(free):
            count += 1
            tracks[count] = places[j], 0
            found.append((count, *places[j]))
        yield found


def threshold_tracks(video: Video, threshold: float) -> Iterator[list[tuple[int, float, float]]]:
    """Threshold the difference from the median; part blobs into the known number by k-means."""
    sample = [frame for n, frame in enumerate(frames_of(video)) if n % 25 == 0][:60]
    backdrop = np.median(sample, axis=0).astype(np.uint8)
    before: Places | None = None
    for frame in frames_of(video):
        difference = cv2.absdiff(frame, backdrop).max(2)
        mask = (cv2.GaussianBlur(difference, (5, 5), 0) > threshold).astype(np.uint8)
        places = blob_places(mask, video.area)
        if len(places) != video.animals:
            pixels = np.argwhere(mask)[:, ::-1].astype(np.float32) + 0.5
            if len(pixels) < video.animals:
                yield []
                continue
            stop = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 20, 0.5)
            start = cv2.KMEANS_PP_CENTERS
            _, _, centres = cv2.kmeans(pixels, video.animals, np.empty(0), stop, 3, start)
            places = np.asarray(centres, np.float64)
        if before is not None:
            distance = np.linalg.norm(before[:, None] - places, axis=2)
            places = places[linear_sum_assignment(distance)[1]]
        before = places
        yield [(k + 1, *place) for k, place in enumerate(places)]


def write_tracks(folder: Path, video: Video, tracks: Any) -> None:
    """Write tracks as `ul` does, so that `ul score` reads them."""
    capture = cv2.VideoCapture(str(video.path))
    width, height = (int(capture.get(i)) for i in (3, 4))
    fps = capture.get(cv2.CAP_PROP_FPS)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with open(folder / "tracks.csv", "w", newline="") as file:
        rows = csv.writer(file)
        columns = "sequence,frame,object,time,x,y,confidence,x_px,y_px"
        rows.writerow(columns.split(","))
        for count, found in enumerate(tracks, 1):
            for number, x, y in found:
                place = x / width, y / height
                now = video.path.stem, count - 1, number, (count - 1) / fps
                rows.writerow([*now, *place, 1, x, y])
    entry = {"name": video.path.stem, "frames": count, "width": width, "height": height, "fps": fps}
    summary = {"task": "locate", "frames": count, "sequences": [entry]}
    (folder / "summary.json").write_text(json.dumps(summary))


def score(folder: Path, video: Video) -> dict[str, Any]:
    command = [*UL, "score", str(folder), str(video.truth), "--within", str(video.within), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    scores: dict[str, Any] = json.loads(done.stdout)
    return scores


def show(video: Video, method: str, scores: dict[str, Any], seconds: float) -> None:
    values = [f"{scores[name]:.3f}" for name in ("found", "idf1", "mota")]
    distance = f"{scores['median_distance_px']:.2f}"
    print(
        "|", " | ".join([video.name, method, *values, distance, f"{seconds:.0f}"]), "|", flush=True
    )


def main(data: Path, out: Path, names: list[str]) -> None:
    print("| video | method | found | IDF1 | MOTA | median distance, px | seconds |")
    print("|---|---|---|---|---|---|---|")
    for video in videos(data, out, names):
        folder = out / "found" / video.name
        start = time.monotonic()
        learn = [*UL, "learn", str(video.path), "--out", str(folder), "--force", "--quiet"]
        subprocess.run(learn, check=True)
        seconds = time.monotonic() - start
        count = json.loads((folder / "summary.json").read_text())["sequences"][0]["objects"]
        show(video, f"`ul learn`: {count} objects", score(folder, video), seconds)
        others = [("MOG2 and assignment", mog2_tracks, (16, 50, 150))]
        if video.animals:
            others.append(("threshold and k-means, number given", threshold_tracks, (20, 40, 80)))
        for method, tracker, settings in others:
            results = []
            for setting in settings:
                start = time.monotonic()
                place = out / "others" / video.name / f"{tracker.__name__}_{setting}"
                write_tracks(place, video, tracker(video, setting))
                results.append((score(place, video), time.monotonic() - start))
            best = max(results, key=lambda each: each[0]["idf1"])
            show(video, method, *best)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
