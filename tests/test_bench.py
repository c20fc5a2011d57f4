"""The measurement of the layers runs and says what it should; how fast they are is not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Call, check_refused
from ullayers import bench


def test_rows_table_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    monkeypatch.setattr(bench, "ROUNDS", 1)
    rows = [
        bench.maps_row(4, 3, 8, "cpu"),
        bench.codes_row(8, 4, "cpu"),
        bench.frame_row(2, "cpu"),
        bench.training_row("cpu"),
    ]
    assert [row["kind"] for row in rows] == ["maps", "codes", "frame", "training"]
    assert rows[0]["times"].keys() == {"batch norm", "conv"}
    for row in rows:
        assert row["microseconds"]["ours"] > 0
        assert row["shape"] in bench.line(row)
    bench.write(rows, "cpu", tmp_path / "rows.json")
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["rows"] == rows
    assert written["machine"]["torch"]


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Call
) -> None:
    row = {"kind": "frame", "shape": "1 x 2", "microseconds": {"ours": 9.0}, "times": {"norm": 2.5}}
    monkeypatch.setattr(bench, "bench", lambda device, quick: iter([row]))
    code, out, _ = here("bench", "--quick", "--json", tmp_path / "rows.json")
    assert code == 0
    assert "2.50 x norm" in out
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == [row]
    check_refused(here("bench", "--device", "nothing"), "--device cpu")


def test_a_stop_is_no_traceback(monkeypatch: pytest.MonkeyPatch, here: Call) -> None:
    def stopped(device: str, quick: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "bench", stopped)
    code, _, errors = here("bench")
    assert code == 130
    assert errors.count("\n") == 1
