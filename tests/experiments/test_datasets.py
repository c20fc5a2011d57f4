"""The public data sets: split as upstream says, truth in the units it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import experiments.datasets as datasets
from tests.real_data import DATA
from ullayers.video.sources import VideoError


def picture(path: Path, level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 24), (level, level, level)).save(path)


def test_walks_are_split_where_numbers_or_halves_jump(tmp_path: Path) -> None:
    place = tmp_path / "labelfree" / "DaSide"
    rects = []
    for half, numbers in ((0, [*range(1, 21), *range(30, 48), *range(60, 65)]), (1, range(1, 18))):
        for number in numbers:
            picture(place / f"{half}_scene-seq1-{number:03d}.png")
    for number in range(1, 65):
        left = {"x1": 10.0 * number, "x2": 10.0 * number + 20, "y1": 0.0, "y2": 9.0}
        rects.append({"image_path": f"scene-seq1-{number:03d}.png", "rects": [left]})
    (place / "daside.json").write_text(json.dumps(rects))
    found = datasets.walking(tmp_path)
    assert [len(walk) for walk in found] == [20, 18, 17]  # five frames are too few
    assert found[0].truth["x"][0] == pytest.approx(20 / 320)
    assert found[2].truth["x"][0] == pytest.approx((20 - 320) / 320)


def test_of_two_people_the_one_in_this_half_counts(tmp_path: Path) -> None:
    place = tmp_path / "labelfree" / "DaSide"
    for number in range(16):
        picture(place / f"1_scene-{number:03d}.png")
    both = [{"x1": 100.0, "x2": 120.0}, {"x1": 500.0, "x2": 540.0}]
    entries = [{"image_path": f"scene-{n:03d}.png", "rects": both if n else []} for n in range(16)]
    (place / "daside.json").write_text(json.dumps(entries))
    x = datasets.walking(tmp_path)[0].truth["x"]
    assert np.isnan(x[0])
    assert np.allclose(x[1:], (520 - 320) / 320)


def test_poses_come_in_order_of_their_signed_angle(tmp_path: Path) -> None:
    for pan in (-90, -15, 0, 15, 90):
        file = tmp_path / "pointing04" / "Person03" / f"person03101-30{pan:+d}.jpg"
        picture(file, 90 + pan)
        file.with_suffix(".txt").write_text(f"{file.name}\n\nFace\n8\n12\n4\n6\n")
    [series] = datasets.head_poses(tmp_path)
    assert series.truth["pan"].tolist() == [-90, -15, 0, 15, 90]
    assert series.group == "03"
    assert series.boxes is not None
    assert series.boxes[0].tolist() == [6, 9, 10, 15]
    clip = datasets.load(series, (12, 8), grey=True)
    assert clip.frames.shape == (5, 1, 12, 8)
    levels = clip.frames.float().mean((1, 2, 3)).round().tolist()
    assert levels == sorted(levels)
    assert datasets.load(series, (12, 8)).frames.shape == (5, 3, 12, 8)


def test_turntables_and_heads(tmp_path: Path) -> None:
    for view in (0, 1, 2, 10):
        picture(tmp_path / "coil20" / f"obj3__{view}.png")
        picture(tmp_path / "heads3d" / "inplane" / "scan" / f"roll_{5 * view:03d}.png")
        picture(tmp_path / "heads3d" / "pan" / "anna" / f"yaw_{5 * view - 10:+03d}.png")
    assert datasets.turntable(tmp_path)[0].truth["angle"].tolist() == [0, 5, 10, 50]
    assert datasets.turning_head(tmp_path)[0].truth["angle"].tolist() == [0, 5, 10, 50]
    assert datasets.panning_heads(tmp_path)[0].truth["pan"].tolist() == [-10, -5, 0, 40]


def test_truth_of_the_pillow_is_optional(tmp_path: Path) -> None:
    folder = tmp_path / "labelfree" / "cushion"
    folder.mkdir(parents=True)
    for number in (1, 2, 7):
        (folder / f"cushion-{number:04d}.jpg").touch()
    first, second = datasets.thrown_pillow(tmp_path)
    assert np.isnan([*first.truth["x"], *second.truth["y"]]).all()
    table = folder.with_name("cushion_truth.csv")
    table.write_text("image,x,y\ncushion-0002.jpg,0.25,0.5\n")
    first, second = datasets.thrown_pillow(tmp_path)
    np.testing.assert_equal(first.truth["x"], [np.nan, 0.25])
    np.testing.assert_equal(first.truth["y"], [np.nan, 0.5])
    assert np.isnan(second.truth["x"]).all()
    table.write_text("image,x,y\ncushion-0002.jpg,left,0.5\n")
    with pytest.raises(VideoError, match="columns image, x and y"):
        datasets.thrown_pillow(tmp_path)


def test_missing_data_says_where_it_was_looked_for(tmp_path: Path) -> None:
    for read in (datasets.walking, datasets.thrown_pillow, datasets.head_poses, datasets.turntable):
        with pytest.raises(VideoError, match="--data"):
            read(tmp_path)


@pytest.mark.data
def test_the_real_data_is_as_its_authors_say() -> None:
    walks = datasets.walking(DATA)
    assert len(walks) == 12
    x = np.concatenate([walk.truth["x"] for walk in walks])
    assert np.nanmin(x) > -0.2
    assert np.nanmax(x) < 1.2
    assert len(datasets.thrown_pillow(DATA)) == 77
    poses = datasets.head_poses(DATA)
    assert {pose.group for pose in poses} == {f"{person:02d}" for person in range(1, 13)}
    assert all(pose.truth["pan"].tolist() == list(range(-90, 91, 15)) for pose in poses)
    assert [len(head) for head in datasets.panning_heads(DATA)] == [37] * 11
    assert all(len(thing) == 72 for thing in datasets.turntable(DATA))
