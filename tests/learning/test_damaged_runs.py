"""Run folders that are damaged or hostile: one clear line, in bounded memory."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ullayers as ul
import ullayers.run.pipeline as pipeline
from tests.films import contents
from tests.learning.short_runs import resume, stopped
from ullayers.errors import RunError
from ullayers.run.folder import check_free, is_run
from ullayers.run.plan import load_plan


@pytest.fixture(scope="module")
def paused(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its fourth step, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("runs") / "paused"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "CHECKPOINT_STEPS", 1)
        stopped(film, folder, 4)
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "config.json").read_text())
    change(content)
    (folder / "config.json").write_text(json.dumps(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nest(path: Path) -> None:
    path.write_text(200_000 * "[" + 200_000 * "]")


def enlarge(path: Path) -> None:
    os.truncate(path, 2**26 + 1)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


MANY_OUTPUTS = {  # weights of 2 TB
    "learn": {"task": "orient", "outputs": 10**6},
    "reading": {
        "size": [1024, 1024],
        "grey": True,
        "stride": 1,
        "max_frames": None,
    },
    "result": {"kind": "clip"},
}
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
    "nested config": (lambda run: nest(run / "config.json"), "nested"),
    "large config": (lambda run: enlarge(run / "config.json"), "at most .* bytes"),
    "unreadable config": (lambda run: make_folder(run / "config.json"), "cannot be read"),
    "odd device": (lambda run: edit(run, lambda c: c["learn"].update(device=0.5)), "device: exp"),
    "odd lr": (lambda run: edit(run, lambda c: c["learn"].update(lr="x")), "lr: expected"),
    "odd skip_bad": (lambda run: edit(run, lambda c: c.update(skip_bad=[])), "skip_bad: expected"),
    "odd masks": (lambda run: edit(run, lambda c: c.update(masks="yes")), "masks: expected bool"),
    "no inputs": (lambda run: edit(run, lambda c: c.update(inputs=[])), "inputs that are paths"),
    "zero in inputs": (lambda run: edit(run, lambda c: c.update(inputs=["a\0b"])), "are paths"),
    "large frames": (
        lambda run: edit(run, lambda c: c["reading"].update(size=[9000, 12000])),
        "9000x12000: expected at most 1,048,576 pixels",
    ),
    "stride of zero": (lambda run: edit(run, lambda c: c["reading"].update(stride=0)), "is damag"),
    "no size": (lambda run: edit(run, lambda c: c["reading"].update(size=[0, 9])), "is damaged"),
    "restarts": (lambda run: edit(run, lambda c: c["learn"].update(restarts=10**9)), "at most 10"),
    "large batch": (lambda run: edit(run, lambda c: c["learn"].update(batch=10**9)), "at most 10"),
    "large clip": (lambda run: edit(run, lambda c: c["learn"].update(clip=10**9)), "at most 100"),
    "odd scale": (lambda run: edit(run, lambda c: c.update(mm_per_pixel=-1)), "above 0 and below"),
    "long number": (
        lambda run: (run / "config.json").write_text("[" + "9" * 5000 + "]"),
        "shorter numbers",
    ),
    "many outputs": (
        lambda run: edit(run, lambda c: c.update(MANY_OUTPUTS | {"inputs": ["a"]})),
        "not belong",
    ),
    "odd scores": (lambda run: edit(run, lambda c: c["result"].update(scores="x")), "scores: exp"),
    "odd sources": (lambda run: edit(run, lambda c: c["result"].update(sources=1)), "sources: ex"),
    "odd objective": (lambda run: edit(run, lambda c: c["result"].update(objective="x")), "object"),
    "other device": (lambda run: edit(run, lambda c: c["learn"].update(device="x9")), "cannot be"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_runs_are_refused_in_one_line(finished: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    do, words = DAMAGE[damage]
    do(folder)
    with pytest.raises(RunError, match=words) as error:
        load_plan(folder)
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


def change_state(run: Path, **change: Any) -> None:
    path = run / "checkpoint" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


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
    "nested": lambda run: nest(run / "checkpoint" / "state.json"),
    "odd scores": lambda run: change_state(run, scores=["x"]),
    "no scores": lambda run: change_state(run, scores=None),
    "odd histories": lambda run: change_state(run, histories=[["x"]]),
    "infinite score": lambda run: change_state(run, scores=[math.inf, 0]),
    "infinite scores": lambda run: change_state(run, scores=[math.inf, math.inf]),
    "too few scores": lambda run: change_state(run, scores=[]),
    "scores that are an object": lambda run: change_state(run, scores={}),
    "no steps": lambda run: change_state(run, histories=[[]]),
    "a trial without steps": lambda run: change_state(run, histories=[[1.0, 1.0, 1.0], []]),
    "too many steps": lambda run: change_state(run, histories=[6 * [math.nan], [1.0]]),
    "too few steps": lambda run: change_state(run, histories=[[math.nan], [1.0]]),
    "too many trials": lambda run: change_state(run, histories=9 * [[1.0, 1.0, 1.0]]),
    "infinite seconds": lambda run: change_state(run, seconds=math.inf),
    "large seconds": lambda run: change_state(run, seconds=10**400),
    "another entry": lambda run: change_state(run, more=1),
    "odd seconds": lambda run: change_state(run, seconds="x"),
    "metrics gone": lambda run: (run / "metrics.jsonl").unlink(),
    "metrics no text": lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\x00"),
    "no history": lambda run: no_state(run, '{"tensors": "a.safetensors", "seen": 40}'),
}


@pytest.mark.parametrize("damage", CHECKPOINT)
def test_damaged_checkpoints_are_refused_in_one_line(
    paused: Path, tmp_path: Path, damage: str
) -> None:
    shutil.copytree(paused, tmp_path / "run")
    CHECKPOINT[damage](tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match="--force") as error:
        resume(tmp_path / "run")
    assert "\n" not in str(error.value)
    assert contents(tmp_path / "run") == before


METRICS: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "odd rank": (lambda rows: rows[2].update(rank="x"), "line 3: rank: expected float . null"),
    "no trial": (lambda rows: rows[0].pop("trial"), "line 1: trial is missing"),
    "odd kind": (lambda rows: rows[0].update(kind="x"), "line 1: kind: invalid enum value"),
    "more": (lambda rows: rows[0].update(more=1), "line 1: unknown entry 'more'"),
    "no winner": (lambda rows: [row.update(trial=9) for row in rows], "no step of trial"),
    "nothing": (lambda rows: rows.clear(), "no step of trial"),
}


def write_lines(run: Path, rows: list[Any]) -> None:
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("damage", METRICS)
def test_damaged_metrics_are_refused_in_one_line(
    finished: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    rows = load_plan(folder).records()
    change, words = METRICS[damage]
    change(rows)
    write_lines(folder, rows)
    with pytest.raises(RunError, match=words) as error:
        load_plan(folder).records()
    assert "\n" not in str(error.value)
    assert "--force" in str(error.value)


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[]\n", 200_000 * b"[", None])
def test_metrics_that_are_not_valid_records(
    finished: Path, tmp_path: Path, content: bytes | None
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "metrics.jsonl").unlink()
    if content is not None:
        (folder / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=r"metrics.jsonl: is damaged .*--force") as error:
        load_plan(folder).records()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["objective", "frames"])
def test_results_that_are_incomplete(finished: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    edit(folder, lambda c: c["result"].update({name: None}))
    with pytest.raises(RunError, match=r"result in its config.json is incomplete; .*--force"):
        load_plan(folder).records()


NOT_WEIGHTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda weight: weight * math.nan,
    "infinite": lambda weight: weight + math.inf,
    "too large": lambda weight: weight.double() + 1e300,
    "integers": lambda weight: weight.long(),
    "complex": lambda weight: weight.to(torch.complex64),
}


@pytest.mark.parametrize("damage", NOT_WEIGHTS)
def test_weights_that_are_not_finite_numbers(finished: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    save_file({**tensors, name: NOT_WEIGHTS[damage](tensors[name])}, path)
    words = r"model.safetensors is damaged: weights are NaN or infinite; .*--force"
    with pytest.raises(RunError, match=words):
        load_plan(folder)


def test_a_checkpoint_may_have_a_j_that_is_nan(paused: Path, tmp_path: Path) -> None:
    """J is NaN until something has varied."""
    folder = tmp_path / "run"
    shutil.copytree(paused, folder)
    change_state(folder, histories=[[math.nan, 1.0, 1.0], [math.nan]], scores=[math.nan])
    assert resume(folder).outcome.trial == 1


def test_a_run_with_a_nested_config_can_be_replaced(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    nest(folder / "config.json")
    assert is_run(folder)
    check_free(folder, force=True)


WATCHED: dict[str, dict[str, Any]] = {
    "count": {"count": "x"},
    "history": {"history": ["x"]},
    "background": {"backdrop": [1]},
    "table": {"table": 10**15},
    "negative table": {"table": -1},
    "frame": {"frame": None},
    "frame before the first": {"frame": -2},
    "large frame": {"frame": 10**13},
    "wrong learning": {"learning": 1},
    "negative background": {"backdrop": [-1, 0]},
    "infinite background": {"backdrop": [math.inf, math.inf]},
    "negative count": {"count": -1},
    "table without its header": {"table": 3},
}
for name in ("count", "table", "frame"):
    for value in (math.inf, math.nan, 1e308, 10**30, 0.5):
        WATCHED[f"{name} of {value:g}"] = {name: value}


@pytest.fixture(scope="module")
def watched(film: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    list(ul.watch(film, size=16, max_frames=3, folder=folder))
    return folder


@pytest.mark.parametrize("line", ["", "sequence,frame,time\n", "sequence,frame,time,y0,x_px\n"])
def test_watching_resumes_only_with_its_own_table(
    watched: Path, film: str, tmp_path: Path, line: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(watched, folder)
    table = folder / "tracks.csv"
    rows = table.read_text().splitlines(keepends=True)[1:]
    table.write_text("".join([line, *rows]))
    change_state(folder, table=table.stat().st_size)
    with pytest.raises(RunError, match=r"checkpoint is damaged .*--force"):
        list(ul.watch(film, folder=folder, resume=True))


@pytest.mark.parametrize("damage", WATCHED)
def test_damaged_states_of_watching_are_refused(
    watched: Path, film: str, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(watched, folder)
    change_state(folder, **WATCHED[damage])
    before = contents(folder)
    with pytest.raises(RunError, match=r"checkpoint is damaged .*--force"):
        list(ul.watch(film, folder=folder, resume=True))
    assert contents(folder) == before
