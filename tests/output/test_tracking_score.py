"""Scores of tracks, with truth in every format that is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.results import HEIGHT, WIDTH, Row, walk, write_results
from ullayers.errors import Error
from ullayers.tracks.formats.write import plan_files, write_files
from ullayers.tracks.scores import (
    Observation,
    Observations,
    Rule,
    choose_rule,
    collect,
    observe,
    read_truth,
    score_tracks,
)
from ullayers.tracks.tracked_video import TrackedVideo, overlap, read_videos

pytest.importorskip("motmetrics", reason="needs pip install 'ullayers[score]'")

ROWS = [*walk(1), *walk(2, count=8, first=4)]
SURE = {(row["frame"], row["object"]): row for row in ROWS if row["confidence"] >= 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("two") / "run", {"arena": ROWS}, masks=True)


@pytest.fixture(scope="module")
def video(folder: Path) -> TrackedVideo:
    [video] = read_videos(folder)
    return video


def converted(folder: Path, name: str, out: Path) -> Path:
    write_files(name, plan_files(folder, name, out))
    return out


def places(seen: Observations) -> dict[tuple[int, int], list[float]]:
    keys = zip(seen.frame.tolist(), seen.identity.tolist(), strict=True)
    return dict(zip(keys, seen.place.tolist(), strict=True))


def expected(first: int = 0) -> dict[tuple[float, float], list[Any]]:
    """Positions with a confidence of at least 0.5; identities count from `first`."""
    return {
        (frame, number - 1 + first): [pytest.approx(row["x_px"]), pytest.approx(row["y_px"])]
        for (frame, number), row in SURE.items()
    }


def test_dlc_truth(folder: Path, video: TrackedVideo, tmp_path: Path) -> None:
    truth = read_truth(converted(folder, "dlc", tmp_path / "a.csv"), video)
    assert places(truth) == expected()
    assert truth.frames.tolist() == list(range(12))


def test_dlc_table_truth(folder: Path, video: TrackedVideo, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("tables", reason="needs pip install 'ullayers[score]'")
    text = converted(folder, "dlc", tmp_path / "a.csv")
    table = pandas.read_csv(text, header=[0, 1, 2, 3], index_col=0)
    table.to_hdf(tmp_path / "a.h5", key="df_with_missing", format="table", mode="w")
    assert places(read_truth(tmp_path / "a.h5", video)) == expected()


def test_dlc_labels_of_images(video: TrackedVideo, tmp_path: Path) -> None:
    """Manual labels have image paths and no likelihood; the position is the mean of the points."""
    head = ["scorer,,,me,me,me,me", "bodyparts,,,nose,nose,tail,tail", "coords,,,x,y,x,y"]
    rows = ["labeled-data,arena,img0003.png,10,20,30,40", "labeled-data,arena,img0007.png,,,5,6"]
    (tmp_path / "a.csv").write_text("\n".join(head + rows) + "\n")
    truth = read_truth(tmp_path / "a.csv", video)
    assert places(truth) == {(3, 0): [20, 30], (7, 0): [5, 6]}


def test_sleap_truth(folder: Path, video: TrackedVideo, tmp_path: Path) -> None:
    pytest.importorskip("sleap_io", reason="needs pip install 'ullayers[sleap]'")
    truth = read_truth(converted(folder, "sleap", tmp_path / "a.slp"), video)
    every = {(row["frame"], row["object"] - 1): [row["x_px"], row["y_px"]] for row in ROWS}
    assert places(truth) == every
    assert truth.identified


def test_mot_truth(folder: Path, video: TrackedVideo, tmp_path: Path) -> None:
    truth = read_truth(converted(folder, "mot", tmp_path / "a.txt"), video)
    assert places(truth).keys() == expected(first=1).keys()
    assert np.abs(truth.place - observe(video, boxes=False).place).max() < 1  # of whole pixels
    assert truth.frames.tolist() == list(range(12))


def test_own_tables(folder: Path, video: TrackedVideo, tmp_path: Path) -> None:
    assert places(read_truth(folder / "tracks.csv", video)) == expected()
    lines = ["frame,animal,x,y,heading", "0,left,1.5,2.5,90", "0,right,3,4,", "1,left,,,"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    truth = read_truth(tmp_path / "a.csv", video)
    assert places(truth) == {(0, 0): [1.5, 2.5], (0, 1): [3, 4]}
    assert truth.heading[0] == 90
    assert truth.frames.tolist() == [0, 1]
    (tmp_path / "b.csv").write_text("frame,person,left,top,width,height\n5.0,3,10,20,4,6\n")
    truth = read_truth(tmp_path / "b.csv", video)
    assert places(truth) == {(5, 0): [12, 23]}
    assert truth.box.tolist() == [[10, 20, 4, 6]]
    (tmp_path / "c.csv").write_text("sequence,frame,time,x,y,angle\nscene,0,0.0,0.5,0.25,1\n")
    assert places(read_truth(tmp_path / "c.csv", video)) == {(0, 0): [WIDTH / 2, HEIGHT / 4]}


def test_masks_as_truth(folder: Path, video: TrackedVideo) -> None:
    truth = read_truth(folder / "masks" / "arena", video)
    found = observe(video, boxes=True)
    rule = choose_rule(found, truth, None, length=np.nan, width=WIDTH)
    assert rule.kind == "masks"
    scores = score_tracks(found, truth, rule, WIDTH)
    # Masks are there in unsure frames, too, in which nothing counts as found.
    assert scores["found"] == scores["mean_iou"] == pytest.approx(len(SURE) / len(ROWS))
    assert scores["misses"] == len(ROWS) - len(SURE)
    assert scores["false_positives"] == 0


def test_perfect_tracks(video: TrackedVideo) -> None:
    found = observe(video, boxes=True)
    scores = score_tracks(found, found, Rule("boxes", np.nan), WIDTH)
    assert scores["found"] == scores["idf1"] == scores["mota"] == 1
    assert scores["switches"] == scores["misses"] == scores["false_positives"] == 0
    assert scores["median_distance_px"] == scores["p90_heading_error_deg"] == 0


def test_scores_by_hand() -> None:
    """Ten frames, two objects: a swap in the middle, one miss, one false positive, known shifts."""
    truth = collect(
        [Observation(i, k, 50.0 * k, 10.0 * i, 350.0) for i in range(10) for k in (0, 1)], []
    )
    rows = []
    for i in range(10):
        names = ("a", "b") if i < 6 else ("b", "a")
        for k, name in enumerate(names):
            rows.append(Observation(i, name, 50.0 * k + (4.0 if k else 0.0), 10.0 * i, 5.0))
    rows = [row for row in rows if (row.frame, row.identity) != (9, "a")]
    rows.append(Observation(0, "c", 500.0, 500.0))
    scores = score_tracks(collect(rows, []), truth, Rule("distance", 5.0), width=200)
    assert (scores["switches"], scores["misses"], scores["false_positives"]) == (2, 1, 1)
    assert scores["mota"] == pytest.approx(1 - 4 / 20)
    assert scores["idf1"] == pytest.approx(2 * 12 / (20 + 20))  # 12 rows have the right name
    assert scores["found"] == pytest.approx(19 / 20)
    assert scores["median_distance_px"] == 0
    assert scores["p90_distance_px"] == 4
    assert scores["p90_distance_width"] == pytest.approx(0.02)
    assert scores["median_heading_error_deg"] == pytest.approx(15)
    json.dumps(scores, allow_nan=False)


def test_scores_agree_with_an_assignment_over_all_frames() -> None:
    """IDF1 of random tracks, beside the definition: the best one-to-one naming of tracks."""
    from scipy.optimize import linear_sum_assignment

    random = np.random.default_rng(0)
    spots = random.uniform(0, 400, (4, 30, 2))
    named = [random.permutation(4) if i % 10 == 0 else None for i in range(30)]
    truth, found, order = [], [], np.arange(4)
    same = np.zeros((4, 4))
    for i in range(30):
        order = order if named[i] is None else np.asarray(named[i])
        for k in range(4):
            truth.append(Observation(i, k, *spots[k, i].tolist()))
            if random.random() < 0.8:
                found.append(Observation(i, int(order[k]), *spots[k, i].tolist()))
                same[k, order[k]] += 1
    scores = score_tracks(
        collect(found, range(30)), collect(truth, []), Rule("distance", 1e-6), 400
    )
    agreed = same[linear_sum_assignment(-same)].sum()
    assert scores["idf1"] == pytest.approx(2 * agreed / (len(truth) + len(found)))
    assert scores["found"] == pytest.approx(len(found) / len(truth))


def test_unknown_identities_have_no_identity_scores() -> None:
    truth = collect([Observation(0, None, 0.0, 0.0), Observation(0, None, 9.0, 9.0)], [])
    scores = score_tracks(truth, truth, Rule("distance", 1.0), 100)
    assert scores["found"] == 1
    assert scores["idf1"] is scores["mota"] is scores["switches"] is None
    alone = collect([Observation(0, None, 0.0, 0.0), Observation(1, None, 9.0, 9.0)], [])
    assert alone.identified


def test_default_distances() -> None:
    points = collect([Observation(0, 1, 5.0, 5.0)], [])
    boxes = collect([Observation(0, 1, 5.0, 5.0, box=(0.0, 0.0, 10.0, 30.0))], [])
    assert choose_rule(boxes, boxes, None, 20, 640).kind == "boxes"
    assert choose_rule(boxes, boxes, 3.0, 20, 640) == Rule("distance", 3.0)
    assert choose_rule(points, boxes, None, 20, 640) == Rule("distance", 15)
    assert choose_rule(points, points, None, 20, 640) == Rule("distance", 10)
    assert choose_rule(points, points, None, np.nan, 640) == Rule("distance", 32)


def test_overlap_of_boxes() -> None:
    first = np.array([[0.0, 0, 10, 10], [20, 20, 0, 0]])
    second = np.array([[5.0, 5, 10, 10], [0, 0, 10, 10], [50, 50, 1, 1]])
    assert overlap(first, second) == pytest.approx(np.array([[25 / 175, 1, 0], [0, 0, 0]]))


def test_frames_of_a_part(tmp_path: Path) -> None:
    """Frames without objects count, frames that were not processed do not."""
    rows: list[Row] = [*walk(1, count=3), *walk(1, count=3, first=8)]
    early = write_results(tmp_path / "early", {"a": rows})
    summary = json.loads((early / "summary.json").read_text())
    summary["sequences"][0]["frames"] = 12
    (early / "summary.json").write_text(json.dumps(summary))
    assert read_videos(early)[0].frames.tolist() == list(range(12))
    late = write_results(tmp_path / "late", {"a": walk(1, first=20, step=3)})
    assert read_videos(late)[0].frames.tolist() == list(range(20, 56, 3))
    summary["sequences"][0]["frames"] = 20
    thinned = write_results(tmp_path / "thinned", {"a": walk(1, count=5, first=10, step=5)})
    (thinned / "summary.json").write_text(json.dumps(summary))
    assert read_videos(thinned)[0].frames.tolist() == list(range(0, 100, 5))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "x,y\n1,2\n", "column frame"),
        ("a.csv", "frame,z\n1,2\n", "columns x and y"),
        ("a.csv", "frame,x,y\n0,one,2\n", "cannot be read"),
        ("a.csv", "frame,id,x,y\n0,1,1,2\n0,1,5,5\n", "object 1 has 2 rows in frame 0"),
        ("a.csv", "scorer,a\n", "cannot be read"),
        ("a.txt", "1,1,5\n", "expected frame, id"),
        ("a.csv", "frame,x,y\n1.5,1,2\n", "expected frame numbers from 0 to 1e8, got '1.5'"),
        ("a.csv", f"frame,x,y\n{10**30},1,2\n", "expected frame numbers from 0"),
        ("a.csv", "frame,x,y\n-1,1,2\n", "expected frame numbers from 0"),
        ("a.csv", "frame,left,top,width,height\n1,5,5,-4,6\n", "at least 0 pixels, got -4 x 6"),
        ("a.txt", "1e12,1,5,5,4,6,1\n", "expected frame numbers from 1"),
        ("a.txt", "0,1,5,5,4,6,1\n", "expected frame numbers from 1"),
        ("a.txt", "inf,1,5,5,4,6,1\n", "expected frame numbers from 1"),
        ("a.txt", "1,inf,5,5,4,6,1\n", "cannot be read"),
        ("a.txt", "", "no boxes"),
        ("a.h5", "not a table", "cannot be read"),
        ("a.slp", "not a table", "cannot be read"),
        ("missing.csv", None, "does not exist"),
    ],
)
def test_bad_truth(
    video: TrackedVideo, tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(Error, match=words):
        read_truth(tmp_path / name, video)


def test_no_frame_in_common(video: TrackedVideo) -> None:
    later = collect([Observation(99, 1, 0.0, 0.0)], [])
    with pytest.raises(Error, match="frames 99 to 99, the run has frames 0 to 11"):
        score_tracks(observe(video, boxes=False), later, Rule("distance", 5.0), WIDTH)
