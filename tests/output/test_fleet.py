"""Fleets of video on Ray: the tables of the plain command, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import ullayers.run.fleet as fleet
from tests.exports import sources_in
from tests.films import files_in, write_ball, write_truncated
from tests.servers import served
from ullayers.errors import RunError
from ullayers.run.fleet import LOCAL, VideoResult, apply_to_video, cluster, export_fleet
from ullayers.run.plan import Run
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.behaviour import measure_folder, write_behaviour
from ullayers.video.sources import Source, VideoError, find_sources

pytest.importorskip("ray", reason="needs pip install 'ullayers[ray]'")
compute = pytest.importorskip("pyarrow.compute", reason="needs pip install 'ullayers[ray]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pip install 'ullayers[ray]'")

RESUME = ExportOptions(resume=True)
SKIP = ExportOptions(skip_bad=True)
real_apply = apply_to_video


@pytest.fixture(scope="module", autouse=True)
def ray_instance() -> Iterator[None]:
    """Ray starts slowly, so all tests of this module share an instance."""
    with cluster(LOCAL, cpus=2):
        yield


def same_files(run: Run, folder: Path, plain: Path) -> bool:
    names = ["codes.csv", "summary.json"]
    if run.config.task == "locate":
        names = ["tracks.csv", "behaviour.csv", "summary.json"]
        entries = json.loads((plain / "summary.json").read_text())["sequences"]
        write_behaviour(plain, measure_folder(plain, entries))
    return all((folder / name).read_bytes() == (plain / name).read_bytes() for name in names)


def test_tables_are_those_of_the_plain_export(either: Run, tmp_path: Path) -> None:
    sources_in(tmp_path / "in", 12, 160, 30)
    write_truncated(tmp_path / "in" / "film10.mp4")
    sources = find_sources([f"{tmp_path}/**/*.mp4"])
    plain = export(either, sources, tmp_path / "plain", SKIP)
    seen: list[tuple[int, int]] = []
    done = export_fleet(either, sources, tmp_path / "out", SKIP, lambda *two: seen.append(two))
    assert same_files(either, tmp_path / "out", tmp_path / "plain")
    assert (done.bad, list(done.bad)) == (plain.bad, ["film10"])
    assert seen[-1] == (4, plain.totals.frames)
    table = parquet.read_table(done.files[-1])
    assert table.column_names == plain.files[0].read_text().splitlines()[0].split(",")
    for answer in plain.answers:
        rows = table.filter(compute.equal(table["sequence"], answer.sequence))
        assert rows["frame"].to_pylist() == answer.index.tolist()
        stored = [rows[name].to_pylist() for name in answer.columns]
        assert stored == answer.values.T.tolist(), "not rounded"


@pytest.mark.parametrize("objects", [1, None])
def test_masks_are_those_of_the_plain_export(run: Run, tmp_path: Path, objects: int | None) -> None:
    sources, out = sources_in(tmp_path / "in", 12, 12), tmp_path / "out"
    options = replace(SKIP, masks=True, soft=True, objects=objects)
    write_truncated(Path(sources[1].path))
    export(run, sources, tmp_path / "plain", options)
    done = export_fleet(run, sources, out, options)
    names = {name for name in files_in(tmp_path / "plain") if name.startswith("masks/")}
    assert {Path(name).parent.name for name in names} == {"film0", "film1"}
    assert {name for name in files_in(out) if name.startswith("masks/")} == names
    assert all((out / n).read_bytes() == (tmp_path / "plain" / n).read_bytes() for n in names)
    assert out / "masks" in done.files
    assert not list(out.glob("*.parquet/masks"))
    with pytest.raises(RunError, match=r"out: is not on all machines.* leave the masks out"):
        apply_to_video(run, sources[0], options, [], out / "tracks.partial.parquet")


def test_finished_videos_are_not_done_again(codes: Run, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12, 12, 12, 12), tmp_path / "out"
    export(codes, sources, tmp_path / "plain", ExportOptions())
    spare = (tmp_path / "in" / "film3.mp4").read_bytes()
    write_truncated(tmp_path / "in" / "film3.mp4")
    with pytest.raises(VideoError, match=r"film3\.mp4: broken after .* use --skip-bad"):
        export_fleet(codes, sources, out, ExportOptions())
    (tmp_path / "in" / "film3.mp4").write_bytes(spare)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.partial.parquet/*")}
    assert "film3.parquet" not in before
    (out / "codes.partial.parquet" / f".{'0' * 32}.part").touch()  # of a killed process
    export_fleet(codes, sources, out, RESUME)
    after = {path.name: path.stat().st_mtime_ns for path in (out / "codes.parquet").iterdir()}
    assert before.items() <= after.items()
    assert files_in(out) == {
        "codes.csv",
        "summary.json",
        *(f"codes.parquet/{name}" for name in after),
    }
    assert same_files(codes, out, tmp_path / "plain")


def fails(
    run: Run,
    source: Source,
    options: ExportOptions,
    request: list[str | int | None],
    parts: Path,
) -> VideoResult:
    """Kill the worker at the first attempt at film1, and fail at every attempt at film2."""
    tries = Path(source.path).with_suffix(".tries")
    with open(tries, "ab") as file:
        file.write(b".")
    if source.name == "film1" and tries.stat().st_size == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if source.name == "film2":
        return VideoResult(error="film2.mp4: the connection was lost")
    return real_apply(run, source, options, request, parts)


def test_killed_workers_are_harmless_and_failed_videos_are_listed(
    codes: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = sources_in(tmp_path / "in", 12, 12, 12)
    export(codes, sources[:2], tmp_path / "plain", ExportOptions())
    monkeypatch.setattr(fleet, "apply_to_video", fails)
    done = export_fleet(codes, sources, tmp_path / "out", SKIP)
    table = "codes.csv"
    assert (tmp_path / "out" / table).read_bytes() == (tmp_path / "plain" / table).read_bytes()
    assert done.bad == {"film2": "film2.mp4: the connection was lost"}
    tries = [(tmp_path / "in" / f"film{i}.tries").stat().st_size for i in range(3)]
    assert tries == [1, 2, fleet.ATTEMPTS]


def test_a_video_that_kills_every_worker(
    codes: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "ATTEMPTS", 1)
    monkeypatch.setattr(fleet, "apply_to_video", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(VideoError, match=r"film0\.mp4: its worker process died"):
        export_fleet(codes, sources_in(tmp_path / "in", 12), tmp_path / "out", ExportOptions())


def test_resuming_something_else_is_refused(codes: Run, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12, 12), tmp_path / "out"
    export_fleet(codes, sources, out, ExportOptions())
    begun = out / "codes.partial.parquet"
    (out / "codes.parquet").rename(begun)
    moved = [replace(source, path=f"{source.path}.mp4") for source in sources]
    for inputs, options, words in (
        (sources[:1], RESUME, "not among the inputs"),
        (sources, replace(RESUME, stride=2), "another run"),
        (moved, RESUME, "use the same inputs"),
    ):
        with pytest.raises(RunError, match=words):
            export_fleet(codes, inputs, out, options)
    for damage in (b"", b"PAR1 no"):
        (begun / "film1.parquet").write_bytes(damage)
        with pytest.raises(RunError, match=r"film1\.parquet: is damaged; remove it"):
            export_fleet(codes, sources, out, RESUME)
    export_fleet(codes, sources, out, ExportOptions())  # starts again
    assert files_in(out / "codes.parquet") == {"film0.parquet", "film1.parquet"}


def test_nothing_but_bad_videos(codes: Run, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 12)
    Path(sources[0].path).write_bytes(b"nothing")
    for options in (ExportOptions(), SKIP):
        with pytest.raises(VideoError, match="cannot be read as a video"):
            export_fleet(codes, sources, tmp_path / "out", options)
    assert not list((tmp_path / "out").iterdir())


def test_a_full_disk_keeps_what_is_finished(
    codes: Run, tmp_path: Path, mount: Callable[[str], bool]
) -> None:
    if not mount("size=16k"):
        pytest.skip("needs the right to mount a small disk")
    sources, out = sources_in(tmp_path / "in", 12, 12, 12, 12, 12), tmp_path / "disk" / "out"
    with pytest.raises(OSError, match="No space left on device"):
        export_fleet(codes, sources, out, ExportOptions())
    kept = files_in(out)
    assert kept
    assert all(name.endswith(".parquet") for name in kept), "no file is left half written"
    assert mount("remount,size=1m")
    export_fleet(codes, sources, out, RESUME)
    export(codes, sources, tmp_path / "plain", ExportOptions())
    assert same_files(codes, out, tmp_path / "plain")


def test_videos_on_a_web_server(codes: Run, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs pip install 'fsspec[http]'")
    sources = sources_in(tmp_path / "in", 12, 12)
    export(codes, sources, tmp_path / "plain", ExportOptions())
    with served(tmp_path) as address:
        remote = find_sources([f"{address}/in/*.mp4"])
        export_fleet(codes, remote, tmp_path / "out", ExportOptions())
    assert same_files(codes, tmp_path / "out", tmp_path / "plain")


def test_bugs_are_not_hidden(codes: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "apply_to_video", lambda *_: 1 / 0)
    write_ball(tmp_path / "a.mp4", 5)
    with pytest.raises(ZeroDivisionError):
        export_fleet(codes, find_sources([f"{tmp_path}/a.mp4"]), tmp_path / "out", SKIP)
