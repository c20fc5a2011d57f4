"""The command `ul`: thin words around what the library does. Nobody imports it."""

from __future__ import annotations

import errno
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullayers.options import make_parser

if TYPE_CHECKING:
    from ullayers.learn import Config
    from ullayers.runs import Run
    from ullayers.video import Source

OVERLAY = 1500  # frames of the video that `learn` makes to look at
CONFIG = ("task", "outputs", "steps", "restarts", "mu", "eps", "optimizer", "lr", "momentum",
          "weight_decay", "tolerance", "seed", "device")  # fmt: skip
READING = ("size", "stride", "max_frames", "grey")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 2 for what the user can mend and 130 for Ctrl-C."""
    given = make_parser(_demo, _learn, _apply, _watch).parse_args(arguments)
    try:
        code: int = given.do(given) or 0
        return code
    except KeyboardInterrupt:
        _say(given, "stopped; what is finished is kept, --resume goes on")
        return 130
    except BrokenPipeError:  # the reader of our lines has gone: `ul watch ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        _say(given, _one_line(error))
        return 2


def _say(given: Namespace, text: str) -> None:
    print(f"ul {given.command}: {text}", file=sys.stderr)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full; make room, then go on with --resume ({text})"
    return text


def _config(given: Namespace) -> Config:
    from ullayers.learn import Config

    named = {key: getattr(given, key, None) for key in CONFIG}
    _check_device(given.device)
    return Config(**{key: value for key, value in named.items() if value is not None})


def _check_device(name: str | None) -> None:
    import torch

    try:
        torch.empty(0, device=name or "cpu")
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here; leave --device out") from error


@contextmanager
def _bar(given: Namespace, what: str, total: int | None, unit: str) -> Iterator[Any]:
    from tqdm import tqdm

    shown = sys.stderr.isatty() and not given.quiet
    with tqdm(desc=f"{what:8}", total=total, unit=unit, disable=not shown, leave=False) as bar:
        yield bar


def _demo(given: Namespace) -> None:
    from ullayers.runs import check_free
    from ullayers.scene import write_scene

    out = Path(given.out)
    video, run = out / "scene.mp4", out / "run"
    if not (given.resume and video.exists()):
        check_free(run, given.force)
        write_scene(out, seed=given.seed or 0)
    given.inputs, given.out, given.skip_bad, given.masks = [str(video)], str(run), False, False
    given.resume = given.resume and (run / "config.json").exists()
    _learn(given, truth=out / "truth.csv")


def _learn(given: Namespace, truth: Path | None = None) -> None:
    run, sources = _planned(given)
    if run.net is None:
        _train(given, run, sources)
    _finish(given, run, sources, truth)


def _planned(given: Namespace) -> tuple[Run, list[Source]]:
    from ullayers.runs import load_run, plan_run, sources_of

    if given.resume:
        run = load_run(given.out)
        _check_same(given, run)
        return run, sources_of(run)
    if not given.inputs:
        raise ValueError("give a video file, a folder or a pattern to learn from")
    how: dict[str, Any] = {key: getattr(given, key, None) for key in READING}
    how = {key: value for key, value in how.items() if value is not None}
    return plan_run(
        given.inputs, given.out, _config(given), skip_bad=given.skip_bad, force=given.force, **how
    )


def _check_same(given: Namespace, run: Run) -> None:
    """A resumed run has its own inputs and options; others would be ignored silently."""
    if given.inputs and given.inputs != run.inputs:
        raise ValueError(f"this run learns from {' '.join(run.inputs)}; leave the inputs out")
    for key in CONFIG + READING:
        value = getattr(given, key, None)
        own = getattr(run.config if key in CONFIG else run.reading, key)
        if value is not None and value != own and key != "device":
            option = "--" + key.replace("_", "-")
            raise ValueError(f"this run has {option} {own}; leave it out, or start with --force")


def _train(given: Namespace, run: Run, sources: list[Source]) -> None:
    from ullayers.runs import learn_run

    with (
        _bar(given, "reading", None, "frame") as reading,
        _bar(given, "learning", None, "step") as bar,
    ):
        for learner, record in learn_run(run, sources, lambda n: reading.update(n - reading.n)):
            if bar.total is None:
                reading.close()
                bar.total = learner.total
            bar.set_postfix_str(f"J {record.objective:.2f} ({record.kind})", refresh=False)
            bar.update(sum(len(trial.history) for trial in learner.trials) - bar.n)


def _finish(given: Namespace, run: Run, sources: list[Source], truth: Path | None) -> None:
    from ullayers.export import Wanted, export
    from ullayers.summary import report_run

    total = sum(source.probe().frames or 0 for source in sources) or None
    with _bar(given, "applying", total, "frame") as bar:
        wanted = Wanted(
            max_frames=run.max_frames, masks=given.masks, overlay=OVERLAY, skip_bad=run.skip_bad
        )
        done = export(run, sources, run.folder, wanted, lambda n: bar.update(n - bar.n))
    scores: list[tuple[str, str]] = []
    if truth is not None:
        from ullayers.demo import score

        scores = score(run, sources[0], done.answers[0], truth)
    report_run(run, sources, done, scores=scores)
    _summary(given, run, done.bad, scores)


def _summary(
    given: Namespace, run: Run, bad: dict[str, str], scores: Sequence[tuple[str, str]]
) -> None:
    for name, error in (run.bad | bad).items():
        _say(given, f"left out: {error if name in error else f'{name}: {error}'}")
    if given.quiet:
        return
    for what, value in scores:
        print(f"{what:50} {value:>8}")
    frames = f"{run.result['frames']:,} frames, J {run.result['objective']:.2f}"
    print(f"learned from {frames}, long-term mean of the {run.kind}")
    print(f"look at {run.folder / 'report.html'} and {run.folder / 'overlay.mp4'}")


def _apply(given: Namespace) -> None:
    from ullayers.export import Wanted, export
    from ullayers.footage import open_sources
    from ullayers.runs import check_free, load_run

    _check_device(given.device)
    run = load_run(given.run, given.device)
    if not given.resume:
        check_free(given.out, given.force)
    sources, infos, bad = open_sources(given.inputs, skip_bad=given.skip_bad)
    frames = [info.frames for info in infos]
    total = None if None in frames else sum(frame or 0 for frame in frames)
    with _bar(given, "applying", total, "frame") as bar:
        wanted = Wanted(
            stride=given.stride, max_frames=given.max_frames, masks=given.masks,
            overlay=(total or OVERLAY) if given.overlay else None, skip_bad=given.skip_bad,
            resume=given.resume,
        )  # fmt: skip
        done = export(run, sources, given.out, wanted, lambda n: bar.update(n - bar.n))
    for name, error in (bad | done.bad).items():
        _say(given, f"left out: {error if name in error else f'{name}: {error}'}")
    if not given.quiet:
        print("wrote " + ", ".join(str(file) for file in done.files))


def _watch(given: Namespace) -> None:
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())
