"""The report of a run after the corrections of a person."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ullayers.cli.main import main
from ullayers.errors import Error
from ullayers.run.pipeline import work
from ullayers.run.plan import Plan, load_plan, sources_of
from ullayers.run.reports import write_corrected_report
from ullayers.tracks.corrections import (
    Corrections,
    Delete,
    MarkEmpty,
    Move,
    Split,
    write_corrections,
)

FRAMES = 40


@pytest.fixture(scope="module")
def applied(run: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with results and a report, without corrections."""
    folder = tmp_path_factory.mktemp("applied") / "run"
    shutil.copytree(run.folder, folder)
    loaded = load_plan(folder)
    sources = sources_of(loaded)
    for _ in work(loaded, sources):
        pass
    return folder


def report(folder: Path, corrections: Corrections, path: Path) -> str:
    write_corrections(folder, corrections)
    write_corrected_report(load_plan(folder, "cpu"), path)
    return path.read_text(encoding="utf-8")


def test_the_report_shows_corrected_tracks_and_says_so(applied: Path, tmp_path: Path) -> None:
    before = (applied / "report.html").read_bytes()
    assert b"Corrected by hand" not in before
    corrected = Corrections()
    for each in (MarkEmpty("ball", 5, 9), Move("ball", 1, 12, 3.0, 4.0), Split("ball", 1, 30)):
        corrected = corrected.add(each)
    page = report(applied, corrected, tmp_path / "report.html")
    assert "<h1>Object location: ball (corrected)</h1>" in page
    assert "Corrected by hand." in page
    assert "3 corrections by a person" in " ".join(page.split())
    assert f">{FRAMES}<" in page, "all frames count, not those of one object"
    assert "overlay.mp4" not in page, "which shows what was found"
    assert "</i>2</span>" in page, "an object that was not found"
    assert b"</i>2</span>" not in before
    assert (applied / "report.html").read_bytes() == before


def test_without_corrections_it_says_nothing_of_them(applied: Path, tmp_path: Path) -> None:
    page = report(applied, Corrections(), tmp_path / "report.html")
    assert "<h1>Object location: ball</h1>" in page
    assert "Corrected by hand" not in page


def test_a_run_without_objects_has_nothing_to_report(applied: Path, tmp_path: Path) -> None:
    with pytest.raises(Error, match="has no objects, so there is nothing to report"):
        report(applied, Corrections().add(Delete("ball", 1)), tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_the_command(
    applied: Path, codes: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corrections(applied, Corrections().add(MarkEmpty("ball", 0, 3)))
    assert main(["export", str(applied), "--report", str(tmp_path / "new.html")]) == 0
    assert "1 correction by a person" in " ".join((tmp_path / "new.html").read_text().split())
    for folder, file, reason in (
        (applied, tmp_path / "new.html", "exists; replace it with --force"),
        (applied, applied / "report.html", "is a file of the run"),
    ):
        assert main(["export", str(folder), "--report", str(file)]) == 2
        assert reason in capsys.readouterr().err
