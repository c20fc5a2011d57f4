"""The run folder: whole or not there, continued exactly, and careful with what is not its own."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ullayers
import ullayers.learn.run_training as run_training
from tests.films import contents, files_in, write_ball
from ullayers.learn.apply import answers
from ullayers.learn.checkpoint import RunError, load_state, save_state
from ullayers.learn.config import Config
from ullayers.learn.folders import check_free
from ullayers.learn.run_training import learn_run
from ullayers.learn.runs import Run, load_run, plan_run, sources_of
from ullayers.video.reader import VideoError

SHORT = Config(steps=5, trial_steps=3, restarts=1, batch=2, clip=12)
CODES = Config(task="orient", steps=5, trial_steps=3, restarts=1, batch=2, clip=12)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_ball(tmp_path_factory.mktemp("film") / "ball.mp4")


def learn(film: str, folder: Path, config: Config = SHORT, **how: Any) -> Run:
    run, sources = plan_run([film], folder, config, size=16, **how)
    for _ in learn_run(run, sources):
        pass
    return run


@pytest.fixture(scope="module")
def finished(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(film, tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_training, "CHECKPOINT_STEPS", 1)


def stopped(film: str, folder: Path, steps: int, config: Config = SHORT) -> None:
    """A run that was stopped after some steps."""
    run, sources = plan_run([film], folder, config, size=16)
    going = learn_run(run, sources)
    list(islice(going, steps))
    going.close()


def resume(folder: Path) -> Run:
    run = load_run(folder)
    for _ in learn_run(run, sources_of(run)):
        pass
    return run


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]


def test_planning_writes_nothing(film: str, tmp_path: Path) -> None:
    run, sources = plan_run([film], tmp_path / "run", SHORT, max_frames=30, stride=4)
    assert not list(tmp_path.iterdir())
    assert run.reading.size == (48, 64)
    assert (run.reading.stride, run.reading.max_frames) == (4, 8)
    assert run.inputs == [film]
    assert [source.name for source in sources] == ["ball"]


def test_a_finished_run_is_whole_and_says_what_it_did(finished: Path, film: str) -> None:
    run = load_run(finished)
    assert run.net is not None
    assert not run.net.training
    config = json.loads((finished / "config.json").read_text())
    assert config["inputs"] == [film]
    assert config["learn"]["lr"] == 3e-3, "defaults are written down as they were used"
    assert config["result"]["frames"] == 40
    assert not [name for name in files_in(finished) if name.endswith(".part")]
    written = {name.split("/")[0] for name in files_in(finished)}
    assert written == {"config.json", "metrics.jsonl", "model.safetensors", "tensorboard"}


def test_the_kept_trial_is_the_one_with_the_lowest_objective(finished: Path) -> None:
    result = json.loads((finished / "config.json").read_text())["result"]
    assert len(result["scores"]) == 2
    assert result["trial"] == int(np.argmin(result["scores"]))
    assert result["kind"] == ["clip", "stream"][result["trial"]]
    rows = records(finished)
    assert [row["trial"] for row in rows] == [0] * 3 + [1] * 3 + [result["trial"]] * 2
    assert {row["kind"] for row in rows[6:]} == {result["kind"]}


def test_metrics_can_be_read_while_it_learns(film: str, tmp_path: Path) -> None:
    run, sources = plan_run([film], tmp_path / "run", SHORT, size=16)
    for count, (_, record) in enumerate(learn_run(run, sources), 1):
        rows = run.records()
        assert len(rows) == count
        assert rows[-1]["step"] == record.step
        assert not (run.folder / "model.safetensors").exists()
        assert load_run(run.folder).net is None, "it is a run already, and not yet a finished one"


def test_tensorboard_has_every_step(finished: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = events.EventAccumulator(str(finished / "tensorboard"))
    board.Reload()
    kept = [row for row in records(finished) if row["trial"] == 0]
    shown = board.Scalars("J/clip-0")
    assert [event.step for event in shown] == [row["step"] for row in kept]
    assert np.allclose([event.value for event in shown], [row["objective"] for row in kept])


def test_tensorboard_is_not_needed(
    film: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_training, "find_spec", lambda name: None)
    run = learn(film, tmp_path / "run")
    assert not (run.folder / "tensorboard").exists()
    assert records(run.folder) == records(finished)


@pytest.mark.parametrize("config", [SHORT, CODES], ids=["locate", "orient"])
@pytest.mark.parametrize("stop", [1, 4])
def test_a_stopped_run_goes_on_exactly(
    film: str, tmp_path: Path, every_step: None, config: Config, stop: int
) -> None:
    whole = learn(film, tmp_path / "whole", config)
    stopped(film, tmp_path / "paused", stop, config)
    paused = resume(tmp_path / "paused")
    for name in ("model.safetensors", "config.json"):
        assert (paused.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert records(paused.folder) == records(whole.folder)


def test_without_a_checkpoint_it_starts_again(film: str, finished: Path, tmp_path: Path) -> None:
    """Stopped before the first one, or killed while the first one was written."""
    for half in (False, True):
        folder = tmp_path / f"run{half}"
        stopped(film, folder, 2)
        shutil.rmtree(folder / "checkpoint")
        if half:
            (folder / "checkpoint").mkdir()
            (folder / "checkpoint" / f".{32 * 'a'}.part").write_bytes(b"half")
            (folder / f".{32 * 'b'}.part").write_bytes(b"half")
        resume(folder)
        saved = [(place / "model.safetensors").read_bytes() for place in (folder, finished)]
        assert saved[0] == saved[1]
        assert not [name for name in files_in(folder) if name.endswith(".part")]


def test_what_a_killed_process_left_is_swept_away(
    film: str, tmp_path: Path, every_step: None
) -> None:
    stopped(film, tmp_path, 4)
    for place in (tmp_path, tmp_path / "checkpoint"):
        (place / f".{32 * '0'}.part").write_bytes(b"half")
        (place / ".mine.part").write_bytes(b"not from here")
    resume(tmp_path)
    parts = {name for name in files_in(tmp_path) if name.endswith(".part")}
    assert parts == {".mine.part", "checkpoint/.mine.part"}


def test_a_checkpoint_is_old_or_new_but_never_half(tmp_path: Path) -> None:
    one, two = {"w": torch.ones(3)}, {"w": torch.zeros(3)}
    save_state(tmp_path / "c", one, {"step": 1})
    save_state(tmp_path / "c", two, {"step": 2})
    kept = contents(tmp_path)
    save_state(tmp_path / "c", one, {"step": 3})
    (tmp_path / "c" / "state.json").write_bytes(kept["c/state.json"])  # killed before this one
    tensors, rest = load_state(tmp_path / "c")
    assert rest["step"] == 2
    assert torch.equal(tensors["w"], torch.zeros(3))


def test_other_videos_cannot_be_gone_on_with(tmp_path: Path, every_step: None) -> None:
    film = write_ball(tmp_path / "a.mp4", 40)
    stopped(film, tmp_path / "run", 4)
    write_ball(tmp_path / "a.mp4", 30)
    with pytest.raises(RunError, match="began with 40 frames, now there are 30"):
        resume(tmp_path / "run")


def test_force_starts_anew_even_where_there_is_a_checkpoint(
    film: str, tmp_path: Path, every_step: None
) -> None:
    fresh = learn(film, tmp_path / "fresh", Config(**{**vars(SHORT), "seed": 7}))
    stopped(film, tmp_path / "run", 4)
    again = learn(film, tmp_path / "run", Config(**{**vars(SHORT), "seed": 7}), force=True)
    saved = [(run.folder / "model.safetensors").read_bytes() for run in (fresh, again)]
    assert saved[0] == saved[1]
    assert len(records(again.folder)) == len(records(fresh.folder))


def test_force_replaces_what_is_ours_and_nothing_else(
    film: str, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    ours = ("report.html", "overlay.mp4", "codes.csv", "tracks.partial.csv", "masks/a/000001.png")
    theirs = ("notes.txt", "masks/a/best.png", "masks/mine.txt", "checkpoint/notes.txt", "a.csv")
    for name in ours + theirs:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("before")
    run = learn(film, folder, CODES, force=True)
    left = files_in(folder)
    assert set(theirs) <= left
    assert all((folder / name).read_text() == "before" for name in theirs)
    assert not set(ours) & left
    assert load_run(folder).config.task == "orient"
    assert len(run.records()) == 5


def test_force_with_bad_inputs_leaves_the_old_run(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = contents(folder)
    (tmp_path / "empty.mp4").touch()
    one = write_ball(tmp_path / "one.mp4", 1)
    for bad in (str(tmp_path / "nowhere.mp4"), str(tmp_path / "empty.mp4"), one):
        with pytest.raises(VideoError):
            learn(bad, folder, force=True)
        assert contents(folder) == before


def test_folders_that_are_not_free(finished: Path, tmp_path: Path) -> None:
    check_free(tmp_path / "new" / "deep", force=False)
    check_free(tmp_path, force=False)
    with pytest.raises(RunError, match=r"--resume, replace it with --force, .* --out"):
        check_free(finished, force=False)
    check_free(finished, force=True)
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        for force in (False, True):
            with pytest.raises(RunError, match="file: is a file; give a folder"):
                check_free(place, force)
    with pytest.raises(RunError, match=r"is not empty; write into it with --force, .* --out"):
        check_free(tmp_path, force=False)
    check_free(tmp_path, force=True)
    (tmp_path / "config.json").write_text('{"name": "of something else"}')
    with pytest.raises(RunError, match=r"not of a run; .* --out"):
        check_free(tmp_path, force=True)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "config.json").read_text())
    change(content)
    (folder / "config.json").write_text(json.dumps(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda run: (run / "config.json").unlink(), "is not a run"),
    "half a config": (lambda run: truncate(run / "config.json"), "config.json is damaged"),
    "no text": (lambda run: (run / "config.json").write_bytes(b"\xff\x00"), "is damaged"),
    "a list": (lambda run: (run / "config.json").write_text("[]"), "is damaged"),
    "no reading": (lambda run: edit(run, lambda c: c.pop("reading")), "is damaged"),
    "no kind": (lambda run: edit(run, lambda c: c["result"].pop("kind")), "is damaged"),
    "odd kind": (lambda run: edit(run, lambda c: c["result"].update(kind="x")), "is damaged"),
    "odd size": (lambda run: edit(run, lambda c: c["reading"].update(size=5)), "is damaged"),
    "odd stride": (lambda run: edit(run, lambda c: c["reading"].update(stride="a")), "is damaged"),
    "unknown task": (lambda run: edit(run, lambda c: c["learn"].update(task="x")), "is damaged"),
    "unknown key": (lambda run: edit(run, lambda c: c["learn"].update(x=1)), "is damaged"),
    "odd inputs": (lambda run: edit(run, lambda c: c.update(inputs=5)), "is damaged"),
    "other task": (lambda run: edit(run, lambda c: c["learn"].update(task="orient")), "not belong"),
    "other grey": (lambda run: edit(run, lambda c: c["reading"].update(grey=True)), "not belong"),
    "no model": (lambda run: (run / "model.safetensors").unlink(), "damaged or missing"),
    "empty model": (lambda run: (run / "model.safetensors").write_bytes(b""), "damaged or miss"),
    "half a model": (lambda run: truncate(run / "model.safetensors"), "damaged or missing"),
    "no tensors": (lambda run: (run / "model.safetensors").write_text("{}" * 99), "damaged or mis"),
    "other device": (lambda run: edit(run, lambda c: c["learn"].update(device="x9")), "cannot be"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_runs_are_refused_in_one_line(finished: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    do, words = DAMAGE[damage]
    do(folder)
    with pytest.raises(RunError, match=words) as error:
        load_run(folder)
    assert "\n" not in str(error.value)


def newest(run: Path) -> Path:
    state = json.loads((run / "checkpoint" / "state.json").read_text())
    return run / "checkpoint" / str(state["tensors"])


def odd_tensors(run: Path) -> None:
    save_file({"0.net.gain": torch.ones(7)}, newest(run))


def more_tensors(run: Path) -> None:
    save_file({**load_file(newest(run)), "7.generator": torch.zeros(3)}, newest(run))


def spoil(run: Path, how: Callable[[Path], object]) -> None:
    for path in (run / "checkpoint").glob("*.safetensors"):
        how(path)


def no_state(run: Path, text: str) -> None:
    (run / "checkpoint" / "state.json").write_text(text)


CHECKPOINT: dict[str, Callable[[Path], object]] = {
    "empty": lambda run: spoil(run, lambda path: path.write_bytes(b"")),
    "half": lambda run: spoil(run, truncate),
    "gone": lambda run: spoil(run, Path.unlink),
    "other tensors": odd_tensors,
    "more tensors": more_tensors,
    "no JSON": lambda run: no_state(run, "{"),
    "a list": lambda run: no_state(run, "[]"),
    "nothing in it": lambda run: no_state(run, "{}"),
    "elsewhere": lambda run: no_state(run, '{"tensors": "../../a.safetensors"}'),
    "no history": lambda run: no_state(run, '{"tensors": "a.safetensors", "seen": 40}'),
}


@pytest.mark.parametrize("damage", CHECKPOINT)
def test_damaged_checkpoints_are_refused_in_one_line(
    film: str, tmp_path: Path, every_step: None, damage: str
) -> None:
    stopped(film, tmp_path / "run", 4)
    CHECKPOINT[damage](tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match="--force") as error:
        resume(tmp_path / "run")
    assert "\n" not in str(error.value)
    assert contents(tmp_path / "run") == before


def test_no_pickle_is_read_or_written(
    film: str, tmp_path: Path, every_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle")

    for module, name in ((torch, "load"), (torch, "save"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(module, name, refuse)
    stopped(film, tmp_path / "run", 4)
    resume(tmp_path / "run")
    assert load_run(tmp_path / "run").net is not None
    for path in Path(ullayers.__file__).parent.rglob("*.py"):
        names = {
            name.name for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom)) for name in node.names
        }  # fmt: skip
        assert not names & {"pickle", "joblib", "shelve", "marshal", "dill"}, path


def test_inputs_mean_the_same_in_any_folder(
    film: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_step: None
) -> None:
    shutil.copy(film, tmp_path / "ball.mp4")
    monkeypatch.chdir(tmp_path)
    stopped("b*l.mp4", tmp_path / "run", 2)
    monkeypatch.chdir("/")
    assert resume(tmp_path / "run").outcome.sources == ["ball"]


@pytest.mark.parametrize("max_frames", [None, 31])
def test_applying_looks_no_second_time_for_what_learning_has_seen(
    film: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_frames: int | None
) -> None:
    config = replace(SHORT, long_mean="stream")
    run = learn(film, tmp_path / "run", config, stride=2, max_frames=max_frames)
    [source] = sources_of(run)
    again = [part.values for part in answers(load_run(run.folder), source, max_frames=max_frames)]
    other = [part.values for part in answers(run, source, max_frames=20)]  # of other frames
    monkeypatch.setattr("ullayers.learn.apply.gather", None)
    at_once = [part.values for part in answers(run, source, max_frames=max_frames)]
    assert np.array_equal(np.concatenate(at_once), np.concatenate(again))
    assert not np.array_equal(np.concatenate(at_once)[:20], np.concatenate(other))
