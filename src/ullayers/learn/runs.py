"""The run folder: what was asked, what was learned, and how far it has come. No pickle anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ullayers.learn.checkpoint import (
    RunError,
    load_state,
    read_tensors,
    save_state,
    write_tensors,
)
from ullayers.learn.config import Config
from ullayers.learn.folders import check_apart, check_free, clear_run
from ullayers.learn.footage import FEW, Footage, LongMean, gather, natural_stride, open_sources
from ullayers.learn.models import Model, weights
from ullayers.learn.training import Learner, Record, Trial, build, check_weights
from ullayers.video.atomic_files import replacing, sweep, write_json
from ullayers.video.follow import SIDE
from ullayers.video.reader import Info, Reading, Source, VideoError

SMALL, WIDE = 64, 128  # pixels of the longer side of frames, whole or to cut a part out of
EVERY = 20  # steps between checkpoints


@dataclass
class Run:
    """A run folder and what is in it.

    Attributes:
        folder: where it is.
        inputs: paths that were given.
        config: what to learn and how, resolved.
        reading: how the videos are read for learning.
        max_frames: of each source, only so many frames count; the reading takes every `stride`-th.
        natural: whether the stride was chosen by what the headers say.
        skip_bad: whether unreadable inputs are left out.
        masks: whether every mask is wanted as a picture.
        fresh: whether learning starts anew, whatever is in the folder.
        result: what was learned, in a few numbers; empty until learning has ended.
        net: the network; None until learning has ended.
        bad: inputs that were left out, with their errors.
        backdrops: of the sources with a static camera, if learning has just seen all of them.
    """

    folder: Path
    inputs: list[str]
    config: Config
    reading: Reading
    max_frames: int | None = None
    skip_bad: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    net: Model | None = None
    bad: dict[str, str] = field(default_factory=dict)
    masks: bool = False
    fresh: bool = False
    natural: bool = False
    backdrops: dict[Source, Tensor] = field(default_factory=dict)

    @property
    def kind(self) -> LongMean:
        """The kind of long-term mean that won."""
        kind: LongMean = self.result["kind"]
        return kind

    def write_config(self) -> None:
        """Write config.json."""
        reading = self.reading
        content = {
            "inputs": self.inputs,
            "skip_bad": self.skip_bad,
            "masks": self.masks,
            "reading": {
                "size": reading.size,
                "grey": reading.grey,
                "stride": reading.stride,
                "max_frames": self.max_frames,
                "mixed": reading.mixed,
                "follow": reading.follow,
            },
            "learn": asdict(self.config),
            "result": self.result,
        }
        write_json(self.folder / "config.json", content)

    def records(self) -> list[dict[str, Any]]:
        """What metrics.jsonl has."""
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def plan_run(
    inputs: Sequence[str],
    folder: str | os.PathLike[str],
    config: Config,
    *,
    size: int | tuple[int, int] | None = None,
    stride: int | None = None,
    max_frames: int | None = None,
    grey: bool = False,
    follow: bool = False,
    skip_bad: bool = False,
    masks: bool = False,
    force: bool = False,
) -> tuple[Run, list[Source]]:
    """Look at the inputs and settle everything that depends on them; nothing is written yet.

    Args:
        inputs: video files, folders, patterns.
        folder: of the run.
        config: what to learn and how.
        size: of the frames to learn from: the longer side, or (height, width). All sources are
            brought to the size that the first one gets. Pictures of one folder may differ in size
            only if both sides are given. None is 64, or 128 if a part is cut out of them.
        stride: learn from every so many frames; None takes about six a second.
        max_frames: of each source, at most so many.
        grey: learn without colour.
        follow: a code is of a square around what moves and not of the whole frame.
        skip_bad: leave out what cannot be read.
        masks: every mask is wanted as a picture.
        force: replace a run that is there.
    """
    if masks and config.task != "locate":
        raise RunError(f"--task {config.task} has no masks; leave --masks out")
    if follow and config.task == "locate":
        raise RunError("--follow is for --task orient and features; locate looks everywhere")
    if config.outputs != 2 and config.task == "locate":
        raise RunError("--outputs is for --task orient and features; locate has two, x and y")
    sources, infos, bad = open_sources(inputs, skip_bad=skip_bad)
    check_free(folder, force)
    check_apart(folder, sources)
    natural, stride = stride is None, stride or natural_stride(infos, max_frames)
    small = small_size(size or (WIDE if follow else SMALL), infos[0])
    mixed = isinstance(size, tuple)
    reading = make_reading(small, grey, stride, max_frames, mixed=mixed, follow=follow)
    run = Run(
        Path(folder), absolute(inputs), config, reading, max_frames, skip_bad, bad=bad,
        masks=masks, fresh=True, natural=natural,
    )  # fmt: skip
    return run, sources


def absolute(inputs: Sequence[str]) -> list[str]:
    """Inputs that mean the same in any folder."""
    return [os.path.abspath(os.path.expanduser(path)) for path in inputs]


def small_size(size: int | tuple[int, int], info: Info) -> tuple[int, int]:
    """The (height, width) to learn from, where the longer side is given, or both are."""
    reading = Reading(longest=size) if isinstance(size, int) else Reading(size=size)
    return reading.target(info.height, info.width)


def make_reading(
    size: tuple[int, int], grey: bool, stride: int, max_frames: int | None, *, mixed: bool,
    follow: bool = False,
) -> Reading:  # fmt: skip
    """How to learn from every `stride`-th of the first `max_frames` frames."""
    kept = None if max_frames is None else -(-max_frames // stride)
    return Reading(size=size, grey=grey, stride=stride, max_frames=kept, mixed=mixed, follow=follow)


def sources_of(run: Run) -> list[Source]:
    """The sources of a run that goes on."""
    sources, _, bad = open_sources(run.inputs, skip_bad=run.skip_bad)
    run.bad |= bad
    if run.result and [source.name for source in sources] != run.result["sources"]:
        raise RunError(
            f"{run.folder}: its inputs have changed since it was learned; use ul apply for others"
        )
    return sources


def check_device(name: str) -> None:
    """Refuse a device that torch cannot use here."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RunError(f"device {name!r} cannot be used here; try --device cpu") from error


def learn_run(
    run: Run, sources: Sequence[Source], progress: Callable[[int], None] = lambda seen: None
) -> Generator[tuple[Learner, Record], None, None]:
    """Learn, from the start or from the last checkpoint; saves as it goes.

    Example:
        >>> import tempfile
        >>> from ullayers.video.scene import write_scene
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(Path(folder), frames=60)
        ...     config = Config(trial_steps=2, steps=3, restarts=1)
        ...     run, sources = plan_run([str(video)], f"{folder}/run", config, size=32)
        ...     steps = [record.step for _, record in learn_run(run, sources)]
        ...     sorted(path.name for path in run.folder.iterdir() if path.is_file())
        ['config.json', 'metrics.jsonl', 'model.safetensors']
    """
    footage = gather(sources, run.reading, skip_bad=run.skip_bad, progress=progress)
    if run.natural and run.reading.stride > 1 and footage.seen < FEW:  # the headers knew no better
        run.reading = replace(run.reading, stride=1, max_frames=run.max_frames)
        footage = gather(sources, run.reading, skip_bad=run.skip_bad, progress=progress)
    run.bad |= footage.bad
    if not footage.pieces and (run.reading.stride > 1 or run.max_frames):
        raise VideoError(_too_few(run.reading.stride, run.max_frames))
    learner = Learner(footage, run.config)
    run.config = learner.config
    saved = (run.folder / "checkpoint" / "state.json").exists() and not run.fresh
    done = _resume(run, learner) if saved else _begin(run, learner)
    yield from _watched(run, learner, done)
    _end(run, learner, footage, sources)


def _too_few(stride: int, most: int | None) -> str:
    """Names only what has left frames out."""
    remedies = {f"--stride {stride}": "a smaller --stride"} if stride > 1 else {}
    if most is not None:
        remedies[f"--max-frames {most}"] = "a larger --max-frames"
    left = f"no three frames in a row are left to learn from with {' and '.join(remedies)}"
    return f"{left}; use {' or '.join(remedies.values())}"


def load_run(folder: str | os.PathLike[str], device: str | None = None) -> Run:
    """Read a run folder; its network is there if learning has ended.

    Args:
        folder: of the run.
        device: to use the network on; None for the one it was learned on.

    Raises:
        RunError: it is not a run, or is damaged.
    """
    place = Path(folder)
    try:
        content = json.loads((place / "config.json").read_text(encoding="utf-8"))
        how = content["reading"]
        height, width = how["size"]
        frames = how["max_frames"]
        reading = make_reading(
            (height, width), how["grey"], how["stride"], frames,
            mixed=how.get("mixed", True), follow=how.get("follow", False),
        )  # fmt: skip
        run = Run(
            place, list(content["inputs"]), Config(**content["learn"]), reading, frames,
            content["skip_bad"], content["result"], masks=content.get("masks", False),
        )  # fmt: skip
        if run.result and run.kind not in ("clip", "stream"):
            raise ValueError(f"expected clip or stream, got {run.kind}")
    except FileNotFoundError as error:
        raise RunError(f"{folder}: is not a run, it has no config.json") from error
    except NotADirectoryError as error:
        raise RunError(f"{folder}: is a file; give the folder of a run") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{folder}: its config.json is damaged; learn again") from error
    if device is not None:
        run.config = replace(run.config, device=device)
    check_device(run.config.device)
    if run.result:
        run.net = _load_net(run)
    return run


def fresh_net(run: Run) -> Model:
    """The network as it is before learning."""
    size = (SIDE, SIDE) if run.reading.follow else run.reading.size
    assert size is not None
    net = build(run.config, run.kind, run.reading.channels, size)
    return net.to(run.config.device).eval()


def _load_net(run: Run) -> Model:
    net = fresh_net(run)
    saved = read_tensors(run.folder / "model.safetensors")
    expected = weights(net)
    shapes = [{k: v.shape for k, v in tensors.items()} for tensors in (saved, expected)]
    if shapes[0] != shapes[1]:
        raise RunError(
            f"{run.folder}: its model.safetensors does not belong to its config.json; learn again"
        )
    net.load_state_dict(saved, strict=False)
    return net


def _begin(run: Run, learner: Learner) -> int:
    learner.start()  # before anything is cleared: it may not be possible
    run.folder.mkdir(parents=True, exist_ok=True)
    clear_run(run.folder)
    run.write_config()
    (run.folder / "metrics.jsonl").write_text("")
    run.fresh = False
    return 0


def _resume(run: Run, learner: Learner) -> int:
    """Load the last checkpoint, and forget the metrics that came after it."""
    sweep(run.folder)
    sweep(run.folder / "checkpoint")
    tensors, rest = load_state(run.folder / "checkpoint")
    if rest.get("seen") != learner.footage.seen:
        raise RunError(
            f"{run.folder}: began with {rest.get('seen')} frames, now there are "
            f"{learner.footage.seen}; the videos have changed, start again with --force"
        )
    try:
        learner.load(tensors, rest)
        learner.began -= rest["seconds"]
        if learner.state()[0].keys() != tensors.keys():
            raise ValueError("the checkpoint is of another run")
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            f"{run.folder}: its checkpoint is damaged; start again with --force"
        ) from error
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    done = sum(map(len, rest["histories"]))
    with replacing(run.folder / "metrics.jsonl") as file:
        file.writelines(lines[:done])
    return done


def _watched(
    run: Run, learner: Learner, done: int
) -> Generator[tuple[Learner, Record], None, None]:
    """The learner's records, written down as they come."""
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
            if done % EVERY == 0:
                _save_checkpoint(run, learner, record.seconds)
            try:
                yield learner, record
            except GeneratorExit:  # stopped between two steps: nothing is lost
                _save_checkpoint(run, learner, record.seconds)
                raise


def _line(record: Record) -> str:
    """JSON knows no nan, which J is before anything has moved."""
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


def _end(run: Run, learner: Learner, footage: Footage, sources: Sequence[Source]) -> None:
    best = learner.best
    check_weights(best.net)
    objective = best.score()
    if not abs(objective) < 1e30:
        raise RunError("nothing could be learned: J is not a number; is there enough that moves?")
    run.net, start = best.net, Trial(footage, run.config, best.kind, best.seed).score()
    run.result = {
        "kind": best.kind,
        "seed": best.seed,
        "trial": learner.winner,
        "objective": objective,
        "start": start if abs(start) < 1e30 else None,
        "scores": learner.scores,
        "steps": len(best.history),
        "frames": footage.seen,
        "sources": footage.names,
        "bad": run.bad,
        "camera": any(piece.path is not None for piece in footage.pieces),
        "torch": torch.__version__,
    }
    write_tensors(run.folder / "model.safetensors", weights(best.net))
    run.write_config()
    if sum(map(len, footage.pieces)) == footage.seen and not footage.bad:  # no piece had to go
        run.backdrops = {sources[i]: behind for i, behind in footage.backdrops().items()}
