"""Every format, read back by the program that it is for, and compared with the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.results import FPS, HEIGHT, WIDTH, Row, ellipse, walk, write_results
from ullayers.errors import Error
from ullayers.run.reports import write_corrected
from ullayers.tracks.corrections import Corrections, MarkEmpty, Split, Swap, write_corrections
from ullayers.tracks.formats.names import FORMATS
from ullayers.tracks.formats.write import plan_files, write_files
from ullayers.tracks.reading import NAMES, read_crossings, read_tracks, write_crossings
from ullayers.tracks.table import CROSSINGS

# Other packages warn about themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning:motmetrics"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pycocotools"),
]
ROWS = [*walk(1), *walk(2, count=8, first=4)]  # the second object enters later
SURE = [row for row in ROWS if row["confidence"] >= 0.5]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two objects in one video, with masks."""
    return write_results(tmp_path_factory.mktemp("two") / "run", {"arena": ROWS}, masks=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One object in two videos: every second frame from frame 10 on, and from frame 0 on."""
    videos = {"a": walk(1, first=10, step=2), "b": walk(1, count=5)}
    columns = ("sequence", "frame", "object", *NAMES)
    return write_results(tmp_path_factory.mktemp("one") / "run", videos, columns=columns)


def export(folder: Path, name: str, out: Path | None = None) -> list[Path]:
    files = plan_files(folder, name, out)
    write_files(name, files)
    return [file.path for file in files]


def export_one(folder: Path, name: str, out: Path) -> Path:
    [path] = export(folder, name, out)
    return path


def test_movement(two: Path, tmp_path: Path) -> None:
    pytest.importorskip("movement", reason="needs pip install 'ullayers[movement]'")
    import xarray
    from movement.validators.datasets import ValidPosesInputs

    path = export_one(two, "movement", tmp_path / "a.nc")
    with xarray.open_dataset(path) as data:
        ValidPosesInputs.validate(data)
        assert data.attrs["fps"] == FPS
        assert data.attrs["source_software"] == "ullayers"
        assert data.attrs["ds_type"] == "poses"
        assert data.time.values.tolist() == [frame / FPS for frame in range(12)]
        seen = 0
        for row in ROWS:
            place = {"time": row["time"], "individuals": f"object_{row['object']:.0f}"}
            cell = data.sel(place).sel(keypoints="centroid")
            assert cell.position.sel(space="x") == row["x_px"]
            assert cell.position.sel(space="y") == row["y_px"]
            assert cell.confidence == row["confidence"]
            seen += 1
        assert int(data.confidence.notnull().sum()) == seen


def test_movement_times_of_a_part(one: Path, tmp_path: Path) -> None:
    pytest.importorskip("movement", reason="needs pip install 'ullayers[movement]'")
    import xarray

    tmp_path.joinpath("nc").mkdir()
    path = export(one, "movement", tmp_path / "nc")[0]
    assert path.name == "a.movement.nc"
    with xarray.open_dataset(path) as data:
        assert data.time.values.tolist() == [frame / FPS for frame in range(10, 34, 2)]


def test_sleap(two: Path, tmp_path: Path) -> None:
    sleap = pytest.importorskip("sleap_io", reason="needs pip install 'ullayers[sleap]'")
    labels = sleap.load_file(str(export_one(two, "sleap", tmp_path / "a.slp")), open_videos=False)
    assert [node.name for node in labels.skeleton.nodes] == ["centroid"]
    assert [track.name for track in labels.tracks] == ["object_1", "object_2"]
    assert tuple(labels.video.shape) == (12, HEIGHT, WIDTH, 3)
    found = {
        (frame.frame_idx, instance.track.name): (
            *instance.numpy()[0].tolist(),
            instance.score,
            instance.points["score"][0],
        )
        for frame in labels
        for instance in frame
    }
    assert found == {
        (row["frame"], f"object_{row['object']:.0f}"): (
            row["x_px"],
            row["y_px"],
            pytest.approx(row["confidence"]),
            pytest.approx(row["confidence"]),
        )
        for row in ROWS
    }


def test_sleap_holds_several_videos(one: Path, tmp_path: Path) -> None:
    sleap = pytest.importorskip("sleap_io", reason="needs pip install 'ullayers[sleap]'")
    labels = sleap.load_file(str(export_one(one, "sleap", tmp_path / "a.slp")), open_videos=False)
    assert [video.filename for video in labels.videos] == ["a", "b"]
    assert [frame.frame_idx for frame in labels.find(labels.videos[0])] == list(range(10, 34, 2))


def test_dlc_in_pandas(two: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = export_one(two, "dlc", tmp_path / "a.csv")
    table = pandas.read_csv(path, header=[0, 1, 2, 3], index_col=0)
    assert table.columns.names == ["scorer", "individuals", "bodyparts", "coords"]
    assert table.index.tolist() == list(range(12))
    for row in ROWS:
        cells = table.loc[row["frame"], ("ullayers", f"object_{row['object']:.0f}", "centroid")]
        assert cells.tolist() == [row["x_px"], row["y_px"], row["confidence"]]
    assert int(table.notna().sum().sum()) == 3 * len(ROWS)


def test_dlc_in_movement(two: Path, one: Path, tmp_path: Path) -> None:
    pytest.importorskip("movement", reason="needs pip install 'ullayers[movement]'")
    from movement.io import load_poses

    several = load_poses.from_dlc_file(export_one(two, "dlc", tmp_path / "a.csv"), fps=FPS)
    assert several.individuals.values.tolist() == ["object_1", "object_2"]
    tmp_path.joinpath("dlc").mkdir()
    single = load_poses.from_dlc_file(export(one, "dlc", tmp_path / "dlc")[0], fps=FPS)
    assert single.sizes["individuals"] == 1
    # Rows are frames of the video, so times are right although frames were skipped.
    for row in walk(1, first=10, step=2):
        cell = single.sel(time=row["time"]).position.values.squeeze()
        assert cell.tolist() == [row["x_px"], row["y_px"]]


def expected_boxes(masks: bool) -> dict[tuple[int, int], list[Any]]:
    boxes = {}
    for row in SURE:
        if masks:
            y, x = np.nonzero(ellipse(row))
            box = [x.min(), y.min(), x.max() + 1 - x.min(), y.max() + 1 - y.min()]
        else:
            turn = np.linspace(0, 2 * np.pi, 100_000)
            angle, half = np.radians(row["heading"]), (row["length"] / 2, row["width"] / 2)
            x = half[0] * np.cos(turn) * np.cos(angle) - half[1] * np.sin(turn) * np.sin(angle)
            y = half[0] * np.cos(turn) * np.sin(angle) + half[1] * np.sin(turn) * np.cos(angle)
            box = [row["x_px"] + x.min(), row["y_px"] + y.min(), np.ptp(x), np.ptp(y)]
        key = int(row["frame"]), int(row["object"])
        boxes[key] = [pytest.approx(float(side), abs=1e-6) for side in box]
    return boxes


@pytest.mark.parametrize("masks", [True, False])
def test_mot(two: Path, tmp_path: Path, masks: bool) -> None:
    mot = pytest.importorskip("motmetrics", reason="needs pip install 'ullayers[score]'")
    folder = two if masks else write_results(tmp_path / "run", {"arena": ROWS})
    path = export_one(folder, "mot", tmp_path / "a.txt")
    lines = np.loadtxt(path, delimiter=",")
    assert lines.shape == (len(SURE), 10)
    assert (lines[:, 7:] == -1).all()
    table = mot.io.loadtxt(str(path), fmt="mot15-2D")
    found = {
        (frame - 1, number): row[["X", "Y", "Width", "Height"]].tolist()
        for (frame, number), row in table.iterrows()
    }
    # The reader takes the first pixel for 1 and subtracts it.
    found = {key: [x + 1, y + 1, w, h] for key, (x, y, w, h) in found.items()}
    assert found == expected_boxes(masks)
    assert table.Confidence.tolist() == [
        row["confidence"] for row in sorted(SURE, key=lambda row: (row["frame"], row["object"]))
    ]


def test_coco_with_masks(two: Path, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco", reason="needs the package pycocotools")
    data = coco.COCO(export_one(two, "coco", tmp_path / "a.json"))
    images = {image["id"]: image for image in data.loadImgs(data.getImgIds())}
    assert [image["frame_id"] for image in images.values()] == list(range(12))
    assert {(image["width"], image["height"]) for image in images.values()} == {(WIDTH, HEIGHT)}
    rows = {(int(row["frame"]), int(row["object"])): row for row in SURE}
    found = {}
    for item in data.loadAnns(data.getAnnIds()):
        key = images[item["image_id"]]["frame_id"], item["track_id"]
        found[key] = item["bbox"]
        mask = ellipse(rows[key])
        assert (data.annToMask(item) == mask).all()
        assert item["area"] == mask.sum()
        assert item["score"] == rows[key]["confidence"]
    assert found == expected_boxes(masks=True)


def test_coco_without_masks(one: Path, tmp_path: Path) -> None:
    content = json.loads(export_one(one, "coco", tmp_path / "a.json").read_text())
    assert [video["name"] for video in content["videos"]] == ["a", "b"]
    assert len(content["images"]) == 12 + 5
    assert content["images"][0]["file_name"] == "a/000010.jpg"
    sure = [row for count in (12, 5) for row in walk(1, count) if row["confidence"] >= 0.5]
    assert [item["area"] for item in content["annotations"]] == [row["area"] for row in sure]
    assert "segmentation" not in content["annotations"][0]


def test_nwb(two: Path, tmp_path: Path) -> None:
    pynwb = pytest.importorskip("pynwb", reason="needs pip install 'ullayers[nwb]'")
    pytest.importorskip("ndx_pose", reason="needs pip install 'ullayers[nwb]'")
    path = export_one(two, "nwb", tmp_path / "a.nwb")
    with pynwb.NWBHDF5IO(str(path), "r") as io:
        behavior = io.read().processing["behavior"]
        for number in (1, 2):
            pose = behavior[f"object_{number}"]
            assert pose.source_video.external_file[:].tolist() == ["arena"]
            assert pose.source_video.dimension[:].tolist() == [WIDTH, HEIGHT]
            assert pose.source_video.rate == FPS
            series = pose["centroid"]
            rows = [row for row in ROWS if row["object"] == number]
            assert series.data[:].tolist() == [[row["x_px"], row["y_px"]] for row in rows]
            assert series.timestamps[:].tolist() == [row["time"] for row in rows]
            assert series.confidence[:].tolist() == [row["confidence"] for row in rows]
    assert pynwb.validate(path=str(path)) == []


def test_napari(two: Path, tmp_path: Path) -> None:
    path = export_one(two, "napari", tmp_path / "a.csv")
    assert path.read_text().startswith("ID,T,Y,X\n")
    data = np.loadtxt(path, delimiter=",", skiprows=1)
    # What a tracks layer needs: whole IDs and times, sorted by ID and then by time.
    assert (data[:, :2] == data[:, :2].astype(int)).all()
    assert np.lexsort((data[:, 1], data[:, 0])).tolist() == list(range(len(data)))
    assert data.tolist() == [
        [row["object"], row["frame"], row["y_px"], row["x_px"]] for row in SURE
    ]


def test_parquet(two: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pip install 'ullayers[parquet]'")
    table = parquet.read_table(export_one(two, "parquet", tmp_path / "a.parquet"))
    assert table.column_names == ["sequence", "object", "frame", *NAMES]
    expected: list[dict[str, Any]] = [{"sequence": "arena", **row} for row in ROWS]
    assert table.to_pylist() == expected


def test_unknown_cells_are_null_in_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pip install 'ullayers[parquet]'")
    rows: list[Row] = [{**row, "heading": np.nan} for row in walk(1)]
    folder = write_results(tmp_path / "run", {"a": rows})
    table = parquet.read_table(export_one(folder, "parquet", tmp_path / "a.parquet"))
    assert table["heading"].null_count == 12


def test_csv_is_like_the_table(two: Path, one: Path, tmp_path: Path) -> None:
    for folder in (two, one):
        path = export_one(folder, "csv", tmp_path / f"{folder.parent.name}.csv")
        expected, written = read_tracks(folder / "tracks.csv"), read_tracks(path)
        assert (
            path.read_text().split("\n", 1)[0]
            == ((folder / "tracks.csv").read_text().split("\n", 1)[0])
        )
        assert len(written) == len(expected)
        for old, new in zip(expected, written, strict=True):
            assert (old.sequence, old.object) == (new.sequence, new.object)
            assert old.columns.keys() == new.columns.keys()
            for name, values in old.columns.items():
                np.testing.assert_array_equal(values, new.columns[name])


@pytest.fixture(scope="module", name="corrected")
def fixture_corrected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two objects that are swapped in frame 6 and split in frame 9, and frames with nothing."""
    folder = write_results(tmp_path_factory.mktemp("mended") / "run", {"arena": ROWS}, masks=True)
    write_crossings(folder / CROSSINGS, ["arena,7,8,0.35,0.4,1 2,0.9\n"])
    corrections = Swap("arena", (1, 2), 6), Split("arena", 1, 9), MarkEmpty("arena", 1, 4)
    write_corrections(folder, Corrections(corrections))
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_corrections_are_in_every_format(corrected: Path, tmp_path: Path, name: str) -> None:
    found = {"movement": "movement", "sleap": "sleap_io", "nwb": "ndx_pose", "parquet": "pyarrow"}
    if name in found:
        pytest.importorskip(found[name])
    before = (corrected / "tracks.csv").read_bytes()
    [file] = plan_files(corrected, name, tmp_path)
    assert [track.object for track in file.videos[0].tracks] == [1, 2, 3]
    write_files(name, [file])  # also places that are not known
    assert file.path.stat().st_size > 0
    assert (corrected / "tracks.csv").read_bytes() == before


def test_corrected_tables(corrected: Path, tmp_path: Path) -> None:
    files = write_corrected(corrected, tmp_path)
    assert [file.name for file in files] == ["tracks.csv", "crossings.csv", "behaviour.csv"]
    one, two, three = read_tracks(tmp_path / "tracks.csv")
    y = {row["object"]: row["y_px"] for row in ROWS}
    assert one.frame.tolist() == list(range(9))
    assert one.y_px[[0, 5, 6, 8]].tolist() == [y[1], y[1], y[2], y[2]]
    assert two.y_px[-1] == y[1]
    assert three.frame.tolist() == [9, 10, 11]
    assert np.isnan(one.x_px[1:5]).all()
    assert (one.confidence[1:5] == 0).all()
    assert [crossing.objects for crossing in read_crossings(tmp_path / CROSSINGS)] == [(1, 2)]
    behaviour = (tmp_path / "behaviour.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in behaviour[1:]] == ["1", "2", "3"]


def test_masks_have_corrected_numbers(corrected: Path, tmp_path: Path) -> None:
    content = json.loads(export_one(corrected, "coco", tmp_path / "c.json").read_text())
    frames = {image["id"]: image["frame_id"] for image in content["images"]}
    assert sorted(frames.values()) == list(range(12))
    found = {(frames[each["image_id"]], each["track_id"]) for each in content["annotations"]}
    lines = export_one(corrected, "mot", tmp_path / "m.txt").read_text().splitlines()
    boxes = {(int(line.split(",")[0]) - 1, int(line.split(",")[1])) for line in lines}
    assert found == boxes
    assert {number for frame, number in found if frame >= 9} == {2, 3}
    assert not [frame for frame, _ in found if 1 <= frame <= 4]


def test_a_part_of_the_frames(corrected: Path, one: Path, tmp_path: Path) -> None:
    [file] = plan_files(corrected, "csv", tmp_path, sequence="arena", first=8, last=10)
    assert [path.name for path in file.paths] == ["arena-8-10.csv", "arena-8-10-crossings.csv"]
    write_files("csv", [file])
    tracks = read_tracks(file.path)
    assert [track.frame.tolist() for track in tracks] == [[8], [8, 9, 10], [9, 10]]
    [file] = plan_files(one, "mot", tmp_path, last=4)  # the other video starts at frame 10
    assert file.path.name == "b--4.mot.txt"
    with pytest.raises(Error, match="no tracks in frames 50 to 60"):
        plan_files(one, "csv", tmp_path, first=50, last=60)
    with pytest.raises(Error, match="no sequence c"):
        plan_files(one, "csv", tmp_path, sequence="c")


def sections() -> dict[str, str]:
    """The Python code in each section of the page about formats."""
    page = Path(__file__).parents[2] / "docs" / "formats.md"
    parts = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    found = {
        part.split("\n", 1)[0]: re.findall(r"```python\n(.*?)```", part, re.S) for part in parts
    }
    return {name: code for name, [code] in found.items()}


@pytest.mark.parametrize("name", FORMATS)
def test_the_page_loads_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code = sections()[name]
    package = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)[0]
    pytest.importorskip(package, reason=f"needs the package {package}")
    if name in ("movement", "nwb"):
        pytest.importorskip({"movement": "movement", "nwb": "ndx_pose"}[name])
    folder = write_results(tmp_path / "run", {"mouse": ROWS}, masks=True)
    monkeypatch.chdir(tmp_path)
    (folder / "export").mkdir()
    export(folder, name)
    values: dict[str, Any] = {}
    exec(code, values)
    first = [row["x_px"] for row in ROWS if row["object"] == 1]
    loaded: dict[str, Callable[[], Any]] = {
        "csv": lambda: values["x"].tolist() == first,
        "movement": lambda: values["x"].values.tolist() == first,
        "sleap": lambda: values["positions"][:, 0, 0, 0].tolist() == pytest.approx(first),
        "dlc": lambda: values["x"].tolist() == first,
        "nwb": lambda: values["positions"][:, 0].tolist() == first,
        "parquet": lambda: values["speed"].tolist() == [row["speed"] for row in ROWS],
        "napari": lambda: values["tracks"].shape == (len(SURE), 4),
        "mot": lambda: values["boxes"].shape == (len(SURE), 10),
        "coco": lambda: len(values["masks"]) == len(SURE),
    }
    assert loaded[name]()


def test_table_lists_every_name() -> None:
    from ullayers.tracks.formats.write import TABLE

    assert tuple(TABLE) == FORMATS
