"""The learner behind `watch`: frames in, one result for each, weights that follow."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.errors import RunError
from ullayers.learning.checkpoint import below
from ullayers.learning.config import Config
from ullayers.learning.networks import Locator, Model
from ullayers.learning.survey import to_pixels
from ullayers.learning.trials import Trainer, check_weights
from ullayers.locate.tracking.live import LiveObject, LiveObjects, live_state, restore
from ullayers.nn.replay_memory import ReplayMemory
from ullayers.run.apply import describe
from ullayers.tracks.masks import (
    EDGE,
    OUTLINES,
    PARTIAL,
    OutlineWriter,
    encoded,
    remove_partial_outlines,
)
from ullayers.tracks.table import SURE, TRACK, Answer, code_columns, header
from ullayers.video.camera.motion import LiveBackdrop
from ullayers.video.region import Box, Cut

MEMORY_FRAMES = 1024  # in half precision: 19 MB at 64 x 48 in colour
MEMORY_BYTES = 64 * 2**20  # fewer frames are stored if they are large
CLIPS_PER_STEP = 8
CLIP_FRAMES = 8
FRAMES_PER_STEP = 8  # new frames between two steps
SMALL_PIXELS = 64 * 64  # larger frames get fewer steps, to keep up with a camera
WARM_UP = 100  # frames over which the size of the object is measured
MAX_FRAMES = 10**12  # a thousand years
WINDOW = 50  # steps over which J is averaged to decide whether it still falls
Values = tuple[float, ...]
Mask = NDArray[np.uint8]
MIN_POINTS = 3  # of an outline


@dataclass(frozen=True)
class WatchResult:
    """The result for one frame.

    Attributes:
        sequence: Name of the source.
        frame: Number of the frame.
        seconds: Time of the frame.
        columns: Names of `values`: x, y, confidence, or y0, y1, ...
        values: Position and confidence, or the code.
        objective: J of the last step, lower is better; NaN before the first.
        learning: False once J has settled.
        mask: (height, width) uint8 at the size of training frames, 255 on the object; None for a
            code.
        size: (width, height) of the source's frames; None for a code.
        box: Part of the frame that the mask covers; None for all of it.
        objects: All objects, with their outlines, if several are followed; `values` and `mask` are
            then those of the main object. None otherwise.
        labels: (height, width) object number of each pixel in `box`.
        rank: Collapse meter: number of independent directions in which the output varies; NaN
            before the first step.
    """

    sequence: str
    frame: int
    seconds: float
    columns: tuple[str, ...]
    values: tuple[float, ...]
    objective: float
    learning: bool = True
    mask: NDArray[np.uint8] | None = None
    size: tuple[int, int] | None = None
    box: Box | None = None
    objects: tuple[LiveObject, ...] | None = None
    labels: NDArray[np.int32] | None = None
    rank: float = math.nan

    @property
    def answer(self) -> Answer:
        """The result as rows of a table."""
        if self.objects is not None:
            return self._rows_of(self.objects)
        return Answer(
            sequence=self.sequence,
            index=np.array([self.frame]),
            seconds=np.array([self.seconds]),
            columns=self.columns,
            values=np.array([self.values]),
            masks=None if self.mask is None else self.mask[None],
            size=self.size,
            box=self.box,
        )

    def _rows_of(self, objects: tuple[LiveObject, ...]) -> Answer:
        values = [(each.x, each.y, each.confidence) for each in objects]
        return Answer(
            sequence=self.sequence,
            index=np.full(len(objects), self.frame),
            seconds=np.full(len(objects), self.seconds),
            columns=self.columns,
            values=np.reshape(values, (-1, len(TRACK))).astype(float),
            size=self.size,
            objects=np.array([each.number for each in objects], np.int64),
        )

    def placed(self, cut: Cut) -> WatchResult:
        """Return a track in a region of interest as a track in the whole frame."""
        answer = replace(self, objects=None).answer.placed(cut)
        mask = None if answer.masks is None else answer.masks[0]
        placed = replace(self, values=tuple(answer.values[0].tolist()), mask=mask, box=answer.box)
        if self.objects is None or self.labels is None:
            return placed
        labels = self.labels * (cut.inside_at(self.labels.shape) > 0)
        return replace(
            placed, objects=tuple(_placed(each, cut) for each in self.objects), labels=labels
        )

    @property
    def header(self) -> str:
        """The first line of a CSV with these rows."""
        return header(self.answer.table_columns)

    def lines(self) -> str:
        """Return the lines of CSV: one, or one for each of several objects."""
        return self.answer.lines()


def _placed(one: LiveObject, cut: Cut) -> LiveObject:
    [[x, y]] = cut.place(np.array([[one.x, one.y]])).tolist()
    return replace(one, x=x, y=y, outline=cut.place(one.outline))


@dataclass(frozen=True, kw_only=True)
class WatcherState:
    """State of a `Watcher` in a checkpoint, besides its tensors.

    Attributes:
        count: Number of frames so far.
        learning: False once J has settled.
        backdrop: `count` and `unsteady` of the background.
        history: J of the latest steps; NaN or infinite if nothing varied.
    """

    count: int
    learning: bool
    backdrop: tuple[int, int]
    history: list[float]

    def __post_init__(self) -> None:
        for number in (self.count, *self.backdrop):
            if not 0 <= number <= MAX_FRAMES:
                raise ValueError(f"expected a number of frames, got {number}")


class Watcher:
    """Learns from frames as they arrive, and locates or encodes each of them.

    Args:
        config: Settings.
        channels: Channels of the frames.
        size: (height, width) of the training frames.
        several: Follows several objects; None to locate the main one only.

    Attributes:
        count: Number of frames so far.
        learning: False once J has settled.
        objects: Objects of the latest frame, if several are followed.

    Example:
        >>> import torch
        >>> watcher = Watcher(Config(), channels=3, size=(24, 32))
        >>> for t in range(20):  # a bright square appears and moves to the right
        ...     frame = torch.zeros(3, 24, 32, dtype=torch.uint8)
        ...     if t > 0:
        ...         frame[:, 8:12, t : t + 4] = 255
        ...     values, mask = watcher.see(frame)
        >>> abs(values[0] - (19 + 2) / 32) < 0.1
        True
    """

    def __init__(
        self,
        config: Config,
        channels: int,
        size: tuple[int, int],
        several: LiveObjects | None = None,
    ) -> None:
        self.config = replace(config.resolved(many=False), long_mean="stream")
        self.trainer = Trainer(
            self.config,
            "stream",
            channels,
            size,
            seed=self.config.seed,
            window=WINDOW,
            keep=2 * WINDOW,
        )
        memory = ReplayMemory(
            (channels, *size),
            _memory_frames(channels, size),
            clips=CLIPS_PER_STEP,
            length=CLIP_FRAMES,
            seed=self.config.seed,
        )
        self.memory = memory.to(self.config.device).half()
        self.size = size
        self.several = several
        self.objects: tuple[LiveObject, ...] = ()
        self.every = _frames_per_step(size)
        self.backdrop = LiveBackdrop()
        self.count = 0
        self.learning = True
        self.waiting: Tensor | None = None

    @property
    def net(self) -> Model:
        """The network."""
        return self.trainer.net

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the values that `see` returns."""
        return TRACK if isinstance(self.net, Locator) else code_columns(len(self.net.readout))

    @property
    def objective(self) -> float:
        """J of the last step; NaN before the first one."""
        history = self.trainer.history
        return history[-1] if history else float("nan")

    @property
    def rank(self) -> float:
        """Collapse meter: number of independent directions in which the output varies."""
        return self.net.cost.health().rank if self.trainer.history else float("nan")

    def see(self, frame: Tensor) -> tuple[Values, Mask | None]:
        """Locate or encode a frame; `catch_up` learns from it.

        Args:
            frame: (channels, height, width) uint8. If several objects are followed, it may be
                larger than the training frames.
        """
        self.catch_up()
        picture = self._shrunk(frame).to(self.config.device).float() / 255
        if isinstance(self.net, Locator):
            picture = self.backdrop.foreground(picture)
        self.count += 1
        answer = self._answer(picture[None])
        if isinstance(self.net, Locator):
            self.backdrop.update(picture, self._held(*answer))
        if self.several is not None:
            self.objects = self._see_objects(self.several, frame, *answer)
        if self.learning:
            self.waiting = picture[None]
        return answer

    def catch_up(self) -> None:
        """Learn from the latest frame, if this has not been done yet.

        This takes longer than finding the objects, so call it while no frame is waiting. Otherwise,
        `see` does it before the next frame.
        """
        if self.waiting is not None:
            picture, self.waiting = self.waiting, None
            self.learn(picture)

    def _shrunk(self, frame: Tensor) -> Tensor:
        if frame.shape[1:] == self.size:
            return frame
        planes = [
            cv2.resize(plane, self.size[::-1], interpolation=cv2.INTER_AREA)
            for plane in frame.numpy()
        ]
        return torch.from_numpy(np.stack(planes))

    def _see_objects(
        self, several: LiveObjects, frame: Tensor, values: Values, mask: Mask | None
    ) -> tuple[LiveObject, ...]:
        """Find all objects, or the main one while the camera moves."""
        pixels = to_pixels(frame[None])[0]
        if self.backdrop.unsteady and mask is not None and not several.scene.fits(pixels):
            return several.see_main(values, mask >= EDGE)
        return several.see(pixels)

    @torch.no_grad()
    def _answer(self, picture: Tensor) -> tuple[Values, Mask | None]:
        net = self.net
        if not isinstance(net, Locator):
            return tuple(net.embed(picture)[0].tolist()), None
        found = net(picture)
        if self.count <= WARM_UP:
            spread = found.spread.diagonal(dim1=1, dim2=2).mean()
            net.size.copy_((net.size**2 + (spread - net.size**2) / self.count).sqrt())
        values, masks = describe(net, found)
        return tuple(values[0].tolist()), masks[0]

    def _held(self, values: Values, mask: Mask | None) -> Tensor | None:
        """Return the pixels of an object that must stay visible if it stops; None if unsure."""
        if mask is None or values[TRACK.index("confidence")] < SURE:
            return None
        return torch.from_numpy(mask >= EDGE).to(self.config.device)

    def learn(self, picture: Tensor) -> None:
        """Store the input of the network and, every few frames, learn from stored clips."""
        self.memory.add(picture)
        if self.count % self.every or len(self.memory) < CLIPS_PER_STEP * CLIP_FRAMES:
            return
        self.trainer.step(self.memory.sample().float(), self.memory.lengths)
        check_weights(self.net)
        if self.trainer.settled():
            self.learning = False
            self.net.eval()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the complete state: tensors and JSON values."""
        self.catch_up()
        tensors = self.trainer.state()
        tensors |= {f"memory.{key}": value for key, value in self.memory.state_dict().items()}
        for name in ("behind", "last"):
            value = getattr(self.backdrop, name)
            if value is not None:
                tensors[f"backdrop.{name}"] = value
        rest = {
            "count": self.count,
            "learning": self.learning,
            "backdrop": [self.backdrop.count, self.backdrop.unsteady],
            "history": list(self.trainer.history),
        }
        if self.several is not None:
            arrays = live_state(self.several)
            tensors |= {f"objects.{key}": torch.from_numpy(each) for key, each in arrays.items()}
        return tensors, rest

    def load(self, tensors: dict[str, Tensor], state: WatcherState) -> None:
        """Continue from a `state`.

        Raises:
            RunError: The state was saved by version 0.1.
        """
        remembered = below(tensors, "memory.")
        if not remembered:
            raise RunError(
                "its checkpoint is of version 0.1, which kept no memory of frames, and cannot be "
                "resumed; ul apply can use the run, and --force starts again"
            )
        self.trainer.load(tensors, state.history)
        self.memory.load_state_dict(remembered)
        for name in ("behind", "last"):
            value = tensors.get(f"backdrop.{name}")
            setattr(self.backdrop, name, None if value is None else value.to(self.config.device))
        self.backdrop.count, self.backdrop.unsteady = state.backdrop
        if self.several is not None:
            arrays = {key: each.cpu().numpy() for key, each in below(tensors, "objects.").items()}
            restore(self.several, arrays)
        self.count = state.count
        self.learning = state.learning
        self.net.train(self.learning)


def _memory_frames(channels: int, size: tuple[int, int]) -> int:
    """Return the number of frames to store: as many as fit, and enough for a step.

    >>> _memory_frames(3, (48, 64)), _memory_frames(3, (192, 256)), _memory_frames(3, (1080, 1920))
    (1024, 227, 64)
    """
    fitting = MEMORY_BYTES // (2 * channels * size[0] * size[1])
    return max(CLIPS_PER_STEP * CLIP_FRAMES, min(MEMORY_FRAMES, fitting))


def _frames_per_step(size: tuple[int, int]) -> int:
    """Return the frames between two steps, at most those of a step, so that each can be used.

    >>> _frames_per_step((48, 64)), _frames_per_step((96, 128)), _frames_per_step((192, 256))
    (8, 24, 64)
    """
    larger = -(-size[0] * size[1] // SMALL_PIXELS)
    return min(CLIPS_PER_STEP * CLIP_FRAMES, FRAMES_PER_STEP * larger)


def keep_outlines(
    sightings: Generator[WatchResult, None, None], folder: str | os.PathLike[str]
) -> Generator[WatchResult, None, None]:
    """Yield the results of `watch`, and write their outlines to its folder.

    Each frame is written before its result is yielded, so a killed process loses no frame that its
    next checkpoint includes. Outlines of frames that are processed again are replaced.

    Args:
        sightings: Results of `watch`; the generator is closed at the end.
        folder: The folder of `watch`.
    """
    with closing(sightings), ExitStack() as stack:
        writer = None
        for sighting in sightings:
            if sighting.size is not None:  # a code has no outline
                writer = writer or stack.enter_context(LiveOutlines(Path(folder), sighting))
                writer.see(sighting)
            yield sighting


class LiveOutlines(OutlineWriter):
    """Writes the outlines of frames as they arrive.

    Args:
        folder: The folder of `watch`. Existing outlines are those before the first frame.
        first: The result for the first frame.

    Raises:
        RunError: The outlines in the folder are damaged.
    """

    def __init__(self, folder: Path, first: WatchResult) -> None:
        if not (folder / PARTIAL).exists():  # left by a killed process
            with suppress(FileNotFoundError):
                os.replace(folder / OUTLINES, folder / PARTIAL)
        super().__init__(folder, kept=[first.sequence])
        assert first.size is not None
        self._begin(first.sequence, first.frame, *first.size)

    def _begin(self, sequence: str, frame: int, width: int, height: int) -> None:
        with self._database.changing() as database:
            row = database.execute("SELECT id FROM sequences WHERE name = ?", (sequence,))
            known = row.fetchone()
            if known is not None:
                [self._sequence] = known
                database.execute("UPDATE sequences SET finished = 0 WHERE id = ?", known)
                database.execute(
                    "DELETE FROM outlines WHERE sequence = ? AND frame >= ?", (*known, frame)
                )
        self._size = width, height
        if known is None:
            self.start(sequence, width, height)

    def see(self, sighting: WatchResult) -> None:
        """Add a frame."""
        if sighting.objects is None:
            self.add(sighting.answer)
            return
        with self._database.changing() as database:
            self._insert(database, self._rows(sighting))

    def _rows(self, sighting: WatchResult) -> Iterator[tuple[int, int, bytes]]:
        for each in sighting.objects or ():
            if len(each.outline) >= MIN_POINTS:
                points = np.rint(each.outline * np.array(self._size)).astype(np.int32)
                yield sighting.frame, each.number, encoded([points])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Complete the file; it can be continued later."""
        try:
            self.finish(None)
            super().__exit__(None)
            remove_partial_outlines(self._path.parent)
        except (RunError, OSError):
            if kind is None:
                raise
