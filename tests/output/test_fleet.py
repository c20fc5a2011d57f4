"""Fleets of video on Ray: the results of the plain command, whatever dies on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ullayers.run.fleet as fleet
from tests.exports import sources_in
from tests.films import files_in, write_ball, write_truncated
from tests.servers import served
from ullayers.run.fleet import LOCAL, apply_fleet, apply_in_worker, cluster
from ullayers.run.folder import PART_NOTE, PARTS
from ullayers.run.parts import PartNote, finished_parts, part_request
from ullayers.run.plan import Plan
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.behaviour import measure_folder, write_behaviour
from ullayers.video.sources import Source, VideoError, find_sources

pytest.importorskip("ray", reason="needs pip install 'ullayers[ray]'")

PLAIN = ExportOptions()
RESUME = ExportOptions(resume=True)
SKIP = ExportOptions(skip_bad=True)
real_apply = apply_in_worker


@pytest.fixture(scope="module", autouse=True)
def ray_instance() -> Iterator[None]:
    """Ray starts slowly, so all tests of this module share an instance."""
    with cluster(LOCAL, cpus=2):
        yield


def same_files(folder: Path, plain: Path) -> bool:
    names = files_in(plain) - {"outlines.sqlite", "overlay.mp4"}  # see test_parts.py
    return all((folder / name).read_bytes() == (plain / name).read_bytes() for name in names)


def test_results_are_those_of_the_plain_export(either: Plan, tmp_path: Path) -> None:
    sources_in(tmp_path / "in", 12, 160, 30)
    write_truncated(tmp_path / "in" / "film10.mp4")
    sources = find_sources([f"{tmp_path}/**/*.mp4"])
    options = ExportOptions(
        skip_bad=True, masks=either.config.task == "locate", overlay=50, objects=None
    )
    plain = export(either, sources, tmp_path / "plain", options)
    if either.config.task == "locate":
        write_behaviour(tmp_path / "plain", measure_folder(tmp_path / "plain", plain.sequences))
    seen: list[tuple[int, int]] = []
    out = tmp_path / "out"
    done = apply_fleet(either, sources, out, options, lambda *two: seen.append(two))
    assert same_files(out, tmp_path / "plain")
    assert (done.bad, list(done.bad)) == (plain.bad, ["film10"])
    assert seen[-1] == (4, plain.totals.frames)
    assert {path.stem for path in (out / "overlays").iterdir()} == {s.name for s in sources}


def test_finished_videos_are_not_done_again(codes: Plan, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12, 12, 12, 12), tmp_path / "out"
    export(codes, sources, tmp_path / "plain", PLAIN)
    spare = (tmp_path / "in" / "film3.mp4").read_bytes()
    write_truncated(tmp_path / "in" / "film3.mp4")
    with pytest.raises(VideoError, match=r"film3\.mp4: broken after .* use --skip-bad"):
        apply_fleet(codes, sources, out, PLAIN)
    (tmp_path / "in" / "film3.mp4").write_bytes(spare)
    before = finished_parts(sources, out, part_request(codes, PLAIN), skip_bad=False)
    assert "film3" not in before
    seen: list[tuple[int, int]] = []
    apply_fleet(codes, sources, out, RESUME, lambda *two: seen.append(two))
    assert len(seen) == 4 - len(before)
    assert same_files(out, tmp_path / "plain")
    assert files_in(out) == files_in(tmp_path / "plain")


def fails(run: Plan, source: Source, options: ExportOptions, out: Path) -> PartNote:
    """Kill the worker at the first attempt at film1, and at every attempt at film2."""
    tries = Path(source.path).with_suffix(".tries")
    with open(tries, "ab") as file:
        file.write(b".")
    if source.name == "film1" and tries.stat().st_size == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if source.name == "film2":
        os.kill(os.getpid(), signal.SIGKILL)
    return real_apply(run, source, options, out)


def test_killed_workers_are_harmless_and_failed_videos_are_listed(
    codes: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = sources_in(tmp_path / "in", 12, 12, 12)
    export(codes, sources[:2], tmp_path / "plain", PLAIN)
    monkeypatch.setattr(fleet, "apply_in_worker", fails)
    done = apply_fleet(codes, sources, tmp_path / "out", SKIP)
    table = "codes.csv"
    assert (tmp_path / "out" / table).read_bytes() == (tmp_path / "plain" / table).read_bytes()
    assert list(done.bad) == ["film2"]
    assert "film2.mp4: its worker process died" in done.bad["film2"]
    tries = [(tmp_path / "in" / f"film{i}.tries").stat().st_size for i in range(3)]
    assert tries == [1, 2, fleet.ATTEMPTS]


def test_a_video_that_kills_every_worker(
    codes: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "ATTEMPTS", 1)
    monkeypatch.setattr(fleet, "apply_in_worker", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(VideoError, match=r"film0\.mp4: its worker process died"):
        apply_fleet(codes, sources_in(tmp_path / "in", 12), tmp_path / "out", PLAIN)


def test_nothing_but_bad_videos(codes: Plan, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12), tmp_path / "out"
    Path(sources[0].path).write_bytes(b"nothing")
    for options in (PLAIN, SKIP):
        with pytest.raises(VideoError, match="cannot be read as a video"):
            apply_fleet(codes, sources, out, options)
    assert not list(out.iterdir())


def test_a_full_disk_keeps_what_is_finished(
    codes: Plan, tmp_path: Path, mount: Callable[[str], bool]
) -> None:
    if not mount("size=320k"):
        pytest.skip("needs the right to mount a small disk")
    sources, out = sources_in(tmp_path / "in", *[12] * 24), tmp_path / "disk" / "out"
    with pytest.raises(OSError, match="No space left on device"):
        apply_fleet(codes, sources, out, PLAIN)
    kept = finished_parts(sources, out, part_request(codes, PLAIN), skip_bad=False)
    assert 1 <= len(kept) < 24
    assert mount("remount,size=8m")
    apply_fleet(codes, sources, out, RESUME)
    export(codes, sources, tmp_path / "plain", PLAIN)
    assert same_files(out, tmp_path / "plain")
    assert not list(out.glob(f"{PARTS}/*/{PART_NOTE}"))


def test_videos_on_a_web_server(codes: Plan, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs pip install 'fsspec[http]'")
    sources = sources_in(tmp_path / "in", 12, 12)
    export(codes, sources, tmp_path / "plain", PLAIN)
    with served(tmp_path) as address:
        remote = find_sources([f"{address}/in/*.mp4"])
        apply_fleet(codes, remote, tmp_path / "out", PLAIN)
    assert same_files(tmp_path / "out", tmp_path / "plain")


def test_bugs_are_not_hidden(codes: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "apply_in_worker", lambda *_: 1 / 0)
    write_ball(tmp_path / "a.mp4", 5)
    with pytest.raises(ZeroDivisionError):
        apply_fleet(codes, find_sources([f"{tmp_path}/a.mp4"]), tmp_path / "out", SKIP)
