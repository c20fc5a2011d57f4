"""The command `ul`: thin words around what the library does. Nobody imports it."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ullayers.cli.options import make_parser

if TYPE_CHECKING:
    from ullayers.learn.config import Config
    from ullayers.learn.runs import Run
    from ullayers.output.export import Exported
    from ullayers.video.reader import Source

OVERLAY = 1500  # frames of the video that `learn` makes to look at
ALL = 10**12  # frames of that of `apply`
CONFIG = ("task", "outputs", "steps", "restarts", "long_mean", "mu", "eps", "optimizer", "lr",
          "momentum", "weight_decay", "tolerance", "seed", "device")  # fmt: skip
READING = ("size", "stride", "max_frames", "grey", "follow")
RESULTS = ("tracks.csv", "codes.csv", "overlay.mp4")
MOST = 0.5  # share of unsure frames above which a track cannot be trusted
RISE = 0.05  # of J over learning, above which it has gone wrong
STOPS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C, and what shuts a machine or a job down
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2: users can mend it, 130: stopped, 1: a goal was missed."""
    if sys.stdout is None or sys.stderr is None:  # closed by who called us
        sys.stdout, sys.stderr = (s or open(os.devnull, "w") for s in (sys.stdout, sys.stderr))
    given = make_parser(_demo, _learn, _apply, _watch, _reproduce, _bench).parse_args(arguments)
    if given.do is not _bench:  # which is to see what users' own processes see
        # Threads that wait must sleep: on a busy machine, spinning makes learning ten times slower.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        with _whole_imports(), _alone(given):
            code: int = given.do(given) or 0
        return code
    except KeyboardInterrupt:
        kept = "what is finished is kept, --resume goes on"
        _say(given, f"stopped; {kept if _is_begun(given) else 'nothing is finished, begin anew'}")
        return 130
    except BrokenPipeError:  # the reader of our lines has gone: `ul watch ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ModuleNotFoundError) as error:
        _say(given, _one_line(given, error))
        return 2


def _alone(given: Namespace) -> AbstractContextManager[None]:
    """Two processes in one folder would ruin each other's work."""
    from ullayers.learn.checkpoint import locked

    return nullcontext() if given.out is None else locked(given.out)


@contextmanager
def _whole_imports() -> Iterator[None]:
    """A stop waits for the end of an import: half a module may hang or fail in strange ways."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if "importlib._bootstrap" in frame.f_code.co_filename:
                threading.Timer(0.05, _thread.interrupt_main, [number]).start()
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    with _heard(interrupt):
        yield


@contextmanager
def _heard(hear: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle stops but those that are ignored, as Ctrl-C is by what runs in the background."""
    before = {stop: signal.getsignal(stop) for stop in STOPS}
    heard = [stop for stop, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for stop in heard:
        signal.signal(stop, hear)
    try:
        yield
    finally:
        for stop in heard:
            signal.signal(stop, before[stop])


def _silence_threads() -> None:
    """TensorBoard writes in a thread, which hands its errors on to us and prints them as well."""
    before = threading.excepthook

    def hook(error: threading.ExceptHookArgs) -> None:
        if not isinstance(error.exc_value, OSError):
            before(error)

    threading.excepthook = hook


def _say(given: Namespace, text: str) -> None:
    print(f"ul {given.command}: {' '.join(text.split())}", file=sys.stderr)


def _is_begun(given: Namespace) -> bool:
    """Whether there is something that --resume would find."""
    if given.command == "apply":
        return any(Path(given.out).glob("*.partial.json"))
    if given.command == "reproduce":
        return any(Path(given.out).glob("results/*/outcome.json"))
    if given.command == "watch" or given.resume:
        return given.out is not None
    run = getattr(given, "planned", None)
    if run is None or run.fresh:  # what is there, if anything, is of a run before
        return False
    return run.net is not None or Path(given.out, "checkpoint", "state.json").exists()


def _one_line(given: Namespace, error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in FULL:
        then = "go on with --resume" if _is_begun(given) else "begin anew"
        return f"the disk is full; make room, then {then} ({text})"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check --out and the inputs"
    return text


def _config(given: Namespace) -> Config:
    from ullayers.learn.config import Config
    from ullayers.learn.runs import check_device

    named = {key: getattr(given, key, None) for key in CONFIG}
    check_device(given.device or "cpu")
    return Config(**{key: value for key, value in named.items() if value is not None})


def _demo(given: Namespace) -> None:
    from ullayers.learn.checkpoint import locked
    from ullayers.learn.folders import check_free
    from ullayers.video.scene import write_scene

    out = Path(given.out)
    video, run = out / "scene.mp4", out / "run"
    with locked(run):  # it could be learned into by another process, as any run
        if not (given.resume and video.exists() and (out / "truth.csv").exists()):
            check_free(out, given.force, (video.name, "truth.csv"))
            check_free(run, given.force)
            write_scene(out, seed=given.seed or 0)
        given.inputs, given.out, given.skip_bad, given.masks = [str(video)], str(run), False, False
        given.resume = given.resume and (run / "config.json").exists()
        _learn(given, truth=out / "truth.csv")


def _learn(given: Namespace, truth: Path | None = None) -> None:
    run, sources = _planned(given)
    given.planned = run
    if run.net is None:
        _train(given, run, sources)
    _finish(given, run, sources, truth)


def _planned(given: Namespace) -> tuple[Run, list[Source]]:
    from ullayers.learn.runs import load_run, plan_run, sources_of

    if given.resume:
        run = load_run(given.out, given.device)
        if not Path(given.out, "metrics.jsonl").exists():
            raise ValueError(f"{given.out}: was made by ul watch; go on with ul watch --resume")
        run.skip_bad |= given.skip_bad
        run.masks |= given.masks
        sources = sources_of(run)
        _check_same(given, run, sources[0])
        return run, sources
    if not given.inputs:
        raise ValueError("give a video file, a folder or a pattern to learn from")
    how: dict[str, Any] = {key: getattr(given, key, None) for key in READING}
    how = {key: value for key, value in how.items() if value is not None}
    return plan_run(
        given.inputs, given.out, _config(given),
        skip_bad=given.skip_bad, masks=given.masks, force=given.force, **how,
    )  # fmt: skip


def _check_same(given: Namespace, run: Run, first: Source | None = None) -> None:
    """A resumed run has its own inputs and options; others would be ignored silently."""
    from ullayers.learn.runs import absolute, small_size

    if given.inputs and absolute(given.inputs) != run.inputs:
        raise ValueError(f"this run learns from {' '.join(run.inputs)}; leave the inputs out")
    own = {**vars(run.reading), **vars(run.config), "max_frames": run.max_frames}
    for key in CONFIG + READING:
        value = getattr(given, key, None)
        if key == "size" and isinstance(value, int) and first is not None:
            value = small_size(value, first.probe())
        if value is not None and value != own[key] and key != "device":
            option, has = "--" + key.replace("_", "-"), own[key]
            has = "x".join(map(str, has)) if isinstance(has, tuple) else has
            has = f"no {option}" if has is None else f"{option} {has}"
            raise ValueError(f"this run has {has}; leave it out, or start with --force")


def _train(given: Namespace, run: Run, sources: list[Source]) -> None:
    from ullayers.cli.progress import Progress
    from ullayers.learn.runs import learn_run

    _silence_threads()
    with _stoppable() as stopped, ExitStack() as stack:
        reading = stack.enter_context(Progress("reading", "frames", quiet=given.quiet))
        learning: Progress | None = None

        def read(count: int) -> None:
            reading.to(count)
            if stopped:
                raise KeyboardInterrupt

        for learner, record in stack.enter_context(closing(learn_run(run, sources, read))):
            if learning is None:
                reading.bar.close()
                learning = Progress("learning", "steps", learner.total, quiet=given.quiet)
                stack.enter_context(learning)
            done = sum(len(trial.history) for trial in learner.trials)
            learning.to(done, f"J {record.objective:.2f} ({record.kind})")
            if stopped:
                raise KeyboardInterrupt


def _finish(given: Namespace, run: Run, sources: list[Source], truth: Path | None) -> None:
    from ullayers.cli.progress import Progress
    from ullayers.output.export import Wanted, export
    from ullayers.output.summary import report_run

    total = sum(source.probe().frames or 0 for source in sources) or None
    wanted = Wanted(
        max_frames=run.max_frames, masks=run.masks, overlay=OVERLAY, skip_bad=run.skip_bad,
        resume=given.resume,
    )  # fmt: skip
    with Progress("applying", "frames", total, quiet=given.quiet) as progress:
        done = export(run, sources, run.folder, wanted, progress.to)
    scores: list[tuple[str, str]] = []
    if truth is not None:
        from ullayers.output.scores import score

        scores = score(run, sources[0], done.answers[0], truth)
    report_run(run, sources, done, scores=scores)
    _summary(given, run, done, scores)


def _summary(given: Namespace, run: Run, done: Exported, scores: Sequence[tuple[str, str]]) -> None:
    share = _warn(given, run.bad | done.bad, done)
    objective, start = run.result["objective"], run.result.get("start")
    if start is not None and objective > start + RISE:
        _say(given, f"warning: nothing trustworthy was learned, J rose from {start:.2f} to "
             f"{objective:.2f}; try a smaller --lr")  # fmt: skip
    if given.quiet:
        return
    for what, value in scores:
        print(f"{what:50} {value:>8}")
    sure = f"; unsure (confidence below 0.5) in {share:.1%} of frames"
    frames = f"{run.result['frames']:,} frames, J on clips for judging {objective:.2f}"
    print(f"learned from {frames}, long-term mean of the {run.kind}"
          + sure * (run.config.task == "locate"))  # fmt: skip
    print(f"look at {run.folder / 'report.html'} and {run.folder / 'overlay.mp4'}")


def _warn(given: Namespace, bad: dict[str, str], done: Exported) -> float:
    """Say what was left out, and if the rest cannot be trusted; gives the share of unsure ones."""
    from ullayers.learn.results import unsure

    for name, error in bad.items():
        used = "used in part: " if "can be read" in error else "left out: "
        _say(given, used + (error if name in error else f"{name}: {error}"))
    if (share := unsure(done.answers)) > MOST:
        _say(given, f"warning: nothing trustworthy was found, unsure in {share:.1%} of frames; "
             "look at overlay.mp4" + " (--overlay)" * (given.command == "apply"))  # fmt: skip
    return share


def _apply(given: Namespace) -> None:
    from ullayers.cli.progress import Progress
    from ullayers.learn.folders import check_apart, check_free
    from ullayers.learn.footage import open_sources
    from ullayers.learn.runs import load_run
    from ullayers.output.export import Wanted, export

    run = load_run(given.run, given.device)
    if given.masks and run.config.task != "locate":
        raise ValueError(f"{given.run}: has a code and no masks; leave --masks out")
    if not (given.resume and any(Path(given.out).glob("*.partial.json"))):
        check_free(given.out, given.force)
    if Path(given.out, "model.safetensors").exists():
        raise ValueError(f"{given.out}: is a run, whose table must stay; give another --out")
    sources, infos, bad = open_sources(given.inputs, skip_bad=given.skip_bad)
    check_apart(given.out, sources)
    frames = [info.frames for info in infos]
    total = None if None in frames else sum(frame or 0 for frame in frames)
    most = None if given.max_frames is None else -(-given.max_frames // given.stride)
    wanted = Wanted(
        stride=given.stride, max_frames=most, masks=given.masks,
        overlay=ALL if given.overlay else None, skip_bad=given.skip_bad, resume=given.resume,
    )  # fmt: skip
    with Progress("applying", "frames", total, quiet=given.quiet) as progress:
        done = export(run, sources, given.out, wanted, progress.to)
    if given.force:
        for stale in {Path(given.out, name) for name in RESULTS} - set(done.files):
            stale.unlink(missing_ok=True)
    _warn(given, bad | done.bad, done)
    if not given.quiet:
        print("wrote " + ", ".join(str(file) for file in done.files))


def _watch(given: Namespace) -> int:
    from ullayers.cli.view import View
    from ullayers.learn.online import watch
    from ullayers.learn.results import header

    if given.resume:
        _check_watch(given)
    how: dict[str, Any] = {key: getattr(given, key, None) for key in READING}
    found = watch(
        given.source, config=_config(given), folder=given.out, every=given.every,
        force=given.force, resume=given.resume,
        **{key: value for key, value in how.items() if value is not None},
    )  # fmt: skip
    lines = given.lines or not sys.stdout.isatty()
    view = View(sys.stdout)
    with _stoppable() as stopped, closing(found):
        for number, sighting in enumerate(found):
            if lines and not given.quiet:
                first = header(sighting.columns) if number == 0 else ""
                print(first + sighting.line(), end="", flush=True)
            elif not given.quiet:
                view.show(sighting)
            if stopped:
                break
        view.close()
    if stopped:
        raise KeyboardInterrupt
    return 0


def _reproduce(given: Namespace) -> int:
    from ullayers.cli.progress import Progress
    from ullayers.research.reproduce import PAGE, reproduce_all

    results = reproduce_all(
        given.names,
        given.data,
        given.out,
        first_seed=given.seed,
        seed_count=given.seeds,
        quick=given.quick,
        resume=given.resume,
        force=given.force,
        progress=partial(Progress, unit="runs", quiet=given.quiet),
    )
    failed = False
    for result in results:
        if not given.quiet:
            print(f"{result.name}: {result.seconds:.0f} s", flush=True)
        for claim in result.failed:
            _say(given, f"{result.name}: does not hold: {claim.what}: {claim.value:.4g}")
            failed = True
    if not given.quiet:
        print(f"look at {Path(given.out, PAGE)}")
    return int(failed)


def _bench(given: Namespace) -> None:
    from ullayers.learn.runs import check_device
    from ullayers.research.bench.names import PARTS
    from ullayers.research.bench.run import run
    from ullayers.research.bench.timing import BenchOptions

    check_device(given.device)
    file = Path(given.json) if given.json else None
    if file and (file.is_dir() or not os.access(file.absolute().parent, os.W_OK)):
        raise ValueError(f"{file}: cannot be written there; give another --json")
    options = BenchOptions(**{key: getattr(given, key) for key in vars(BenchOptions())})
    run(PARTS if given.what == "all" else [given.what], options, partial(print, flush=True), file)


def _check_watch(given: Namespace) -> None:
    from ullayers.learn.runs import load_run

    if given.out is None:
        raise ValueError("--resume needs --out, the folder to go on in")
    if Path(given.out, "metrics.jsonl").exists():
        raise ValueError(f"{given.out}: was made by ul learn; give another --out")
    given.inputs = None
    _check_same(given, load_run(given.out))


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """A stop is heard between two frames, so that what was learned is never half a step.

    The second time it is heard at once, for those who cannot wait.
    """
    stopped: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(number)

    with _heard(hear):
        yield stopped
