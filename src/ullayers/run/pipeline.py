"""The pipeline: read, train, locate, write.

`work` is followed by the command, the studio and notebooks alike: a generator of events, one for
every step of training and every few hundred frames, between which it can be stopped.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ullayers.errors import Error, RunError
from ullayers.files import UNFINISHED, from_json, read_regular, replacing, sweep
from ullayers.learning.checkpoint import load_state, save_state, write_tensors
from ullayers.learning.codes import CodeTrial
from ullayers.learning.footage import (
    Footage,
    count_frames,
    expected_frames,
    gathering,
    open_sources,
)
from ullayers.learning.networks import Locator, weights
from ullayers.learning.student import Student, learn_student
from ullayers.learning.survey import Survey, many_frames, outline_reading, plan_survey
from ullayers.learning.teaching import read_taught
from ullayers.learning.training import Learner, LearnerState, Record
from ullayers.learning.trials import Trial, check_weights
from ullayers.run.folder import (
    CARD,
    MAX_METRICS_BYTES,
    OVERLAYS,
    RunResult,
    check_apart,
    check_free,
    check_links,
    check_step,
    clear_parts,
    clear_run,
    finite,
)
from ullayers.run.plan import MEASURES, Plan, check_region, csv_name
from ullayers.run.results import Scores, score
from ullayers.run.stopping import quiet_writer_threads, stop_at_checks
from ullayers.run.summary import Exported
from ullayers.run.write import (
    ExportOptions,
    export_parts,
    unfinished_sources,
)
from ullayers.tracks.behaviour import (
    Zones,
    check_measures,
    measure_folder,
    write_behaviour,
)
from ullayers.tracks.corrections import CORRECTIONS
from ullayers.tracks.masks import OUTLINES
from ullayers.tracks.store import has_partial_tables
from ullayers.tracks.table import Answer
from ullayers.video.clips import kept_frames
from ullayers.video.region import Region
from ullayers.video.sources import Reading, Source, VideoError

STUDENT_STEPS, STUDENT_SHARE = 400, 5 / 3  # largest number; number for each step of the winner
LEAST_STEPS = 100  # a network that has learned for fewer sees nothing yet
CHECKPOINT_STEPS = 20  # steps between checkpoints
OVERLAY_FRAMES = 1500
ALL_FRAMES = 10**12
APPLIED_FILES = (
    "tracks.csv",
    "codes.csv",
    "crossings.csv",
    "behaviour.csv",
    "zones.csv",
    OUTLINES,
    CORRECTIONS,
    "overlay.mp4",
)
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Event:
    """What the pipeline has just done.

    Attributes:
        stage: Stage of the pipeline.
        done: Number of frames read, training steps, or frames applied so far.
        total: Number of them in the end; None if unknown.
        learner: The trials, while training.
        record: The training step; None between other events.
        found: Results of some frames, with masks, while the network is applied.
    """

    stage: Literal["reading", "training", "applying", "report"]
    done: int = 0
    total: int | None = None
    learner: Learner | None = None
    record: Record | None = None
    found: Answer | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of the pipeline.

    Attributes:
        exported: Results for all frames.
        scores: Names and values of the comparison with true positions; empty without them.
    """

    exported: Exported
    scores: Scores


def work(
    run: Plan, sources: Sequence[Source], *, resume: bool = False, truth: Path | None = None
) -> Generator[Event, None, Outcome]:
    """Learn from the sources of a run, apply the network to all their frames, and write results.

    A run that is already trained is only applied, and files that exist are kept. If the generator
    is closed while it trains, a checkpoint is saved.

    Args:
        run: From `plan_run` or `load_plan`.
        sources: From `plan_run` or `sources_of`.
        resume: Keep the rows of a partial table.
        truth: Table of true positions to compare with.

    Example:
        >>> import tempfile
        >>> from ullayers.learning.config import Config
        >>> from ullayers.run.plan import plan_run
        >>> from ullayers.video.demo_films import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(Path(folder), frames=60)
        ...     config = Config(trial_steps=2, steps=3, restarts=1)
        ...     run, sources = plan_run([str(video)], f"{folder}/run", config, size=32)
        ...     stages = [event.stage for event in work(run, sources)]
        >>> list(dict.fromkeys(stages))
        ['reading', 'training', 'applying', 'report']
    """
    if run.net is None:
        yield from learn_run(run, sources)
    exported = yield from locate(run, sources, resume=resume)
    scores = yield from write(run, sources, exported, truth)
    return Outcome(exported, scores)


def follow(events: Generator[Event, None, T], show: Callable[[Event], None]) -> T:
    """Run the pipeline to its end, and return its outcome.

    Ctrl-C and SIGTERM stop it between two events while it learns, so that no step is lost, and at
    once afterwards, when finished sequences are kept anyway.

    Args:
        events: From `work`.
        show: Called with each event.

    Raises:
        KeyboardInterrupt: It was stopped.
    """
    with stop_at_checks() as stop, closing(events):
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                outcome: T = end.value
                return outcome
            show(event)
            stop.check()
            stop.at_once = event.stage in ("applying", "report")


def learn_run(run: Plan, sources: Sequence[Source]) -> Generator[Event, None, None]:
    """Read and train, from the beginning or from the last checkpoint: the first half of `work`.

    Example:
        >>> import tempfile
        >>> from ullayers.learning.config import Config
        >>> from ullayers.run.plan import plan_run
        >>> from ullayers.video.demo_films import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(Path(folder), frames=60)
        ...     config = Config(trial_steps=2, steps=3, restarts=1)
        ...     run, sources = plan_run([str(video)], f"{folder}/run", config, size=32)
        ...     for event in learn_run(run, sources):
        ...         pass
        ...     sorted(path.name for path in run.folder.iterdir() if path.is_file())
        ['config.json', 'metrics.jsonl', 'model.safetensors']
    """
    footage = yield from read(run, sources)
    yield from train(run, sources, footage)


def read(run: Plan, sources: Sequence[Source]) -> Generator[Event, None, Footage]:
    """Read the frames to train on, and survey the scene for the results while they pass."""
    check_links(run.folder)
    assert run.reading.size is not None
    check_step(run.config, run.reading.size)
    totals = [expected_frames([source.probe()], run.reading_of(source)) for source in sources]
    total = None if None in totals else sum(filter(None, totals))
    yield Event("reading", 0, total)
    survey = _plan_survey(run, sources)
    reading = replace(run.reading, passing=survey)
    steps = gathering(sources, reading, natural=run.natural, skip_bad=run.skip_bad)
    footage = yield from _told(steps, lambda seen: Event("reading", seen, total))
    run.bad |= footage.bad
    if survey is not None and not footage.bad:
        run.surveys[sources[0], _outlines(run, sources[0])] = survey
    remedies = _remedies(run.reading, run.max_frames)
    if not footage.pieces and remedies:
        raise VideoError(_too_few(remedies))
    if run.teaching is not None:
        footage.taught = read_taught(run.teaching, sources, run.reading, footage)
    return footage


def train(run: Plan, sources: Sequence[Source], footage: Footage) -> Generator[Event, None, None]:
    """Train the network of a run, with records and checkpoints, and keep it in the run."""
    learner = Learner(footage, run.config)
    run.config = learner.config
    saved = (run.folder / "checkpoint" / "state.json").exists() and not run.fresh
    done = _resume(run, learner) if saved else _begin(run, learner)
    for record in _recorded(run, learner, done):
        yield Event("training", learner.done, learner.total, learner, record)
    _end(run, learner, sources)
    yield Event("training", learner.done, learner.total, learner)  # the network is saved


def locate(
    run: Plan, sources: Sequence[Source], *, resume: bool = False
) -> Generator[Event, None, Exported]:
    """Apply a run to the videos it was trained on; do not replace existing files.

    Args:
        run: A finished run.
        sources: Its sources.
        resume: Keep the rows of a partial table.

    Raises:
        RunError: The folder of the run cannot be used.
        VideoError: A source cannot be read.
    """
    missing = run.missing()
    remaining = unfinished_sources(sources, run.folder, run.masks) if resume else sources
    reading = replace(run.reading, stride=1, max_frames=run.max_frames)
    total = count_frames(remaining, reading)
    yield Event("applying", 0, total)
    options = ExportOptions(
        max_frames=run.max_frames,
        masks=run.masks,
        overlay=OVERLAY_FRAMES if "overlay.mp4" in missing else None,
        samples="report.html" in missing,
        skip_bad=run.skip_bad,
        resume=resume,
        keep_scenes=True,
        objects=run.config.objects,
        teaching=run.teaching,
    )
    if csv_name(run) in missing or (resume and has_partial_tables(run.folder)):
        return (yield from applying(export_parts(run, sources, run.folder, options), total))
    # A table is always written together with the other files: write all of them elsewhere, and keep
    # only those that were missing.
    with tempfile.TemporaryDirectory(dir=run.folder, prefix=UNFINISHED) as folder:
        exported = yield from applying(export_parts(run, sources, folder, options), total)
        for name in missing:
            if name not in ("report.html", CARD, *MEASURES):
                (Path(folder) / name).rename(run.folder / name)
    return exported


def applying(
    parts: Generator[Answer, None, Exported], total: int | None
) -> Generator[Event, None, Exported]:
    """Turn the parts of `export_parts` into events."""
    done = 0

    def event(part: Answer) -> Event:
        nonlocal done
        done += len(part.index)
        return Event("applying", done, total, found=part)

    return (yield from _told(parts, event))


def apply_run(
    run: Plan,
    inputs: Sequence[str],
    out: Path,
    *,
    stride: int = 1,
    max_frames: int | None = None,
    start: float = 0.0,
    end: float | None = None,
    roi: Region | None = None,
    objects: int | Literal["auto"] | None = None,
    masks: bool = False,
    soft: bool = False,
    overlay: bool = False,
    skip_bad: bool = False,
    zones: Zones | None = None,
    mm_per_pixel: float | None = None,
    force: bool = False,
    resume: bool = False,
) -> Generator[Event, None, Exported]:
    """Apply a run to other video, and write its results to a folder; see `ul.Run.apply`.

    Args:
        run: A finished run.
        inputs: Video files, folders, patterns.
        out: Folder to write to.
        stride: Use every `stride`-th frame.
        max_frames: Number of frames to use from each source, before the stride.
        start: Use frames from this time on, in seconds.
        end: Use frames before this time; None for no limit.
        roi: Region of interest; None for that of the run.
        objects: Number of objects to track; None or "auto" finds it.
        masks: Write each mask as an image.
        soft: Write masks with soft edges.
        overlay: Draw the result onto the video.
        skip_bad: Leave out unreadable inputs, which are listed in `run.bad`.
        zones: Zones to measure.
        mm_per_pixel: Size of a pixel; None measures in pixels only.
        force: Replace earlier results.
        resume: Keep finished sequences.

    Raises:
        RunError: The folder cannot be used.
        Error: An option does not apply to the run.
        VideoError: A source cannot be read.
    """
    wanted = None if objects == "auto" else objects
    check_masks(run, masks, soft, wanted)
    check_out(out, started=has_partial_tables(out), force=force, resume=resume)
    run.reading = replace(run.reading, start=start, end=end, roi=roi or run.reading.roi)
    sources, infos, run.bad = open_sources(inputs, skip_bad=skip_bad)
    check_region(run.reading.roi, sources, infos, skip_bad=skip_bad)
    check_measures(run.config.task, zones, mm_per_pixel, sources, infos)
    check_apart(out, sources)
    options = ExportOptions(
        stride=stride,
        max_frames=kept_frames(max_frames, stride),
        masks=masks or soft,
        soft=soft,
        overlay=ALL_FRAMES if overlay else None,
        skip_bad=skip_bad,
        resume=resume,
        objects=wanted,
    )
    remaining = unfinished_sources(sources, out, options.masks) if resume else sources
    total = count_frames(
        remaining, replace(run.reading, stride=stride, max_frames=options.max_frames)
    )

    def measure(exported: Exported) -> list[Path]:
        if run.config.task != "locate":
            return []
        scenes = measure_folder(out, exported.sequences)
        return write_behaviour(out, scenes, zones, mm_per_pixel)

    yield Event("applying", 0, total)
    exported = yield from applying(export_parts(run, sources, out, options, measure), total)
    if force:
        remove_stale(out, exported.files)
    return exported


def check_masks(run: Plan, masks: bool, soft: bool, objects: int | None) -> None:
    """Refuse masks that a run does not have.

    Raises:
        Error: The run has codes, or several objects, whose masks have no soft edges.
    """
    if (masks or soft) and run.config.task != "locate":
        option = "--soft-masks" if soft else "--masks"
        raise Error(f"{run.folder}: this run has codes and no masks; leave {option} out")
    if soft and (objects or 1) > 1:
        raise Error(
            "--soft-masks is for one object; use --masks, whose pixels are the numbers of objects"
        )


def check_out(out: Path, *, started: bool, force: bool, resume: bool) -> None:
    """Refuse a folder that `apply_run` must not write to.

    Raises:
        RunError: The folder is a run, or not empty.
    """
    if not (resume and started):
        check_free(out, force)
    if (out / "model.safetensors").exists():
        raise RunError(f"{out}: is a run, whose table must not be replaced; give another --out")


def remove_stale(out: Path, written: Collection[Path]) -> None:
    """Remove results of an earlier `ul apply` that this one has not replaced."""
    stale = {out / name for name in APPLIED_FILES}
    if out / OVERLAYS not in written:
        stale.update((out / OVERLAYS).glob("*.mp4"))
    for path in stale - set(written):
        path.unlink(missing_ok=True)
    clear_parts(out)
    with suppress(OSError):
        (out / OVERLAYS).rmdir()


def _told(steps: Generator[S, None, T], event: Callable[[S], Event]) -> Generator[Event, None, T]:
    """Yield an event for each step, and return what the steps return."""
    with closing(steps):
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                outcome: T = end.value
                return outcome
            yield event(step)


def write(
    run: Plan, sources: Sequence[Source], exported: Exported, truth: Path | None = None
) -> Generator[Event, None, Scores]:
    """Write the measures, the report and the model card that are missing.

    Args:
        run: The run.
        sources: Its sources.
        exported: From `locate`.
        truth: Table of true positions to compare with.

    Returns:
        Names and values of the scores; empty without ground truth.
    """
    # Imported here, because it imports matplotlib, which would delay training.
    from ullayers.run.reports import report_run, write_card

    yield Event("report")
    missing = run.missing()
    scores = [] if truth is None else score(run, sources[0], exported.answers[0], truth)
    scenes = []
    if run.config.task == "locate":
        found = measure_folder(run.folder, exported.sequences)
        scenes = sorted(found, key=lambda scene: scene.sequence)
        if not set(MEASURES).isdisjoint(missing):
            write_behaviour(run.folder, scenes, run.zones, run.mm_per_pixel)
    if "report.html" in missing:
        report_run(run, sources, exported, scores=scores, scenes=scenes)
    if CARD in missing:
        write_card(run, exported)
    yield Event("report")
    return scores


@dataclass(frozen=True, kw_only=True)
class LearnState(LearnerState):
    """The state.json of a run that trains.

    Attributes:
        seen: Number of frames read.
        seconds: Duration of training so far.
    """

    seen: int
    seconds: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.seconds):
            raise ValueError(f"expected seconds, got {self.seconds}")


def _plan_survey(run: Plan, sources: Sequence[Source]) -> Survey | None:
    """Return the survey to take while frames are read, so that they are decoded only once.

    Surveys of several sources would take too much memory.
    """
    if run.config.task != "locate" or len(sources) > 1:
        return None
    return plan_survey(sources[0], _outlines(run, sources[0]))


def _outlines(run: Plan, source: Source) -> Reading:
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


def _begin(run: Plan, learner: Learner) -> int:
    learner.start()  # before anything is deleted, because it may fail
    run.folder.mkdir(parents=True, exist_ok=True)
    clear_run(run.folder)
    run.write_config()
    with replacing(run.folder / "metrics.jsonl"):  # it may be a pipe or a hard link
        pass
    run.fresh = False
    return 0


def _resume(run: Plan, learner: Learner) -> int:
    """Load the last checkpoint and drop later metrics; return the number of completed steps."""
    sweep(run.folder)
    sweep(run.folder / "checkpoint")
    tensors, rest = load_state(run.folder / "checkpoint")
    try:
        state = from_json(LearnState, rest, finite=False)  # J may be NaN
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


def _damaged(run: Plan) -> RunError:
    return RunError(
        f"{run.folder}: its checkpoint or metrics.jsonl is damaged; start again with --force"
    )


def _recorded(run: Plan, learner: Learner, done: int) -> Generator[Record, None, None]:
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
                yield record
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

    with quiet_writer_threads(), SummaryWriter(str(folder / "tensorboard")) as board:
        yield board


def _save_checkpoint(run: Plan, learner: Learner, seconds: float) -> None:
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


def _learn_student(run: Plan, learner: Learner, sources: Sequence[Source]) -> Student | None:
    """Return the network that sees objects in single frames, for one source without corrections."""
    steps = min(STUDENT_STEPS, round(STUDENT_SHARE * learner.steps))
    if run.config.task != "locate" or len(sources) > 1 or run.teaching or steps < LEAST_STEPS:
        return None
    outlines = _outlines(run, sources[0])
    frames = many_frames(sources[0], outlines, run.surveys.get((sources[0], outlines)))
    return learn_student(frames, steps, run.config.seed, run.config.device)


def _end(run: Plan, learner: Learner, sources: Sequence[Source]) -> None:
    best = learner.best
    footage = learner.footage
    check_weights(best.net)
    checked = _checked(best)
    if not abs(checked["objective"]) < 1e30:
        raise RunError("nothing could be learned: J is not finite; does enough move in the video?")
    start = learner.new_trial(learner.winner).check().training
    run.net = best.net
    student = _learn_student(run, learner, sources)
    if isinstance(best.net, Locator):
        best.net.student = student
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
        agreement=None if student is None else float(student.agreement),
    )
    write_tensors(run.folder / "model.safetensors", weights(best.net))
    run.write_config()
    if footage.pieces[0].source == 0:
        run.beginning = footage.pieces[0]
    if footage.complete:
        for number, source in enumerate(sources):
            run.pieces[source, footage.readings[number]] = footage.of_source(number)
