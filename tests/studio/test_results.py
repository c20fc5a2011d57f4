"""Results of runs: tables, corrections, exports."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

from tests.output.made_tracks import wanderers, write_tables
from tests.studio.conftest import HOST
from tests.studio.numbered import write_outlines
from ullayers.studio.files import Workspace
from ullayers.studio.server import make_app
from ullayers.studio.studio import Studio
from ullayers.tracks.reading import read_tracks

Tables = dict[int, dict[str, NDArray[np.float32]]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three objects in 200 frames of sequence a."""
    folder = tmp_path / "found"
    folder.mkdir()
    write_tables(folder, *wanderers(3, frames=200))
    sequence = {"name": "a", "frames": 200, "width": 640, "height": 480, "fps": 25.0, "objects": 3}
    summary = {"task": "locate", "trusted": True, "reasons": [], "found": 0.9}
    (folder / "summary.json").write_text(json.dumps(summary | {"sequences": [sequence]}))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def opened(tmp_path: Path, run: Path) -> Iterator[tuple[TestClient, str]]:
    """A page that has opened the run, and the address of the run."""
    studio = Studio(Workspace.open(tmp_path / "studio"), [str(run)])
    client = TestClient(
        make_app(studio, [HOST]), base_url=f"http://{HOST}", headers={"origin": f"http://{HOST}"}
    )
    client.get(f"/?token={studio.workspace.token}")
    [entry] = client.get("/api/state").json()["runs"]
    assert entry["opened"]
    yield client, f"/api/runs/{entry['id']}"
    studio.close()


def unpack(content: bytes) -> Tables:
    [length] = struct.unpack("<I", content[:4])
    header = json.loads(content[4 : 4 + length])
    numbers = np.frombuffer(content, "<f4", offset=-(-(4 + length) // 8) * 8)
    tables: Tables = {}
    start = 0
    for entry in header["objects"]:
        table = tables[entry["object"]] = {}
        for name in header["columns"]:
            table[name] = numbers[start : start + entry["rows"]]
            start += entry["rows"]
    assert start == len(numbers)
    return tables


def test_tables_arrive_as_they_are(opened: tuple[TestClient, str], run: Path) -> None:
    client, address = opened
    details = client.get(address).json()
    [sequence] = details["sequences"]
    assert (sequence["objects"], sequence["first"], sequence["last"]) == ([1, 2, 3], 0, 199)
    assert len(details["crossings"]) == 15
    summary = json.loads((run / "summary.json").read_text())
    summary["sequences"][0]["frames"] = 250  # the last ones have no objects
    (run / "summary.json").write_text(json.dumps(summary))
    [sequence] = client.get(address).json()["sequences"]
    assert (sequence["first"], sequence["last"]) == (0, 249)
    tables = unpack(client.get(f"{address}/rows/a?first=0&last=199").content)
    for track in read_tracks(run / "tracks.csv"):
        for name in ("frame", "x_px", "confidence", "speed"):
            expected = getattr(track, name).astype(np.float32)
            np.testing.assert_array_equal(tables[track.object][name], expected)
    unknown = unpack(client.get(f"{address}/rows/a?first=0&last=9&columns=none").content)
    assert unknown == {1: {}, 2: {}, 3: {}}
    some = unpack(client.get(f"{address}/rows/a?first=60&last=69&columns=frame,y_px").content)
    assert list(some[1]) == ["frame", "y_px"]
    np.testing.assert_array_equal(some[1]["frame"], np.arange(60, 70))
    assert len(some[3]["frame"]) == 0  # it enters later
    assert unpack(client.get(f"{address}/rows/unknown?first=0&last=1").content) == {}
    assert unpack(client.get(f"{address}/extremes/unknown?first=0&last=1&step=2").content) == {}


def test_long_tables_arrive_in_parts(opened: tuple[TestClient, str], run: Path) -> None:
    """Time lines are drawn from the extremes of a few frames each, jumps need every stretch."""
    client, address = opened
    tracks = read_tracks(run / "tracks.csv")
    extremes = unpack(
        client.get(f"{address}/extremes/a?first=32&last=199&step=16&columns=x_px").content
    )
    for track in tracks:
        found = extremes[track.object]
        for frame, low, high in zip(*found.values(), strict=True):
            rows = (track.frame >= frame) & (track.frame < frame + 16)
            assert (low, high) == (
                np.float32(track.x_px[rows].min()),
                np.float32(track.x_px[rows].max()),
            )
        assert found["frame"][0] == max(32, track.frame[0] // 16 * 16)
        assert found["frame"][-1] == 192
    overview = client.get(f"{address}/overview/a").json()
    low, high = overview["ranges"]["y_px"]
    assert low == min(track.y_px.min() for track in tracks)
    assert high == max(track.y_px.max() for track in tracks)
    assert "speed" not in overview["ranges"]  # it has no values
    assert (overview["fps"], overview["start"]) == pytest.approx((25, 0))
    assert [each["first"] for each in overview["objects"]] == [0, 0, 150]
    doubtful = {frame for track in tracks for frame in track.frame[track.confidence < 0.5].tolist()}
    shown = [set(range(first, last + 1)) for first, last in overview["unsure"]]
    assert set().union(*shown) == doubtful
    assert sum(map(len, shown)) == len(doubtful)
    sample = unpack(client.get(f"{address}/sample/a?columns=frame").content)
    assert [len(each["frame"]) for each in sample.values()] == [200, 200, 50]


@pytest.mark.parametrize(
    "query",
    [
        "rows/a?first=0&last=5000",
        "extremes/a?first=0&last=5000&step=1",
        "extremes/a?first=0&last=9&step=0",
    ],
)
def test_parts_are_bounded(opened: tuple[TestClient, str], query: str) -> None:
    client, address = opened
    assert client.get(f"{address}/{query}").status_code == 400


def test_corrections_are_shown_undone_and_never_overwrite(
    opened: tuple[TestClient, str], run: Path
) -> None:
    client, address = opened
    found = (run / "tracks.csv").read_bytes()
    before = unpack(client.get(f"{address}/rows/a?first=0&last=199").content)
    swap = {"op": "swap", "sequence": "a", "objects": [1, 2], "first": 100}
    move = {"op": "move", "sequence": "a", "object": 3, "frame": 180, "x": 12.5, "y": 7.0}
    for correction in (swap, move):
        assert client.post(f"{address}/corrections", json=correction).status_code == 200
    tables = unpack(client.get(f"{address}/rows/a?first=0&last=199").content)
    np.testing.assert_array_equal(tables[1]["x_px"][:100], before[1]["x_px"][:100])
    np.testing.assert_array_equal(tables[1]["x_px"][100:], before[2]["x_px"][100:])
    moved = np.flatnonzero(tables[3]["frame"] == 180)
    assert tables[3]["x_px"][moved] == 12.5
    as_found = unpack(client.get(f"{address}/rows/a?first=0&last=199&found=1").content)
    np.testing.assert_array_equal(as_found[1]["x_px"], before[1]["x_px"])
    assert client.post(f"{address}/corrections/undo").status_code == 200
    assert len(client.get(address).json()["corrections"]["undone"]) == 1
    assert client.post(f"{address}/corrections/redo").status_code == 200
    assert len(client.get(f"{address}/corrections").json()["applied"]) == 2
    assert (run / "tracks.csv").read_bytes() == found


def test_a_name_with_half_a_character_is_refused(opened: tuple[TestClient, str]) -> None:
    client, address = opened
    content = r'{"op": "move", "sequence": "\ud800", "object": 1, "frame": 5, "x": 3, "y": 2}'
    answer = client.post(f"{address}/corrections", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"] == "there is no sequence ?"


def test_learning_from_corrections_of_several_objects_is_refused(
    opened: tuple[TestClient, str],
) -> None:
    client, address = opened
    move = {"op": "move", "sequence": "a", "object": 1, "frame": 9, "x": 5, "y": 5}
    assert client.post(f"{address}/corrections", json=move).status_code == 200
    answer = client.post(f"{address}/relearn")
    assert answer.status_code == 400
    assert "a has several objects, and one can be learned" in answer.json()["error"]


@pytest.mark.parametrize(
    "correction",
    [
        {},
        {"op": "fly"},
        {"op": "swap", "sequence": "a", "objects": [1, 9], "first": 0},
        {"op": "swap", "sequence": "b", "objects": [1, 2], "first": 0},
        {"op": "move", "sequence": "a", "object": 1, "frame": 0, "x": "left", "y": 0},
        {"op": "move", "sequence": "a", "object": 1, "frame": 10**9, "x": 1, "y": 0},
    ],
)
def test_corrections_that_do_not_fit(
    opened: tuple[TestClient, str], run: Path, correction: dict[str, Any]
) -> None:
    client, address = opened
    answer = client.post(f"{address}/corrections", json=correction)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert not (run / "corrections.json").exists()
    assert client.post(f"{address}/corrections/undo").status_code == 400


def test_outlines_have_the_numbers_after_corrections(
    opened: tuple[TestClient, str], run: Path
) -> None:
    client, address = opened
    some = f"{address}/outlines/a?first=0&last=199"
    assert client.get(some).json() == {"frames": {}}  # a run without outlines
    write_outlines(run, "a", read_tracks(run / "tracks.csv"))
    frames = client.get(some).json()["frames"]
    assert len(frames) == 200
    [first, second] = frames["20"]
    assert (first[0], second[0], len(first[1])) == (1, 2, 8)
    swap = {"op": "swap", "sequence": "a", "objects": [1, 2], "first": 20}
    delete = {"op": "delete", "sequence": "a", "object": 1, "first": 30, "last": None}
    for correction in (swap, delete):
        assert client.post(f"{address}/corrections", json=correction).status_code == 200
    frames = client.get(some).json()["frames"]
    assert [object for object, _ in frames["19"]] == [1, 2]
    assert frames["20"] == [[2, first[1]], [1, second[1]]]
    assert [object for object, _ in frames["30"]] == [2]
    for wrong in ("first=0&last=5000", "first=x&last=1", "first=-1&last=3", "first=0"):
        assert client.get(f"{address}/outlines/a?{wrong}").status_code == 400


def test_exports_contain_corrections(opened: tuple[TestClient, str], tmp_path: Path) -> None:
    client, address = opened
    client.post(f"{address}/corrections", json={"op": "delete", "sequence": "a", "object": 2})
    request = {"format": "csv", "sequence": "a", "first": 50, "last": 159}
    files = client.post(f"{address}/export", json=request).json()["files"]
    [table] = [file for file in files if file["name"] == "a-50-159.csv"]
    answer = client.get(table["url"])
    assert "attachment" in answer.headers["content-disposition"]
    (tmp_path / "a.csv").write_bytes(answer.content)
    tracks = read_tracks(tmp_path / "a.csv")
    assert [track.object for track in tracks] == [1, 3]
    assert (tracks[0].frame[0], tracks[0].frame[-1]) == (50, 159)
    for wrong in (
        {"format": "exe"},
        {"format": "mot", "first": "x"},
        {"format": "csv", "out": "/"},
    ):
        assert client.post(f"{address}/export", json=wrong).status_code == 400


def test_codes_of_a_range_are_exported(opened: tuple[TestClient, str], run: Path) -> None:
    client, address = opened
    (run / "tracks.csv").unlink()
    rows = [f'"b, c",{frame},{frame / 25},0.5,{frame}' for frame in range(50)]
    (run / "codes.csv").write_text("\n".join(["sequence,frame,time,y0,y1", *rows]) + "\n")
    request: dict[str, Any] = {"format": "csv", "sequence": "b, c", "first": 10, "last": 19}
    [file] = client.post(f"{address}/export", json=request).json()["files"]
    lines = client.get(file["url"]).text.splitlines()
    assert lines[0] == "sequence,frame,time,y0,y1"
    assert lines[1:] == rows[10:20]
    for name in ("unknown", "../../b"):
        answer = client.post(f"{address}/export", json=request | {"sequence": name})
        assert answer.status_code == 400
        assert "no codes" in answer.json()["error"]
    assert not [path for path in run.parent.rglob("*") if path.suffix == ".part"]
    assert len(list((run / "export").iterdir())) == 1


def test_an_opened_run_is_not_deleted(opened: tuple[TestClient, str], run: Path) -> None:
    client, address = opened
    for method, path in (("DELETE", ""), ("POST", "/stop"), ("POST", "/resume")):
        assert client.request(method, address + path).status_code == 400
    assert (run / "tracks.csv").exists()


@pytest.mark.parametrize("name", ["tracks.csv", "summary.json", "corrections.json", "config.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\0", b"[" * 10_000])
def test_damaged_runs_give_one_line(
    opened: tuple[TestClient, str], run: Path, name: str, content: bytes
) -> None:
    client, address = opened
    (run / name).write_bytes(content)
    for path in ("", "/rows/a?first=0&last=9", "/overview/a", "/corrections", "/metrics"):
        answer = client.get(address + path)
        assert answer.status_code in (200, 400)
    assert client.get("/api/state").status_code == 200
