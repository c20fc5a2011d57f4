"""Exports that are resumed, and folders with links that lead elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.exports import broken_middle, sources_in, with_metrics
from tests.films import (
    BALL,
    contents,
    files_in,
    read_table,
    write_ball,
    write_truncated,
)
from tests.tracks.growing import change_rows, execute, leave_unfinished
from ullayers.errors import RunError
from ullayers.run.plan import Plan
from ullayers.run.reports import report_run
from ullayers.run.write import ExportOptions, export
from ullayers.tracks.table import TRACK
from ullayers.video.sources import Source, VideoError, find_sources, read_all

Damage = Callable[[Path], object]  # of a growing table


@dataclass(frozen=True)
class Begun:
    """An export that has ended at a broken source, with a table of those before it."""

    sources: list[Source]
    folder: Path

    def copy_to(self, out: Path) -> list[Source]:
        shutil.copytree(self.folder, out)
        return self.sources


def begin(run: Plan, place: Path) -> Begun:
    sources, out = broken_middle(place / "in"), place / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    return Begun(sources, out)


@pytest.fixture(scope="module")
def begun(run: Plan, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """Begun once for all tests, which copy it and do not change the sources."""
    return begin(run, tmp_path_factory.mktemp("begun"))


def test_resuming_does_the_rest_and_gives_the_same_table(either: Plan, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(either, sources, out, ExportOptions())
    [partial] = [path for path in out.glob("*.partial.sqlite") if "outlines" not in path.name]
    leave_unfinished(partial, "film9")
    write_ball(tmp_path / "in" / "film1.mp4", 12, *BALL, seed=1)
    seen: list[int] = []
    export(either, sources, out, ExportOptions(resume=True), seen.append)
    assert seen[-1] == 24, "the first one is not done again"
    whole = export(either, sources, tmp_path / "whole", ExportOptions()).files[0]
    assert (out / whole.name).read_bytes() == whole.read_bytes()
    assert files_in(out) == files_in(tmp_path / "whole")


def test_what_is_resumed_is_whole(either: Plan, tmp_path: Path) -> None:
    """Rows, masks, and what the video and the report show of the sequences that were finished."""
    sources, out, locate = broken_middle(tmp_path / "in"), tmp_path / "out", either.config.task
    wanted = ExportOptions(overlay=15, masks=locate == "locate")
    with pytest.raises(VideoError):
        export(either, sources, out, wanted)
    write_ball(tmp_path / "in" / "film1.mp4", 12, *BALL, seed=1)
    done = export(either, sources, out, replace(wanted, resume=True))
    whole = export(either, sources, tmp_path / "whole", wanted)
    assert [len(found.index) for found in done.answers] == [12, 12, 12]
    for found, expected in zip(done.answers, whole.answers, strict=True):
        assert np.allclose(found.values, expected.values, atol=1e-6)
        assert np.array_equal(found.index, expected.index)
    assert files_in(out) == files_in(tmp_path / "whole")
    films = [str(place / "overlay.mp4") for place in (out, tmp_path / "whole")]
    shown = [read_all(source).frames.float() for source in find_sources(films)]
    assert len(shown[0]) == 15
    assert float((shown[0] - shown[1]).abs().mean()) < 0.1
    report_run(replace(either, folder=with_metrics(either, tmp_path)), sources, done)


class StoppedError(Exception):
    """Raised in the middle of an export."""


def test_the_summary_of_what_is_resumed_is_whole(run: Plan, tmp_path: Path) -> None:
    """Other objects, notes and errors are not in the table."""
    sources, out = sources_in(tmp_path / "in", 40, 12, 12), tmp_path / "out"
    write_truncated(tmp_path / "in" / "film0.mp4")
    wanted = ExportOptions(objects=3, skip_bad=True)
    whole = export(run, sources, tmp_path / "whole", wanted)
    before_last = sum(len(answer.index) for answer in whole.answers[:2])

    def stop(count: int) -> None:
        if count > before_last:
            raise StoppedError

    with pytest.raises(StoppedError):
        export(run, sources, out, wanted, stop)
    done = export(run, sources, out, replace(wanted, resume=True))
    assert done.restored.keys() == {"film0", "film1"}
    assert whole.totals.compared > 0
    assert whole.notes.keys() == {"film0", "film1", "film2"}
    assert whole.bad.keys() == {"film0"}
    assert done.totals == whole.totals
    assert done.sequences == whole.sequences
    assert done.notes == whole.notes
    assert done.bad == whole.bad


def test_masks_that_were_not_asked_for_before(run: Plan, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    write_ball(tmp_path / "in" / "film1.mp4", 12, *BALL, seed=1)
    export(run, sources, out, ExportOptions(resume=True, masks=True))
    assert len(files_in(out / "masks")) == len(read_table(out / "tracks.csv")) == 36


def test_resuming_past_a_source_that_stays_broken(run: Plan, tmp_path: Path) -> None:
    sources, out = broken_middle(tmp_path / "in")[:2], tmp_path / "out"
    (tmp_path / "in" / "film1.mp4").write_bytes(b"nothing")
    with pytest.raises(VideoError):
        export(run, sources, out, ExportOptions())
    done = export(run, sources, out, ExportOptions(resume=True, skip_bad=True))
    assert list(done.bad) == ["film1"]
    assert {row["sequence"] for row in read_table(out / "tracks.csv")} == {"film0"}


def test_an_export_begun_by_an_earlier_version_starts_again(run: Plan, tmp_path: Path) -> None:
    sources, out = sources_in(tmp_path / "in", 5), tmp_path / "out"
    out.mkdir()
    (out / "tracks.partial.csv").write_text("sequence,frame,time,x,y,confidence\n")
    (out / "tracks.partial.json").write_text("{}")
    export(run, sources, out, ExportOptions(resume=True))
    assert files_in(out) == {"tracks.csv", "outlines.sqlite", "summary.json"}
    assert len(read_table(out / "tracks.csv")) == 5


def test_resuming_where_nothing_was_begun(run: Plan, tmp_path: Path) -> None:
    sources = sources_in(tmp_path / "in", 5)
    export(run, sources, tmp_path / "out", ExportOptions(resume=True))
    assert len(read_table(tmp_path / "out" / "tracks.csv")) == 5


def test_resuming_something_else_is_refused(run: Plan, begun: Begun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sources = begun.copy_to(out)
    for other in (ExportOptions(resume=True, stride=2), ExportOptions(resume=True, max_frames=3)):
        with pytest.raises(RunError, match="was started with another run"):
            export(run, sources, out, other)
    with pytest.raises(RunError, match="was started with another run"):
        export(replace(run, folder=tmp_path), sources, out, ExportOptions(resume=True))


def test_rows_of_another_file_of_the_same_name_are_not_taken(
    run: Plan, begun: Begun, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    begun.copy_to(out)
    others = sources_in(tmp_path / "in", 12, 12, 12)
    with pytest.raises(RunError, match=r"has film0 from .*; use the same inputs"):
        export(run, others, out, ExportOptions(resume=True))


def set_note(note: object) -> Damage:
    return lambda path: execute(path, "UPDATE sequences SET note = ?", json.dumps(note))


def set_layout(**changes: object) -> Damage:
    layout = {"columns": TRACK, "size": None, "box": None}
    widths = {"index": 1, "seconds": 1, "values": 3, "shapes": 5, "others": 1}
    content = json.dumps({**layout, "widths": widths, **changes})
    return lambda path: execute(path, "UPDATE sequences SET layout = ?", content)


def set_frame(number: float) -> Damage:
    def change(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        rows[0, 0] = number
        return rows

    return lambda path: change_rows(path, change)


def cut_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


DAMAGES: dict[str, Damage] = {
    "no table": lambda path: path.write_bytes(b"sequence,frame,object,time"),
    "cut": cut_bytes,
    "fewer columns": lambda path: change_rows(path, lambda rows: rows[:, :-1]),
    "no rows": lambda path: execute(path, "DELETE FROM rows"),
    "text instead of rows": lambda path: execute(path, "UPDATE rows SET columns = 'a'"),
    "other tables": lambda path: execute(path, "CREATE TABLE more (x)"),
    "a view": lambda path: execute(path, "CREATE VIEW more AS SELECT * FROM rows"),
    "layout without columns": set_layout(columns=None),
    "layout of another kind": set_layout(widths={"index": 1, "seconds": 1, "values": 2}),
    "layout with other arrays": set_layout(widths={"masks": 11}),
    "layout with a huge width": set_layout(widths={"index": 1, "seconds": 1, "values": 10**12}),
    "layout of another size": set_layout(size=5),
    "no note": set_note({}),
    "note with other types": set_note({"path": 5}),
    "note as text": lambda path: execute(path, "UPDATE sequences SET note = '[['"),
    "note as bytes": lambda path: execute(path, "UPDATE sequences SET note = x'ff'"),
} | {f"frame {number}": set_frame(number) for number in (-1.0, np.nan, np.inf, 1e300)}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.filterwarnings("error")
def test_damaged_tables_are_refused_and_left_alone(
    run: Plan, begun: Begun, tmp_path: Path, damage: str
) -> None:
    out = tmp_path / "out"
    sources = begun.copy_to(out)
    DAMAGES[damage](out / "tracks.partial.sqlite")
    before = contents(out)
    with pytest.raises(RunError, match=r"partial\.sqlite: is damaged; start again with --force"):
        export(run, sources, out, ExportOptions(resume=True))
    assert contents(out) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.timeout(60)
def test_a_partial_table_that_is_a_pipe(run: Plan, begun: Begun, tmp_path: Path) -> None:
    name = "tracks.partial.sqlite"
    out = tmp_path / "out"
    sources = begun.copy_to(out)
    (out / name).unlink()
    os.mkfifo(out / name)
    with pytest.raises(RunError, match=rf"{name}: is damaged; start again with --force"):
        export(run, sources, out, ExportOptions(resume=True))
    export(run, sources, out, ExportOptions(skip_bad=True))
    assert files_in(out) == {"tracks.csv", "outlines.sqlite", "summary.json"}


@pytest.mark.parametrize("resume", [True, False])
def test_hard_links_are_not_written_through(
    run: Plan, begun: Begun, tmp_path: Path, resume: bool
) -> None:
    out = tmp_path / "out"
    sources = begun.copy_to(out)
    leave_unfinished(out / "tracks.partial.sqlite", "film9")
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("tracks.partial.sqlite", "outlines.partial.sqlite"):
        os.link(out / name, kept / name)
    before = contents(kept)
    export(run, sources, out, ExportOptions(resume=resume, skip_bad=True))
    assert contents(kept) == before


def outside(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with a file that an export must not touch, and the folder to export to."""
    place, out = tmp_path / "outside", tmp_path / "out"
    (place / "film0").mkdir(parents=True)
    out.mkdir()
    for name in ("000000.png", "film0/000000.png", f"film0/.{32 * '0'}.part"):
        (place / name).write_bytes(b"not ours")
    return place, out


@pytest.mark.parametrize("link", ["masks", "masks/film0", "masks/other"])
@pytest.mark.parametrize("masks", [True, False])
def test_links_in_masks_are_not_followed(run: Plan, tmp_path: Path, link: str, masks: bool) -> None:
    place, out = outside(tmp_path)
    (out / link).parent.mkdir(exist_ok=True)
    (out / link).symlink_to(place if link == "masks" else place / "film0")
    before = contents(place)
    sources = sources_in(tmp_path / "in", 3)
    with pytest.raises(RunError, match=r"masks.*: is a link that leads out of .*; remove the link"):
        export(run, sources, out, ExportOptions(masks=masks))
    assert contents(place) == before
    assert (out / link).is_symlink()


@pytest.mark.parametrize("resume", [True, False])
def test_a_partial_table_that_is_a_link_is_not_followed(
    run: Plan, begun: Begun, tmp_path: Path, resume: bool
) -> None:
    out, name = tmp_path / "out", "tracks.partial.sqlite"
    sources = begun.copy_to(out)
    target = tmp_path / "target"
    (out / name).rename(target)
    with open(target, "a") as file:
        file.write(" ")
    (out / name).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(RunError, match=rf"{name}: is a link that leads out"):
        export(run, sources, out, ExportOptions(resume=resume))
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["tracks.csv", "summary.json", "overlay.mp4"])
def test_a_result_that_is_a_link_is_replaced(run: Plan, tmp_path: Path, name: str) -> None:
    place, out = outside(tmp_path)
    (out / name).symlink_to(place / "000000.png")
    export(run, sources_in(tmp_path / "in", 3), out, ExportOptions(overlay=3))
    assert (place / "000000.png").read_bytes() == b"not ours"
    assert not (out / name).is_symlink()
