"""The run folder: complete or absent, resumed exactly, and files of others are not touched."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ullayers
import ullayers.run.pipeline as pipeline
from tests.films import BALL, contents, files_in, write_ball
from tests.learning.short_runs import CODES, SHORT, learn, records_of, resume, stopped
from ullayers.errors import RunError
from ullayers.learning.checkpoint import load_state, save_state
from ullayers.learning.config import Config
from ullayers.learning.footage import LongMean
from ullayers.run.apply import answers, first_piece
from ullayers.run.folder import RunResult, check_free
from ullayers.run.pipeline import learn_run
from ullayers.run.plan import load_plan, plan_run, sources_of
from ullayers.video.sources import Reading, Source, VideoError


@pytest.fixture(scope="module")
def codes(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(film, tmp_path_factory.mktemp("runs") / "codes", CODES).folder


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "CHECKPOINT_STEPS", 1)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]


def test_planning_writes_nothing(film: str, tmp_path: Path) -> None:
    run, sources = plan_run([film], tmp_path / "run", SHORT, max_frames=30, stride=4)
    assert not list(tmp_path.iterdir())
    assert run.reading.size == BALL
    assert (run.reading.stride, run.reading.max_frames) == (4, 8)
    assert run.stride == 4
    assert plan_run([film], tmp_path / "run", SHORT)[0].stride is None, "each has its own"
    assert run.inputs == [film]
    assert [source.name for source in sources] == ["ball"]


def test_a_finished_run_is_whole_and_says_what_it_did(finished: Path, film: str) -> None:
    run = load_plan(finished)
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
    for count, record in enumerate(records_of(run, sources), 1):
        rows = run.records()
        assert len(rows) == count
        assert rows[-1]["step"] == record.step
        assert not (run.folder / "model.safetensors").exists()
        assert load_plan(run.folder).net is None, "it is a run already, and not yet a finished one"


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
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None)
    run = learn(film, tmp_path / "run")
    assert not (run.folder / "tensorboard").exists()
    assert records(run.folder) == records(finished)


@pytest.mark.parametrize("config", [SHORT, CODES], ids=["locate", "orient"])
@pytest.mark.parametrize("stop", [1, 4])
def test_a_stopped_run_resumes_exactly(
    film: str,
    finished: Path,
    codes: Path,
    tmp_path: Path,
    every_step: None,
    config: Config,
    stop: int,
) -> None:
    whole = finished if config == SHORT else codes
    stopped(film, tmp_path / "paused", stop, config)
    paused = resume(tmp_path / "paused")
    for name in ("model.safetensors", "config.json"):
        assert (paused.folder / name).read_bytes() == (whole / name).read_bytes()
    assert records(paused.folder) == records(whole)


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
    assert load_plan(folder).config.task == "orient"
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
    with pytest.raises(RunError, match=r"not belong to a run; .* --out"):
        check_free(tmp_path, force=True)


def test_no_pickle_is_read_or_written(
    film: str, tmp_path: Path, every_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("pickle")

    for module, name in ((torch, "load"), (torch, "save"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(module, name, refuse)
    stopped(film, tmp_path / "run", 4)
    resume(tmp_path / "run")
    assert load_plan(tmp_path / "run").net is not None
    for path in Path(ullayers.__file__).parent.rglob("*.py"):
        if path.match("video/parallel.py"):  # messages to a process that it has started
            continue
        names = {
            name.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in node.names
        }
        assert not names & {"pickle", "joblib", "shelve", "marshal", "dill"}, path


def test_inputs_mean_the_same_in_any_folder(
    film: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_step: None
) -> None:
    shutil.copy(film, tmp_path / "ball.mp4")
    monkeypatch.chdir(tmp_path)
    stopped("b*l.mp4", tmp_path / "run", 2)
    monkeypatch.chdir("/")
    assert resume(tmp_path / "run").outcome.sources == ["ball"]


@pytest.mark.parametrize("kind", ["clip", "stream"])
def test_what_learning_has_kept_is_not_decoded_again(
    film: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: LongMean
) -> None:
    run = learn(film, tmp_path / "run", replace(CODES, long_mean=kind))
    [source] = sources_of(run)
    decoded = list(answers(load_plan(run.folder), source))
    first = first_piece(load_plan(run.folder), source)
    monkeypatch.setattr(Source, "clips", None)
    kept = list(answers(run, source))
    assert [part.lines() for part in kept] == [part.lines() for part in decoded]
    assert torch.equal(first_piece(run, source).behind, first.behind)
    with pytest.raises(TypeError):
        next(answers(run, source, stride=2))  # of other frames
    with pytest.raises(TypeError):
        next(answers(replace(run, reading=replace(run.reading, grey=True)), source))


def test_a_short_video_is_decoded_once_to_learn_and_once_to_locate(
    film: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[Reading] = []
    clips = Source.clips

    def counted(source: Source, length: int, reading: Reading, **how: Any) -> Any:
        passes.append(reading)
        return clips(source, length, reading, **how)

    monkeypatch.setattr(Source, "clips", counted)
    run = learn(film, tmp_path / "run")
    assert sum(len(part.index) for part in answers(run, sources_of(run)[0])) == 40
    assert [reading.size for reading in passes] == [run.reading.size, BALL]


def test_a_run_says_what_is_missing(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    run = load_plan(folder)
    assert not run.finished
    written = ["tracks.csv", "summary.json", "overlay.mp4", "report.html", "README.md"]
    written += ["behaviour.csv", "outlines.sqlite"]
    assert run.missing() == written
    for name in run.missing():
        (folder / name).touch()
    assert load_plan(folder).finished
    assert replace(run, masks=True).missing() == ["masks"]
    assert not replace(run, net=None).finished, "it has not been learned to its end"
    (folder / "tracks.partial.csv").touch()
    assert run.missing() == ["tracks.csv"], "it was begun again"


def test_results_have_one_shape(finished: Path, film: str, tmp_path: Path) -> None:
    list(ullayers.watch(film, size=16, max_frames=3, folder=tmp_path / "watched"))
    written = [
        json.loads((folder / "config.json").read_text())["result"]
        for folder in (finished, tmp_path / "watched")
    ]
    names = [field.name for field in fields(RunResult)]
    assert [list(result) for result in written] == [names, names]
    learned, watched = (load_plan(folder).outcome for folder in (finished, tmp_path / "watched"))
    assert (learned.kind, learned.frames, learned.sources) == (written[0]["kind"], 40, ["ball"])
    assert (watched.kind, watched.frames, watched.sources) == ("stream", 3, ["ball"])
    assert (watched.objective, watched.start, watched.scores) == (None, None, None), "no step yet"
    assert watched.torch == learned.torch == torch.__version__
    assert vars(learned) == written[0]


def test_scores_that_are_not_finite_are_kept_as_unknown(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    text = (folder / "config.json").read_text()
    content = json.loads(text)
    content["result"]["scores"] = [float("nan"), float("inf")]  # as version 0.1 wrote them
    (folder / "config.json").write_text(json.dumps(content))
    run = load_plan(folder)
    assert run.outcome.scores == [None, None]
    run.write_config()
    assert "NaN" not in (folder / "config.json").read_text()


def test_frames_that_are_too_large_are_refused(film: str, tmp_path: Path) -> None:
    for plan in (
        lambda: plan_run([film], tmp_path / "run", SHORT, size=(9000, 12000)),
        lambda: next(ullayers.watch(film, size=(9000, 12000))),
    ):
        with pytest.raises(RunError, match="--size 9000x12000: expected at most 1,048,576 pixels"):
            plan()


def test_training_steps_that_need_too_much_memory_are_refused(film: str, tmp_path: Path) -> None:
    run, sources = plan_run([film], tmp_path / "run", replace(SHORT, batch=10_000, clip=100))
    with pytest.raises(RunError, match="a training step of 10000 clips of 100 frames has"):
        next(learn_run(run, sources))
