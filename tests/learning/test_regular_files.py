"""Run folders with pipes, devices and hard links: nothing waits, and nothing outside changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ullayers as ul
from tests.learning.short_runs import learn, resume, stopped
from ullayers.errors import RunError
from ullayers.files import keep_beginning, read_regular
from ullayers.run.folder import check_free
from ullayers.run.plan import load_plan

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes"),
    pytest.mark.timeout(60),  # instead of waiting for a pipe
]

Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def paused(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "paused"
    stopped(film, folder, 4)
    return folder


@pytest.fixture(scope="module")
def watched(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    list(ul.watch(film, size=16, max_frames=3, folder=folder, objects=1))
    return folder


def copy(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


either = pytest.mark.parametrize("spoil", [pipe, device])


@either
def test_only_regular_files_are_read(tmp_path: Path, spoil: Spoil) -> None:
    spoil(tmp_path / "file")
    with pytest.raises(ValueError, match="is not a regular file; remove it"):
        read_regular(tmp_path / "file", 10)


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(10 * b"a")
    assert read_regular(tmp_path / "file", 10) == 10 * b"a"
    with pytest.raises(ValueError, match="expected at most 9 bytes"):
        read_regular(tmp_path / "file", 9)


@pytest.mark.parametrize("size", [0, 3, 2**20, 2**20 + 1, 10**7])
def test_the_beginning_is_kept_and_hard_links_are_not_written_through(
    tmp_path: Path, size: int
) -> None:
    content = 10**6 * b"abc"
    (tmp_path / "outside").write_bytes(content)
    os.link(tmp_path / "outside", tmp_path / "file")
    keep_beginning(tmp_path / "file", size)
    assert (tmp_path / "file").read_bytes() == content[:size]
    assert (tmp_path / "outside").read_bytes() == content


@either
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_run_is_refused(finished: Path, tmp_path: Path, spoil: Spoil, name: str) -> None:
    folder = copy(finished, tmp_path)
    spoil(folder / name)
    with pytest.raises(RunError, match=rf"{name}.* is (not a regular|damaged)") as error:
        load_plan(folder)
    assert "\n" not in str(error.value)


@either
def test_metrics_are_refused(finished: Path, tmp_path: Path, spoil: Spoil) -> None:
    folder = copy(finished, tmp_path)
    spoil(folder / "metrics.jsonl")
    with pytest.raises(RunError, match=r"metrics.jsonl: .*is not a regular file; remove it"):
        load_plan(folder).records()


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoint/state.json"])
def test_a_checkpoint_is_refused(paused: Path, tmp_path: Path, name: str) -> None:
    folder = copy(paused, tmp_path)
    pipe(folder / name)
    with pytest.raises(RunError, match=r"is damaged; start again with --force"):
        resume(folder)


def test_tensors_of_a_checkpoint_are_refused(paused: Path, tmp_path: Path) -> None:
    folder = copy(paused, tmp_path)
    for path in (folder / "checkpoint").glob("*.safetensors"):
        pipe(path)
    with pytest.raises(RunError, match=r"is damaged or missing; .*--force"):
        resume(folder)


@either
def test_a_spoilt_run_can_be_replaced(
    finished: Path, film: str, tmp_path: Path, spoil: Spoil
) -> None:
    folder = copy(finished, tmp_path)
    for name in ("config.json", "metrics.jsonl", "tracks.partial.sqlite"):
        spoil(folder / name)
    if spoil is device:
        with pytest.raises(RunError, match="is a link that leads out"):
            check_free(folder, force=True)
    else:
        learn(film, folder, force=True)
        assert load_plan(folder).records()


def test_learning_does_not_write_through_a_hard_link(film: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("not ours")
    (folder / "config.json").write_text('{"learn": {}}')  # a run, so force may replace it
    os.link(outside, folder / "metrics.jsonl")
    learn(film, folder, force=True)
    assert outside.read_text() == "not ours"


@either
@pytest.mark.parametrize("name", ["tracks.csv", "codes.csv"])
def test_a_table_that_cannot_be_ours(tmp_path: Path, spoil: Spoil, name: str) -> None:
    spoil(tmp_path / name)
    with pytest.raises(RunError, match=f"contains a {name} that does not belong to a run"):
        check_free(tmp_path, force=True)


def test_watching_resumes_only_with_a_regular_table(
    watched: Path, film: str, tmp_path: Path
) -> None:
    folder = copy(watched, tmp_path)
    pipe(folder / "tracks.csv")
    with pytest.raises(RunError, match=r"checkpoint is damaged .*--force"):
        list(ul.watch(film, folder=folder, resume=True))


@pytest.mark.parametrize("goes_on", [True, False])
def test_watching_does_not_write_through_a_hard_link(
    watched: Path, film: str, tmp_path: Path, goes_on: bool
) -> None:
    folder, outside = copy(watched, tmp_path), tmp_path / "outside"
    before = (folder / "tracks.csv").read_bytes()
    os.link(folder / "tracks.csv", outside)
    again = ul.watch(
        film, size=16, folder=folder, max_frames=4, objects=1, resume=goes_on, force=not goes_on
    )
    list(again)
    assert outside.read_bytes() == before
    rows = (folder / "tracks.csv").read_text().splitlines()
    assert len(rows) == (8 if goes_on else 5)
