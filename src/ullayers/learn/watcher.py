"""The learner behind `watch`: a memory of recent frames, and training steps on its clips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ullayers.learn.apply import describe
from ullayers.learn.checkpoint import RunError, below
from ullayers.learn.config import Config
from ullayers.learn.models import Locator, Model
from ullayers.learn.results import SURE, TRACK, code_columns
from ullayers.learn.survey import to_pixels
from ullayers.learn.trainer import Trainer, check_weights
from ullayers.learn.typed_json import AnyFloat
from ullayers.locate.live_objects import LiveObjects
from ullayers.locate.live_state import live_state, restore
from ullayers.locate.live_tracks import LiveObject
from ullayers.locate.outline import EDGE
from ullayers.nn.replay_memory import ReplayMemory
from ullayers.video.camera_motion import LiveBackdrop

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
    history: list[AnyFloat]

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
