"""Learning while frames arrive: one frame in, one answer out, without end."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learn.apply import csv_name, describe
from ullayers.learn.checkpoint import (
    RunError,
    below,
    load_state,
    pack,
    save_state,
    unpack,
    write_tensors,
)
from ullayers.learn.config import Config
from ullayers.learn.folders import check_free, clear_run
from ullayers.learn.models import Locator, weights
from ullayers.learn.results import TRACK, Answer, code_columns, header
from ullayers.learn.runs import Run, load_run, make_reading, small_size
from ullayers.learn.training import build, check_weights, make_optimizer
from ullayers.nn.layers import backward
from ullayers.nn.replay_memory import ReplayMemory
from ullayers.video.camera_motion import LiveBackdrop
from ullayers.video.reader import Reading, Source, VideoError, find_sources, open_live

MEMORY = 1024  # frames that are remembered, in half precision: at 64 x 48 in colour, 19 MB
MOST = 64 * 2**20  # bytes of larger frames, of which fewer are remembered
CLIPS, LENGTH = 8, 8  # of a step
EVERY = 8  # frames from step to step
SMALL = 64 * 64  # pixels; larger frames have fewer steps, so that learning keeps up with a camera
WARM_UP = 100  # frames over which the object's size is measured
WINDOW = 50  # steps over which J is averaged to see whether it still falls


@dataclass(frozen=True)
class Sighting:
    """What was found in one frame.

    Attributes:
        sequence: name of the source.
        frame: its number.
        seconds: its time.
        columns: what `values` are: x, y, confidence, or y0, y1, ...
        values: what was found.
        objective: J of the last step, lower is better; nan before the first.
        learning: False once J has settled.
        mask: (height, width) uint8 of small size, 255 where the object is; None for a code.
    """

    sequence: str
    frame: int
    seconds: float
    columns: tuple[str, ...]
    values: tuple[float, ...]
    objective: float
    learning: bool = True
    mask: NDArray[np.uint8] | None = None

    def line(self) -> str:
        """As a line of CSV."""
        index, when = np.array([self.frame]), np.array([self.seconds])
        return Answer(self.sequence, index, when, self.columns, np.array([self.values])).lines()


class Watcher:
    """The learner behind `watch`: a memory of recent frames, and steps on clips drawn from it.

    Args:
        config: what to learn and how.
        channels: of the frames.
        size: (height, width) of the frames.

    Example:
        >>> import torch
        >>> watcher = Watcher(Config(), channels=3, size=(24, 32))
        >>> for t in range(20):  # a bright square appears, and goes right
        ...     frame = torch.zeros(3, 24, 32, dtype=torch.uint8)
        ...     if t > 0:
        ...         frame[:, 8:12, t : t + 4] = 255
        ...     values, mask = watcher.see(frame)
        >>> abs(values[0] - (19 + 2) / 32) < 0.1
        True
    """

    def __init__(self, config: Config, channels: int, size: tuple[int, int]) -> None:
        self.config = replace(config.resolved(many=False), long_mean="stream")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            net = build(self.config, "stream", channels, size)
        self.net = net.to(self.config.device)
        self.optimizer = make_optimizer(self.net, self.config)
        memory = ReplayMemory(
            (channels, *size), _room(channels, size), clips=CLIPS, length=LENGTH,
            seed=self.config.seed,
        )  # fmt: skip
        self.memory = memory.to(self.config.device).half()
        self.every = _every(size)
        self.backdrop = LiveBackdrop()
        self.history: deque[float] = deque(maxlen=2 * WINDOW)
        self.count = 0
        self.learning = True

    @property
    def columns(self) -> tuple[str, ...]:
        """What the values are."""
        return TRACK if isinstance(self.net, Locator) else code_columns(len(self.net.readout))

    @property
    def objective(self) -> float:
        """J of the last step."""
        return self.history[-1] if self.history else float("nan")

    def see(self, frame: Tensor) -> tuple[tuple[float, ...], NDArray[np.uint8] | None]:
        """Learn from a uint8 frame (channels, height, width); gives what was found in it."""
        picture = frame.to(self.config.device).float() / 255
        if isinstance(self.net, Locator):
            picture = self.backdrop.foreground(picture)
        self.count += 1
        answer = self._answer(picture[None])
        if self.learning:
            self.learn(picture[None])
        return answer

    @torch.no_grad()
    def _answer(self, picture: Tensor) -> tuple[tuple[float, ...], NDArray[np.uint8] | None]:
        net = self.net
        if not isinstance(net, Locator):
            return tuple(net.embed(picture)[0].tolist()), None
        found = net(picture)
        if self.count <= WARM_UP:
            spread = found.spread.diagonal(dim1=1, dim2=2).mean()
            net.size.copy_((net.size**2 + (spread - net.size**2) / self.count).sqrt())
        values, masks = describe(net, found)
        return tuple(values[0].tolist()), masks[0]

    def learn(self, picture: Tensor) -> None:
        """Remember what the network has seen; from time to time, learn from clips of that."""
        self.memory.add(picture)
        if self.count % self.every or len(self.memory) < CLIPS * LENGTH:
            return
        self.optimizer.zero_grad()
        try:
            backward(self.net.learn_from(self.memory.sample().float(), self.memory.lengths))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise RunError("learning went astray; try a smaller --lr") from error
        self.optimizer.step()
        check_weights(self.net)
        self.history.append(float(self.net.cost.objective))
        self._stop_if_settled()

    def _stop_if_settled(self) -> None:
        if not self.config.tolerance or len(self.history) < 2 * WINDOW:
            return
        earlier, later = (np.mean(list(self.history)[i : i + WINDOW]) for i in (0, WINDOW))
        if earlier - later < self.config.tolerance:
            self.learning = False
            self.net.eval()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on: tensors, and what fits into JSON."""
        tensors = pack("", self.net, self.optimizer)
        tensors |= {f"memory.{key}": value for key, value in self.memory.state_dict().items()}
        for name in ("behind", "last"):
            value = getattr(self.backdrop, name)
            tensors |= {} if value is None else {f"backdrop.{name}": value}
        rest = {
            "count": self.count,
            "learning": self.learning,
            "backdrop": [self.backdrop.count, self.backdrop.unsteady],
            "history": list(self.history),
        }
        return tensors, rest

    def load(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        """Go on from a `state`."""
        unpack("", tensors, self.net, self.optimizer)
        self.memory.load_state_dict(below(tensors, "memory."))
        self.backdrop.behind = tensors.get("backdrop.behind")
        self.backdrop.last = tensors.get("backdrop.last")
        self.backdrop.count, self.backdrop.unsteady = rest["backdrop"]
        self.count, self.learning = rest["count"], rest["learning"]
        self.net.train(self.learning)
        self.history.extend(rest["history"])


def _room(channels: int, size: tuple[int, int]) -> int:
    """Frames that are remembered: as many as fit, and enough for a step.

    >>> _room(3, (48, 64)), _room(3, (192, 256)), _room(3, (1080, 1920))
    (1024, 227, 64)
    """
    return max(CLIPS * LENGTH, min(MEMORY, MOST // (2 * channels * size[0] * size[1])))


def _every(size: tuple[int, int]) -> int:
    """Frames from step to step: at most as many as a step has, so that each is learned from once.

    >>> _every((48, 64)), _every((96, 128)), _every((192, 256))
    (8, 24, 64)
    """
    return min(CLIPS * LENGTH, EVERY * -(-size[0] * size[1] // SMALL))


def watch(
    source: str | Source,
    *,
    config: Config | None = None,
    size: int | tuple[int, int] = 64,
    stride: int = 1,
    max_frames: int | None = None,
    grey: bool = False,
    folder: str | os.PathLike[str] | None = None,
    every: float = 60.0,
    force: bool = False,
    resume: bool = False,
) -> Generator[Sighting, None, None]:
    """Learn from frames as they come, and say of each what was found in it.

    Nothing is known at first; answers get better while it watches. It remembers the latest frames
    and learns from clips of them (`ReplayMemory`), so memory stays constant.

    Args:
        source: a video file, a folder of pictures, a camera (0 or /dev/video0), a URL, or a Source.
        config: what to learn ("locate" or "orient") and how.
        size: of the frames to learn from: the longer side, or (height, width).
        stride: learn from every so many frames.
        max_frames: stop after so many, those that the stride leaves out counted.
        grey: learn without colour.
        folder: keep a table, checkpoints and the network here; `ul apply` takes it as a run.
        every: seconds between checkpoints.
        force: replace what is in the folder.
        resume: go on from the last checkpoint in the folder, with its options; in a file or a
            folder of pictures after the last frame that was learned from.

    Example:
        >>> import tempfile
        >>> from ullayers.video.scene import write_scene
        >>> with tempfile.TemporaryDirectory() as place:
        ...     for found in watch(str(write_scene(place, frames=30)), size=32):
        ...         pass
        >>> found.frame, found.columns
        (29, ('x', 'y', 'confidence'))
    """
    config = config or Config()
    if config.task == "features":
        raise VideoError("slow features need the whole recording: use learn, or watch with orient")
    if isinstance(source, str):
        source = find_sources([source])[0] if os.path.isdir(source) else open_live(source)
    run = load_run(folder) if resume and folder else None
    if folder and run is None:
        check_free(folder, force)
    if run is None:
        shape = small_size(size, source.probe())
        reading = make_reading(shape, grey, stride, max_frames, mixed=True)
        run = Run(Path(folder or "."), [_place(source)], config, reading, max_frames)
    elif not _is_same(run, source):
        names = ", ".join(run.result.get("sources", run.inputs))
        raise RunError(
            f"{folder}: has learned from another source ({names}); give that one, or another --out"
        )
    assert run.reading.size is not None
    watcher = Watcher(run.config, run.reading.channels, run.reading.size)
    run.config = watcher.config
    if folder is None:
        yield from _sightings(watcher, source, run.reading)
    else:
        yield from _kept(_Keeper(run, watcher, source, resume), source, every)


def _place(source: Source) -> str:
    """A path that means the same in any folder; a URL stays as it is."""
    return os.path.abspath(source.path) if os.path.exists(source.path) else source.path


def _is_same(run: Run, source: Source) -> bool:
    """Whether this is what the run has watched; of a URL, its password and query may change."""
    if os.path.exists(source.path):
        return _place(source) == run.inputs[0]
    return [source.name] == run.result.get("sources")


def _sightings(
    watcher: Watcher, source: Source, reading: Reading
) -> Generator[Sighting, None, None]:
    clips = source.clips(1, reading)
    try:
        for clip in clips:
            values, mask = watcher.see(clip.frames[0])
            yield Sighting(
                source.name, int(clip.index[0]), float(clip.seconds[0]), watcher.columns, values,
                watcher.objective, watcher.learning, mask,
            )  # fmt: skip
    finally:
        clips.close()


def _kept(keeper: _Keeper, source: Source, every: float) -> Generator[Sighting, None, None]:
    last, seen = time.monotonic(), False
    with keeper.table() as table:
        try:
            for found in _sightings(keeper.watcher, source, keeper.reading()):
                table.write(found.line())
                keeper.frame, seen = found.frame, True
                if time.monotonic() - last >= every:
                    keeper.save(table)
                    last = time.monotonic()
                yield found
        except (GeneratorExit, VideoError):  # between two frames: what was learned is whole
            keeper.save(table)
            raise
        keeper.save(table)
    if keeper.resume and not seen:
        raise RunError(f"{source.path}: has no frame after {keeper.frame}; begin anew with --force")


class _Keeper:
    """The folder of a watcher."""

    def __init__(self, run: Run, watcher: Watcher, source: Source, resume: bool) -> None:
        self.run, self.watcher, self.source, self.resume = run, watcher, source, resume
        self.path = run.folder / csv_name(run)
        self.length, self.frame = 0, -1
        if resume:
            tensors, rest = load_state(run.folder / "checkpoint")
            try:
                watcher.load(tensors, rest)
                self.length, self.frame = int(rest["table"]), int(rest["frame"])
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise RunError(f"{run.folder}: its checkpoint is not of ul watch") from error
        else:
            run.folder.mkdir(parents=True, exist_ok=True)
            clear_run(run.folder)

    def reading(self) -> Reading:
        """How to read on; what is live begins at any time."""
        recorded = self.source.kind == "images" or os.path.isfile(self.source.path)
        start = self.frame + self.run.reading.stride if recorded and self.frame >= 0 else 0
        return replace(self.run.reading, start=start)

    def table(self) -> Any:
        """The CSV, to which lines are added as they come; those after the checkpoint go."""
        file = open(self.path, "a", encoding="utf-8", newline="")
        file.truncate(self.length)
        if not self.resume:
            file.write(header(self.watcher.columns))
            self.save(file)  # from now on it can be resumed
        return file

    def save(self, table: Any) -> None:
        """Write the checkpoint, and the network as that of a run."""
        table.flush()
        watcher = self.watcher
        tensors, rest = watcher.state()
        rest |= {"table": os.path.getsize(self.path), "frame": self.frame}
        save_state(self.run.folder / "checkpoint", tensors, rest)
        write_tensors(self.run.folder / "model.safetensors", weights(watcher.net))
        objective = watcher.objective
        self.run.result = {
            "kind": "stream", "seed": watcher.config.seed, "trial": 0, "steps": watcher.count,
            "objective": None if np.isnan(objective) else objective, "frames": watcher.count,
            "sources": [self.source.name], "bad": {}, "camera": False,
        }  # fmt: skip
        self.run.write_config()
