"""Benchmarks: rows, tables and files are complete. Speed itself is not tested."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments.bench.layers as layers
import experiments.bench.timing as timing
from experiments.bench.timing import BenchOptions, Row
from tests.command import UlCommand
from tests.experiments.conftest import check_refused


@pytest.fixture(autouse=True)
def _one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def test_the_fastest_round_counts_and_all_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = 0.0, ""
    lasts = {"a": iter([9.0, 9.0, 4.0, 2.0, 3.0]), "b": iter([9.0, 9.0, 5.0, 7.0, 6.0])}

    def step(name: str) -> None:
        nonlocal clock, calls
        clock, calls = clock + next(lasts[name]), calls + name

    monkeypatch.setattr("time.perf_counter", lambda: clock)
    monkeypatch.setattr(timing, "ROUNDS", 3)
    assert timing.fastest({"a": lambda: step("a"), "b": lambda: step("b")}) == {"a": 2, "b": 5}
    assert calls == "aabb" + "ababab"  # two calls of each to warm up


def test_rows_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "VIDEO_FRAMES", 4)
    rows = [
        layers.maps_row(4, 3, 8, "cpu"),
        layers.codes_row(8, 4, "cpu"),
        layers.frame_row(2, "cpu"),
        *(layers.training_row(network, "cpu") for network in layers.NETWORKS),
    ]
    assert [row["kind"] for row in rows] == ["maps", "codes", "frame", "training", "training"]
    assert rows[0]["times"].keys() == {"batch norm", "conv", "the least"}
    for row in rows:
        assert row["microseconds"]["ours"] > 0
        assert row["shape"] in layers.line(row)


def test_the_machine_has_a_name_and_versions(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9: fast\n")
    assert timing.cpu_name(tmp_path / "cpuinfo") == "Abacus 9: fast"
    assert timing.cpu_name(tmp_path / "nothing")
    found = timing.machine("cpu", 1)
    assert found["threads"] == 1
    assert {"torch", "numpy", "scipy", "scikit-learn"} <= found["versions"].keys()
    assert found["python"].startswith("3.")


@pytest.mark.parametrize(("load", "busy"), [(0.3, False), (7.25, True)])
def test_what_makes_numbers_doubtful_is_said(
    load: float, busy: bool, bench: UlCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(layers, "rows", lambda _: iter(list[Row]()))
    code, out, _ = bench("layers")
    assert (code, "this machine is busy (load 7.2, 4 cores)" in out) == (0, busy)
    assert "mean little" not in out
    assert "mean little" in bench("layers", "--quick")[1]


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: UlCommand
) -> None:
    row = {"kind": "frame", "shape": "1 x 2", "microseconds": {"ours": 9.0}, "times": {"norm": 2.5}}
    monkeypatch.setattr(layers, "rows", lambda options: iter([row, timing.missing("abacus")]))
    code, out, _ = bench("--json", tmp_path / "rows.json")
    assert code == 0
    header, table = out.splitlines()[:2]
    assert "ours / theirs" in header
    assert header.index("our step") + len("our step") == table.index(" us") + len(" us")
    assert "2.50 x norm" in table
    assert "abacus is not installed: `make bench` installs it" in out
    written = json.loads((tmp_path / "rows.json").read_text())
    assert written["rows"][0] == {"part": "layers", **row}
    assert written["machine"]["versions"]["torch"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    check_refused(bench("--threads", "9999"), "the cores here")
    check_refused(bench("--device", "nothing"), "--device cpu")
    check_refused(bench("--json", tmp_path / "no" / "rows.json"), "--json")
    check_refused(bench("everything"), "layers")
    code, _, errors = bench("video", "--quick", "--video", tmp_path / "nowhere.mp4")
    assert code == 2
    assert "nowhere.mp4: does not exist" in errors


def test_an_interrupt_prints_no_traceback_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: UlCommand
) -> None:
    def stopped(options: BenchOptions) -> Iterator[Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr(layers, "rows", stopped)
    code, _, errors = bench("--json", tmp_path / "rows.json")
    assert code == 130
    assert errors.count("\n") == 1
    assert not any(tmp_path.iterdir())
