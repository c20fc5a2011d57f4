"""`ul export --format` and `ul score` as commands."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.command import UlCommand, check_refused, ended, start
from tests.results import walk, write_results
from ullayers.tracks.corrections import Corrections, Swap, write_corrections
from ullayers.tracks.formats.names import FORMATS

TWO = {"a": [*walk(1), *walk(2)], "b": walk(1)}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("several") / "run", TWO)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_results(tmp_path / "run", {"a": TWO["a"]})


def test_a_real_run_and_what_it_was_applied_to(
    here: UlCommand, place: Path, tmp_path: Path
) -> None:
    run, found = shutil.copytree(place / "run", tmp_path / "run"), tmp_path / "found"
    code, out, errors = ended(start("export", run, "--format", "dlc"))
    assert (code, errors) == (0, "")
    assert out == f"wrote {run}/export/ball.dlc.csv\n"
    assert here("export", run, "--format", "csv", "--quiet") == (0, "", "")
    assert (run / "export" / "tracks.csv").read_bytes() == (run / "tracks.csv").read_bytes()
    arguments = ("--out", found, "--masks", "--quiet")
    assert here("apply", run, place / "ball.mp4", *arguments) == (0, "", "")
    assert here("export", found, "--format", "mot")[0] == 0
    pytest.importorskip("motmetrics", reason="needs pip install 'ullayers[score]'")
    for truth in (found / "export" / "ball.mot.txt", run / "export" / "ball.dlc.csv"):
        code, out, errors = here("score", found, truth)
        assert (code, errors) == (0, "")
        assert "IDF1                  1.000" in out


def test_an_export_folder_that_leads_outside_is_refused(
    here: UlCommand, run: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (run / "export").symlink_to(outside)
    check_refused(here("export", run, "--format", "csv"), "link that leads out")
    assert not any(outside.iterdir())


def test_boxes_need_masks_or_sizes(here: UlCommand, tmp_path: Path) -> None:
    columns = ("sequence", "frame", "time", "x", "y", "confidence")  # of version 0.1
    run = write_results(tmp_path / "run", {"a": walk(1)}, columns=columns)
    check_refused(here("export", run, "--format", "mot"), "masks", "ul apply --masks")
    assert here("export", run, "--format", "dlc")[0] == 0


def test_files_are_named_after_videos(here: UlCommand, several: Path, tmp_path: Path) -> None:
    code, out, _ = here("export", several, "--format", "napari", "--out", tmp_path / "t.csv")
    assert code == 0
    assert out.split() == ["wrote", f"{tmp_path}/t-a.csv", "wrote", f"{tmp_path}/t-b.csv"]
    assert here("export", several, "--format", "napari", "--out", tmp_path, "--quiet") == (
        0,
        "",
        "",
    )
    assert (tmp_path / "a.napari.csv").read_bytes() == (tmp_path / "t-a.csv").read_bytes()
    assert here("export", several, "--format", "coco", "--out", tmp_path / "c.json")[0] == 0
    assert len(json.loads((tmp_path / "c.json").read_text())["videos"]) == 2


def test_corrections_are_used_and_counted(here: UlCommand, run: Path, tmp_path: Path) -> None:
    write_corrections(run, Corrections((Swap("a", (1, 2), 6),)))
    files = [run / "export" / "tracks.csv", tmp_path / "part.csv"]
    code, out, _ = here("export", run, "--format", "csv")
    assert (code, out) == (0, f"wrote {files[0]} with 1 correction\n")
    part = ("--sequence", "a", "--frames", "6:7", "--out", files[1])
    assert here("export", run, "--format", "csv", *part)[0] == 0
    assert [len(file.read_text().splitlines()) for file in files] == [25, 5]
    check_refused(here("export", run, "--frames", "6:7", "--onnx", tmp_path / "a"), "--format")
    check_refused(here("export", run, "--format", "csv", "--frames", "7:6"), "FIRST:LAST")
    pytest.importorskip("motmetrics", reason="needs pip install 'ullayers[score]'")
    code, out, errors = here("score", run, run / "tracks.csv")
    assert code == 0
    assert "IDF1                  1.000" in out
    assert errors == "ul score: the original tracks are scored; corrections are not used (1)\n"
    (run / "corrections.json").write_text("[]")
    check_refused(here("export", run, "--format", "csv", "--force"), "corrections.json: is damaged")


def test_nothing_is_replaced_without_force(here: UlCommand, run: Path) -> None:
    assert here("export", run, "--format", "dlc")[0] == 0
    check_refused(here("export", run, "--format", "dlc"), "a.dlc.csv: exists", "--force")
    assert here("export", run, "--format", "dlc", "--force")[0] == 0
    table = (run / "tracks.csv").read_bytes()
    refused = here("export", run, "--format", "dlc", "--out", run / "tracks.csv", "--force")
    check_refused(refused, "is a file of the run")
    assert (run / "tracks.csv").read_bytes() == table


def test_what_cannot_be_exported(here: UlCommand, run: Path, place: Path, tmp_path: Path) -> None:
    check_refused(here("export", run), "--format")
    check_refused(here("export", run, "--out", tmp_path / "a"), "--format")
    check_refused(here("export", tmp_path / "no", "--format", "dlc"), "tracks.csv: is missing")
    check_refused(here("export", place / "codes", "--format", "dlc"), "--task locate")
    check_refused(here("export", run, "--format", "dlc", "--out", tmp_path / "no" / "a"), "folder")
    (run / "summary.json").write_text("{}")
    check_refused(here("export", run, "--format", "dlc"), "summary.json: is damaged")
    (run / "summary.json").unlink()
    check_refused(here("export", run, "--format", "dlc"), "summary.json: is missing")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("movement", "movement.io.load_poses", "movement"),
        ("sleap", "sleap_io", "sleap"),
        ("nwb", "ndx_pose", "nwb"),
        ("parquet", "pyarrow", "parquet"),
    ],
)
def test_missing_packages(
    here: UlCommand,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    check_refused(here("export", run, "--format", name), f"pip install 'ullayers[{extra}]'")
    assert not list((run / "export").iterdir())


@pytest.mark.parametrize("name", ["dlc", "coco", "parquet", "sleap"])
def test_a_failed_export_leaves_nothing(
    here: UlCommand, run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert name in FORMATS
    if name == "parquet":
        pytest.importorskip("pyarrow", reason="needs pip install 'ullayers[parquet]'")
    if name == "sleap":
        pytest.importorskip("sleap_io", reason="needs pip install 'ullayers[sleap]'")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    check_refused(here("export", run, "--format", name), "disk is full")
    assert not list((run / "export").iterdir())


def test_scores_as_table_and_json(here: UlCommand, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("motmetrics", reason="needs pip install 'ullayers[score]'")
    truth, out = tmp_path / "truth.csv", tmp_path / "score.json"
    lines = [f"{row['frame']},{row['object']},{row['x_px'] + 1},{row['y_px']}" for row in TWO["a"]]
    truth.write_text("\n".join(["frame,animal,x,y", *lines]) + "\n")
    code, text, errors = here("score", run, truth, "--out", out)
    assert (code, errors) == (0, "")
    assert "at most 6.8 px apart" in text  # half of the median length, 13 and 14 pixels
    assert "median distance       1.00 px, 1.04 % of the width" in text
    scores = json.loads(out.read_text())
    assert scores["found"] == pytest.approx(22 / 24)
    check_refused(here("score", run, truth, "--out", out), "--force")
    lost = tmp_path / "missing" / "score.json"
    check_refused(here("score", run, truth, "--out", lost), "its folder does not exist")
    code, text, _ = here("score", run, truth, "--out", out, "--force", "--json", "--within", "0.5")
    assert json.loads(text) == json.loads(out.read_text())
    assert json.loads(text)["found"] == 0


def test_sequences_to_score(here: UlCommand, several: Path, tmp_path: Path) -> None:
    pytest.importorskip("motmetrics", reason="needs pip install 'ullayers[score]'")
    truth = tmp_path / "truth.csv"
    truth.write_text("frame,x,y\n0,19.2,16\n")
    check_refused(here("score", several, truth), "2 sequences", "--sequence: a, b")
    check_refused(here("score", several, truth, "--sequence", "c"), "no sequence c", "a, b")
    assert here("score", several, truth, "--sequence", "b")[0] == 0
    assert here("score", several, several / "tracks.csv", "--sequence", "a")[0] == 0


def test_what_cannot_be_scored(here: UlCommand, run: Path, tmp_path: Path) -> None:
    check_refused(here("score", run, tmp_path / "no.csv"), "does not exist")
    check_refused(here("score", run, tmp_path), "no PNG files")
    (tmp_path / "a.csv").write_text("frame,x,y\n500,1,1\n")
    check_refused(here("score", run, tmp_path / "a.csv"), "no objects in frames of the run")
    check_refused(here("score", run, tmp_path / "a.csv", "--within", "0"), "more than 0")
