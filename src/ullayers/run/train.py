"""Training of a run, from the beginning or from a checkpoint, with records and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ullayers.errors import RunError
from ullayers.files import from_json, read_regular, replacing, sweep
from ullayers.learn.checkpoint import load_state, save_state, write_tensors
from ullayers.learn.codes import CodeTrial
from ullayers.learn.footage import Footage, gather
from ullayers.learn.networks import weights
from ullayers.learn.survey import Survey, outline_reading, plan_survey
from ullayers.learn.teaching import read_taught
from ullayers.learn.training import Learner, LearnerState, Record
from ullayers.learn.trials import Trial, check_weights
from ullayers.run.folder import (
    MAX_METRICS_BYTES,
    RunResult,
    check_links,
    check_step,
    clear_run,
    finite,
)
from ullayers.run.plan import Run
from ullayers.video.reader import Reading, Source, VideoError

CHECKPOINT_STEPS = 20  # steps between checkpoints


@dataclass(frozen=True, kw_only=True)
class LearnState(LearnerState):
    """The state.json of `learn_run`.

    Attributes:
        seen: Number of frames read.
        seconds: Duration of training so far.
    """

    seen: int
    seconds: float


def learn_run(
    run: Run, sources: Sequence[Source], progress: Callable[[int], None] = lambda seen: None
) -> Generator[tuple[Learner, Record], None, None]:
    """Train from the beginning or from the last checkpoint, saving checkpoints.

    Args:
        run: From `plan_run` or `load_run`.
        sources: From `plan_run` or `sources_of`.
        progress: Called with the number of frames read so far.

    Yields:
        The learner and a record, after each step.

    Example:
        >>> import tempfile
        >>> from ullayers.learn.config import Config
        >>> from ullayers.run.plan import plan_run
        >>> from ullayers.video.scene import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(Path(folder), frames=60)
        ...     config = Config(trial_steps=2, steps=3, restarts=1)
        ...     run, sources = plan_run([str(video)], f"{folder}/run", config, size=32)
        ...     steps = [record.step for _, record in learn_run(run, sources)]
        ...     sorted(path.name for path in run.folder.iterdir() if path.is_file())
        ['config.json', 'metrics.jsonl', 'model.safetensors']
    """
    check_links(run.folder)
    assert run.reading.size is not None
    check_step(run.config, run.reading.size)
    footage = _gather(run, sources, progress)
    if run.teaching is not None:
        footage.taught = read_taught(run.teaching, sources, run.reading, footage)
    learner = Learner(footage, run.config)
    run.config = learner.config
    saved = (run.folder / "checkpoint" / "state.json").exists() and not run.fresh
    done = _resume(run, learner) if saved else _begin(run, learner)
    yield from _recorded(run, learner, done)
    _end(run, learner, sources)


def _gather(run: Run, sources: Sequence[Source], progress: Callable[[int], None]) -> Footage:
    survey = _plan_survey(run, sources)
    footage = gather(
        sources,
        replace(run.reading, passing=survey),
        natural=run.natural,
        skip_bad=run.skip_bad,
        progress=progress,
    )
    run.bad |= footage.bad
    if survey is not None and not footage.bad:
        run.surveys[sources[0], _outlines(run, sources[0])] = survey
    remedies = _remedies(run.reading, run.max_frames)
    if not footage.pieces and remedies:
        raise VideoError(_too_few(remedies))
    return footage


def _plan_survey(run: Run, sources: Sequence[Source]) -> Survey | None:
    """Return the survey to take while frames are read, so that they are decoded only once.

    Surveys of several sources would take too much memory.
    """
    if run.config.task != "locate" or len(sources) > 1:
        return None
    return plan_survey(sources[0], _outlines(run, sources[0]))


def _outlines(run: Run, source: Source) -> Reading:
    """Return how the frames of a source will be read for the results."""
    reading = replace(run.reading, stride=1, max_frames=run.max_frames)
    return outline_reading(source.probe(), reading)


def _remedies(reading: Reading, max_frames: int | None) -> dict[str, str]:
    """Return the options that have left frames out, and suggestions."""
    remedies = {}
    if reading.stride > 1:
        remedies[f"--stride {reading.stride}"] = "a smaller --stride"
    if max_frames is not None:
        remedies[f"--max-frames {max_frames}"] = "a larger --max-frames"
    if reading.start:
        remedies[f"--start {reading.start:g}"] = "an earlier --start"
    if reading.end is not None:
        remedies[f"--end {reading.end:g}"] = "a later --end"
    return remedies


def _too_few(remedies: dict[str, str]) -> str:
    left = f"fewer than three consecutive frames are left with {' and '.join(remedies)}"
    return f"{left}; use {' or '.join(remedies.values())}"


def _begin(run: Run, learner: Learner) -> int:
    learner.start()  # before anything is deleted, because it may fail
    run.folder.mkdir(parents=True, exist_ok=True)
    clear_run(run.folder)
    run.write_config()
    with replacing(run.folder / "metrics.jsonl"):  # it may be a pipe or a hard link
        pass
    run.fresh = False
    return 0


def _resume(run: Run, learner: Learner) -> int:
    """Load the last checkpoint and drop later metrics; return the number of completed steps."""
    sweep(run.folder)
    sweep(run.folder / "checkpoint")
    tensors, rest = load_state(run.folder / "checkpoint")
    try:
        state = from_json(LearnState, rest)
    except ValueError as error:
        raise _damaged(run) from error
    if state.seen != learner.footage.seen:
        raise RunError(
            f"{run.folder}: began with {state.seen} frames, now there are "
            f"{learner.footage.seen}; the videos have changed, start again with --force"
        )
    try:
        learner.load(tensors, state)
        learner.began -= state.seconds
        if learner.state()[0].keys() != tensors.keys():
            raise ValueError("the checkpoint belongs to another run")
        lines = read_regular(run.folder / "metrics.jsonl", MAX_METRICS_BYTES).decode()
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise _damaged(run) from error
    with replacing(run.folder / "metrics.jsonl") as file:
        file.writelines(lines.splitlines(keepends=True)[: learner.done])
    return learner.done


def _damaged(run: Run) -> RunError:
    return RunError(
        f"{run.folder}: its checkpoint or metrics.jsonl is damaged; start again with --force"
    )


def _recorded(
    run: Run, learner: Learner, done: int
) -> Generator[tuple[Learner, Record], None, None]:
    """Train, and write every record to metrics.jsonl and TensorBoard."""
    with (
        open(run.folder / "metrics.jsonl", "a", encoding="utf-8") as metrics,
        _tensorboard(run.folder) as board,
    ):
        for record in learner:
            done += 1
            metrics.write(_line(record))
            metrics.flush()
            if board is not None:
                board.add_scalar(f"J/{record.kind}-{record.seed}", record.objective, record.step)
                board.add_scalar(f"rank/{record.kind}-{record.seed}", record.rank, record.step)
                if record.held_out is not None:
                    name = f"J held out/{record.kind}-{record.seed}"
                    board.add_scalar(name, record.held_out, record.step)
            if done % CHECKPOINT_STEPS == 0:
                _save_checkpoint(run, learner, record.seconds)
            try:
                yield learner, record
            except GeneratorExit:  # stopped between two steps: nothing is lost
                _save_checkpoint(run, learner, record.seconds)
                raise


def _line(record: Record) -> str:
    """Return a record as JSON, which has no NaN; J is NaN before anything has moved."""
    content = {key: None if value != value else value for key, value in asdict(record).items()}
    return json.dumps(content) + "\n"


@contextmanager
def _tensorboard(folder: Path) -> Iterator[Any]:
    if find_spec("tensorboard") is None:
        yield None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as board:
        yield board


def _save_checkpoint(run: Run, learner: Learner, seconds: float) -> None:
    tensors, rest = learner.state()
    rest |= {"seen": learner.footage.seen, "seconds": seconds}
    save_state(run.folder / "checkpoint", tensors, rest)


def _checked(trial: Trial) -> dict[str, Any]:
    """Return J of the trained network and its values on held-out frames."""
    check = trial.check()
    held_out = check.held_out if trial.comparable else None
    return {
        "objective": check.training,
        "held_out_objective": None if held_out is None else finite(held_out),
        "held_out_frames": trial.held_out_count,
        "held_out_correlation": trial.correlation() if isinstance(trial, CodeTrial) else None,
        "folded": trial.folded() if isinstance(trial, CodeTrial) else None,
    }


def _end(run: Run, learner: Learner, sources: Sequence[Source]) -> None:
    best = learner.best
    footage = learner.footage
    check_weights(best.net)
    checked = _checked(best)
    if not abs(checked["objective"]) < 1e30:
        raise RunError("nothing could be learned: J is not finite; does enough move in the video?")
    start = learner.new_trial(learner.winner).check().training
    run.net = best.net
    run.result = RunResult(
        kind=best.kind,
        seed=best.seed,
        trial=learner.winner,
        **checked,
        start=start if abs(start) < 1e30 else None,
        scores=[finite(score) for score in learner.scores],
        steps=len(best.history),
        frames=footage.seen,
        trained_frames=sum(map(len, footage.pieces)) - best.held_out_count,
        sources=footage.names,
        strides={footage.names[i]: reading.stride for i, reading in footage.readings.items()},
        bad=run.bad,
        camera=any(piece.path is not None for piece in footage.pieces),
        torch=torch.__version__,
    )
    write_tensors(run.folder / "model.safetensors", weights(best.net))
    run.write_config()
    if footage.complete:
        for number, source in enumerate(sources):
            run.pieces[source, footage.readings[number]] = footage.of_source(number)
