"""`--zones` and `--mm-per-pixel` of the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.command import QUICK, UlCommand, check_refused
from tests.films import read_table

HALVES = {
    "units": "frame",
    "zones": {
        "left": [[0, 0], [0.5, 0], [0.5, 1], [0, 1]],
        "right": [[0.5, 0], [1, 0], [1, 1], [0.5, 1]],
    },
}


@pytest.fixture
def zones(tmp_path: Path) -> Path:
    path = tmp_path / "zones.json"
    path.write_text(json.dumps(HALVES))
    return path


def test_apply_measures_zones(place: Path, here: UlCommand, zones: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    video = place / "ball.mp4"
    options = ("--zones", zones, "--mm-per-pixel", "2")
    code, said, errors = here("apply", place / "run", video, "--out", out, *options)
    assert (code, errors) == (0, "")
    assert "behaviour.csv" in said
    assert "zones.csv" in said
    [row] = read_table(out / "behaviour.csv")
    assert float(row["distance_mm"]) == pytest.approx(2 * float(row["distance_px"]), abs=1e-3)
    both = read_table(out / "zones.csv")
    assert [zone["zone"] for zone in both] == ["left", "right"]
    total = sum(float(zone["time_in_zone"]) for zone in both)
    assert total == pytest.approx(float(row["seconds"]), abs=1e-3)


def test_finished_run_is_measured_anew(
    place: Path, here: UlCommand, zones: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(place / "run", tmp_path / "run"))
    table = (run / "tracks.csv").read_bytes()
    assert (run / "behaviour.csv").exists()
    assert not (run / "zones.csv").exists()
    resume = ("learn", "--resume", "--out", run, "--quiet")
    assert here(*resume, "--zones", zones, "--mm-per-pixel", "0.5") == (0, "", "")
    assert len(read_table(run / "zones.csv")) == 2
    assert "distance_mm" in read_table(run / "behaviour.csv")[0]
    assert (run / "tracks.csv").read_bytes() == table
    page = (run / "report.html").read_text()
    assert "first entry (s)" in page
    config = json.loads((run / "config.json").read_text())
    assert list(config["zones"]["zones"]) == ["left", "right"]
    before = (run / "report.html").stat().st_mtime_ns
    assert here(*resume, "--zones", zones) == (0, "", ""), "the same again"
    assert (run / "report.html").stat().st_mtime_ns == before


def test_bad_zones_are_refused(place: Path, here: UlCommand, zones: Path, tmp_path: Path) -> None:
    video, out = place / "ball.mp4", tmp_path / "out"
    zones.write_text('{"zones": {"far": [[0, 0], [9000, 0], [9000, 9000]]}}')
    learn = ("learn", video, "--out", out, *QUICK)
    check_refused(here(*learn, "--zones", zones), "'far' reaches beyond")
    apply = ("apply", place / "run", video, "--out", out)
    check_refused(here(*apply, "--zones", zones), "'far' reaches beyond")
    check_refused(here(*apply, "--zones", tmp_path / "no.json"), "does not exist")
    check_refused(here(*apply, "--mm-per-pixel", "nan"), "expected a number above 0")
    codes = ("learn", video, "--task", "orient", "--out", out, *QUICK)
    check_refused(here(*codes, "--mm-per-pixel", "2"), "no positions to measure")
    assert not out.exists()
