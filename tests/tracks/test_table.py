"""Reading the table of a results folder."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.output.made_tracks import wanderers, write_tables
from ullayers.errors import Error
from ullayers.tracks.corrections import read_corrections
from ullayers.tracks.reading import NAMES, read_tracks
from ullayers.tracks.table import read_table
from ullayers.tracks.tracked_video import read_videos

SEVERAL = """sequence,frame,object,time,x,y,confidence,x_px,y_px,speed,heading,length,width,area
"b, c",0,2,0.0,0.1,0.2,0.9,6.4,9.6,0,-90,10,5,40
"b, c",0,1,0.0,0.5,0.5,0.8,32,24,1,90,11,6,50
"b, c",1,1,0.1,0.6,0.5,0.7,38.4,24,2,nan,12,7,60
"""


def table(folder: Path, text: str) -> Path:
    path = folder / "tracks.csv"
    path.write_text(text)
    return path


def test_objects_are_sorted_and_complete(tmp_path: Path) -> None:
    first, second = read_tracks(table(tmp_path, SEVERAL))
    assert (first.sequence, first.object, second.object) == ("b, c", 1, 2)
    assert first.frame.tolist() == [0, 1]
    assert first.heading[0] == 90
    assert np.isnan(first.heading[1])
    assert second.area.tolist() == [40]


def test_names_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with quotes and line breaks are read like plain ones, wherever a block of lines ends."""
    plain = SEVERAL.replace('"b, c"', "b")
    quoted = SEVERAL.replace('"b, c"', '"b ""\n\n c"')
    expected = read_tracks(table(tmp_path, plain))
    for lines in (1, 2, 3, 100):
        monkeypatch.setattr("ullayers.tracks.table.ROWS_PER_PART", lines)
        found = read_tracks(table(tmp_path, quoted))
        assert [track.sequence for track in found] == ['b "\n\n c'] * 2
        for one, other in zip(expected, found, strict=True):
            assert one.frame.tolist() == other.frame.tolist()
            assert one.area.tolist() == other.area.tolist()


@pytest.mark.parametrize("change", ["", "returns", "no end", "quotes", "exponent", "digits"])
def test_numbers_are_exact(tmp_path: Path, change: str) -> None:
    """Numbers are those that `float` reads, however the table is written."""
    write_tables(tmp_path, wanderers(3, 200)[0] + wanderers(2, 200, "☃", 1)[0], [])
    path = tmp_path / "tracks.csv"
    text = path.read_text()
    row = "a,150,2,"
    text = {
        "": text,
        "returns": text.replace("\n", "\r\n"),
        "no end": text.removesuffix("\n"),
        "quotes": text.replace(row, '"a",150,2,'),
        "exponent": text.replace(row, "a,1.5e2,2,"),
        "digits": text.replace(row, f"{row}-{'0' * 15}"),
    }[change]
    path.write_text(text, newline="")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    tracks = read_tracks(path)
    assert sum(len(track.frame) for track in tracks) == len(rows)
    for track in tracks:
        own = [
            r for r in rows if (r["sequence"], int(r["object"])) == (track.sequence, track.object)
        ]
        for name in ("frame", *NAMES):
            expected = [float(row.get(name) or "nan") for row in own]
            np.testing.assert_array_equal(getattr(track, name), expected)


def test_data_frames(tmp_path: Path) -> None:
    """They have the rows of the table in its order, with numbers of objects and empty cells."""
    table(tmp_path, SEVERAL)
    tracks = read_table(tmp_path).tracks
    assert list(tracks.columns) == SEVERAL.partition("\n")[0].split(",")
    assert tracks["sequence"].tolist() == ["b, c"] * 3
    assert tracks["object"].tolist() == [2, 1, 1]
    assert tracks["heading"].isna().tolist() == [False, False, True]
    assert not len(read_table(tmp_path).crossings)


def test_data_frames_of_an_older_version(tmp_path: Path) -> None:
    table(tmp_path, "sequence,frame,time,x,y,confidence\nNA,3,0.1,0.5,0.5,1\n")
    tracks = read_table(tmp_path).tracks
    assert list(tracks.columns[:4]) == ["sequence", "frame", "object", "time"]
    assert tracks.iloc[0].tolist() == ["NA", 3, 1, 0.1, 0.5, 0.5, 1.0]


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(Error, match="has no results; write it with ul learn or ul apply"):
        read_table(tmp_path)


def test_one_object_of_an_older_version(tmp_path: Path) -> None:
    text = "sequence,frame,time,x,y,confidence\na,3,0.1,0.5,0.5,1\n"
    [track] = read_tracks(table(tmp_path, text))
    assert track.object == 1
    assert np.isnan(track.x_px).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column"),
        (SEVERAL.replace("confidence", "c"), "no column confidence"),
        (SEVERAL.replace("0.7,38.4", "x,38.4"), "not a number"),
        (SEVERAL.replace('"b, c",1,1', '"b, c",0,1'), "not in order"),
        (SEVERAL.replace('"b, c",1,1', '"b, c",1,one'), "damaged"),
        (SEVERAL.replace('"b, c",1,1', '"b, c",1,0'), "number of an object"),
        (SEVERAL.replace('"b, c",1,1', '"b, c",1,2e9'), "number of an object"),
        (SEVERAL.replace('"b, c",1,1', '"b, c",100000000,1'), "number of a frame"),
        (SEVERAL.replace('"b, c",1,1', '"b, c",0.5,1'), "number of a frame"),
        (SEVERAL.replace('"b, c",0,2', '"b, c",nan,2'), "number of a frame"),
        (SEVERAL.replace('"b, c",0,2', '"b, c",-1,2'), "number of a frame"),
        (SEVERAL + "a,1\n", "expected 14 cells"),
        (SEVERAL + "a,1,1,0,0,0,0,0,0,0\n", "expected 14 cells"),
        (SEVERAL + "a,1,1,0,0,0,0,0,0,0,0,0,0,0,0\n", "expected 14 cells"),
        (SEVERAL.replace(",40\n", ",40,1\n"), "damaged"),
    ],
)
def test_damaged_tables(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Error, match=message) as caught:
        read_tracks(table(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(Error, match="is missing"):
        read_tracks(tmp_path / "tracks.csv")


def test_a_file_is_not_a_results_folder(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").touch()
    assert not read_corrections(tmp_path / "film.mp4").applied
    with pytest.raises(Error, match="is missing; write it with ul learn or ul apply"):
        read_tracks(tmp_path / "film.mp4" / "tracks.csv")


@pytest.mark.parametrize(("entry", "value"), [("frames", 10**12), ("width", 1e99), ("height", -3)])
def test_a_summary_with_huge_numbers_is_damaged(tmp_path: Path, entry: str, value: float) -> None:
    table(tmp_path, SEVERAL)
    sizes = {"name": "b, c", "width": 64, "height": 48, "fps": 25, "frames": 2}
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"sequences": [sizes]}))
    assert len(read_videos(tmp_path)[0].frames) == 2
    summary.write_text(json.dumps({"sequences": [sizes | {entry: value}]}))
    with pytest.raises(Error, match=r"summary\.json: is damaged"):
        read_videos(tmp_path)


@pytest.mark.parametrize("begun", ["config.json", "tracks.partial.sqlite"])
def test_results_that_are_not_finished(tmp_path: Path, begun: str) -> None:
    (tmp_path / begun).touch()
    with pytest.raises(
        Error, match=r"tracks\.csv: is missing; finish it with ul learn or ul apply --resume"
    ):
        read_tracks(tmp_path / "tracks.csv")
