"""Results of single videos, joined: what one export of all videos writes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.exports import sources_in
from tests.films import contents, files_in, write_ball, write_truncated
from ullayers.errors import RunError
from ullayers.run.folder import PART_NOTE, PARTS, clear_run
from ullayers.run.parts import Joined, apply_part, finished_parts, join_parts, part_request
from ullayers.run.plan import Plan, csv_name
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.behaviour import Zones, measure_folder, read_zones, write_behaviour
from ullayers.tracks.masks import OUTLINES
from ullayers.video.sources import Source, VideoError

SKIP = ExportOptions(skip_bad=True)


def apply_all(run: Plan, sources: list[Source], out: Path, options: ExportOptions) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for source in reversed(sources):  # in any order
        apply_part(run, source, options, out)


def joined(
    run: Plan, sources: list[Source], out: Path, options: ExportOptions, zones: Zones | None = None
) -> Joined:
    notes = finished_parts(sources, out, part_request(run, options), skip_bad=options.skip_bad)
    return join_parts(run, sources, out, notes, zones, None if zones is None else 0.5)


def outlines(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / OUTLINES)) as database:
        return list(database.iterdump())


@pytest.mark.parametrize("objects", [1, None])
def test_joined_results_are_those_of_the_plain_export(
    either: Plan, tmp_path: Path, objects: int | None
) -> None:
    sources, out, plain = sources_in(tmp_path / "in", 12, 30, 12), tmp_path / "out", tmp_path / "p"
    write_truncated(Path(sources[1].path))
    is_located = either.config.task == "locate"
    options = replace(SKIP, masks=is_located, overlay=10**6, objects=objects)
    zones = None
    if is_located:
        zones_file = tmp_path / "zones.json"
        zones_file.write_text('{"zones": {"a": [[0, 0], [20, 0], [20, 20]]}}')
        zones = read_zones(zones_file)
    done = export(either, sources, plain, options)
    apply_all(either, sources, out, options)
    found = joined(either, sources, out, options, zones)
    assert (found.bad, found.sequences, found.totals) == (done.bad, done.sequences, done.totals)
    assert list(found.bad) == ["film1"]
    if is_located:
        write_behaviour(plain, measure_folder(plain, done.sequences), zones, 0.5)
        assert outlines(out) == outlines(plain)
    expected = {
        name: content
        for name, content in contents(plain).items()
        if name not in ("overlay.mp4", OUTLINES)
    }
    overlays = {f"overlays/{source.name}.mp4" for source in sources}
    assert files_in(out) == {*expected, *overlays, *([OUTLINES] if is_located else [])}
    assert {name: (out / name).read_bytes() for name in expected} == expected
    assert {path.relative_to(out).as_posix() for path in found.files} == {
        csv_name(either),
        "summary.json",
        "overlays",
        *(["masks", "behaviour.csv", "zones.csv", OUTLINES] if is_located else []),
    }


def test_joining_that_was_stopped_is_repeated(
    run: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, out, plain = sources_in(tmp_path / "in", 12, 12), tmp_path / "out", tmp_path / "plain"
    options = ExportOptions(masks=True)
    export(run, sources, plain, options)
    apply_all(run, sources, out, options)

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ullayers.run.parts.write_summary", stop)
        with pytest.raises(KeyboardInterrupt):
            joined(run, sources, out, options)
    assert (out / "masks").is_dir()
    joined(run, sources, out, options)
    for name in files_in(plain) - {OUTLINES}:
        assert (out / name).read_bytes() == (plain / name).read_bytes()
    assert outlines(out) == outlines(plain)
    assert not (out / PARTS).exists()


def test_a_part_of_a_killed_process_is_done_again(codes: Plan, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12, 12), tmp_path / "out"
    apply_all(codes, sources, out, SKIP)
    (out / PARTS / "film1" / PART_NOTE).unlink()
    (out / PARTS / "film1" / "codes.csv").write_text("sequence,frame,ti")
    notes = finished_parts(sources, out, part_request(codes, SKIP), skip_bad=True)
    assert list(notes) == ["film0"]
    apply_part(codes, sources[1], SKIP, out)
    export(codes, sources, tmp_path / "plain", SKIP)
    joined(codes, sources, out, SKIP)
    assert (out / "codes.csv").read_bytes() == (tmp_path / "plain" / "codes.csv").read_bytes()


def test_parts_of_something_else_are_refused(codes: Plan, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12, 12), tmp_path / "out"
    apply_all(codes, sources, out, SKIP)
    moved = [replace(source, path=f"{source.path}.mp4") for source in sources]
    for inputs, options, words in (
        (sources[:1], SKIP, "not among the inputs"),
        (sources, replace(SKIP, stride=2), "another run"),
        (sources, replace(SKIP, overlay=5), "--overlay"),
        (moved, SKIP, "use the same inputs"),
    ):
        with pytest.raises(RunError, match=words):
            finished_parts(inputs, out, part_request(codes, options), skip_bad=True)
    note = out / PARTS / "film1" / PART_NOTE
    note.write_text(json.dumps({"request": []}))
    with pytest.raises(RunError, match=r"part\.json: is damaged; remove it"):
        finished_parts(sources, out, part_request(codes, SKIP), skip_bad=True)


def test_nothing_but_bad_videos(codes: Plan, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12), tmp_path / "out"
    Path(sources[0].path).write_bytes(b"nothing")
    apply_all(codes, sources, out, SKIP)
    with pytest.raises(VideoError, match="cannot be read as a video"):
        joined(codes, sources, out, SKIP)
    assert not list(out.iterdir())


def test_missing_folders_are_named(codes: Plan, tmp_path: Path) -> None:
    write_ball(tmp_path / "film.mp4", 5)
    source = Source("film", str(tmp_path / "film.mp4"), "video")
    with pytest.raises(RunError, match=r"out: is not on all machines; mount it there"):
        apply_part(codes, source, SKIP, tmp_path / "out")
    mine = tmp_path / "out" / PARTS / "film" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.raises(RunError, match="film: is not a result"):
        apply_part(codes, source, SKIP, tmp_path / "out")
    assert mine.exists()


def test_parts_are_removed_with_the_results(codes: Plan, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 12), tmp_path / "out"
    apply_all(codes, sources, out, replace(SKIP, overlay=5))
    (out / PARTS / "film9").mkdir()  # of a process that was killed at once
    (out / PARTS / "mine").mkdir()
    (out / PARTS / "mine" / "notes.txt").touch()
    clear_run(out)
    assert [path.relative_to(out).as_posix() for path in out.rglob("*")] == [
        "parts",
        "parts/mine",
        "parts/mine/notes.txt",
    ]
