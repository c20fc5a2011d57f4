"""A network with its optimizer: training step, state, and stopping criterion."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ullayers.learn.checkpoint import RunError, pack, unpack
from ullayers.learn.config import Config
from ullayers.learn.footage import LongMean
from ullayers.learn.models import Encoder, Locator, Model
from ullayers.learn.shares import average_gradients
from ullayers.nn.layers import backward
from ullayers.video.reader import VideoError

MIN_OUTPUTS = 16  # of a network with more outputs than the code has numbers


def build(
    config: Config,
    kind: LongMean,
    channels: int,
    size: tuple[int, int],
    outputs: int | None = None,
) -> Model:
    """Build the network of a task.

    Args:
        config: Settings.
        kind: Reference mean for long-term variation.
        channels: Channels of the frames.
        size: (height, width) of the frames.
        outputs: Outputs of the network of a code; None for those of the task.

    Raises:
        VideoError: More outputs are requested than a frame has values.
    """
    long_term: Any = "shared" if kind == "stream" else "clip"
    rates = {"mu": config.mu, "eps": config.eps, "long_term": long_term}
    local = config.local or 0.0
    if config.task == "locate":
        return Locator(channels, local=local, **rates)
    inputs = channels * size[0] * size[1]
    if config.outputs > inputs:
        raise VideoError(f"--outputs {config.outputs}: a frame has {inputs} values; ask for fewer")
    if outputs is None:
        outputs = config.outputs if config.task == "orient" else spare_outputs(config)
    return Encoder(size, channels, outputs=outputs, codes=config.outputs, local=local, **rates)


def spare_outputs(config: Config) -> int:
    """Return a number of outputs larger than the code, which is the slowest part of them."""
    return max(MIN_OUTPUTS, 2 * config.outputs)


def make_optimizer(net: Model, config: Config) -> torch.optim.Optimizer:
    """Return AdamW, or SGD as in the paper."""
    assert config.lr is not None, "expected a resolved configuration"
    if config.optimizer == "adamw":
        return torch.optim.AdamW(net.parameters(), config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        net.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay
    )


def check_weights(net: Model) -> None:
    """Raise RunError if a weight is NaN or infinite."""
    if not all(bool(weight.isfinite().all()) for weight in net.parameters()):
        raise RunError("training diverged: weights are NaN or infinite; try a smaller --lr")


class Trainer:
    """A network, its optimizer and the values of J so far.

    Args:
        config: Settings, resolved.
        kind: Reference mean for long-term variation.
        channels: Channels of the frames.
        size: (height, width) of the frames.
        outputs: As in `build`.
        seed: Seed of the initial weights.
        window: Steps over which J is averaged to decide whether it still falls.
        keep: Number of latest values of J to keep; None for all.

    Attributes:
        net: The network.
        optimizer: Its optimizer.
        history: J of each step.
    """

    def __init__(
        self,
        config: Config,
        kind: LongMean,
        channels: int,
        size: tuple[int, int],
        outputs: int | None = None,
        *,
        seed: int,
        window: int,
        keep: int | None = None,
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = build(config, kind, channels, size, outputs)
        self.net = net.to(config.device)
        self.optimizer = make_optimizer(self.net, config)
        self.history: deque[float] = deque(maxlen=keep)
        self.tolerance = config.tolerance
        self.window = window

    def step(
        self,
        frames: Tensor,
        lengths: Sequence[int],
        rows: Tensor | None = None,
        loss: Callable[[], Tensor] | None = None,
    ) -> None:
        """Learn from a batch of clips.

        Args:
            frames: Frames of all clips, one after the other.
            lengths: Length of each clip.
            rows: (frames,) number of each frame in its sequence, if frames are left out; for a code
                only.
            loss: Returns a loss to add to J.

        Raises:
            RunError: Training diverged.
        """
        self.optimizer.zero_grad()
        if loss is not None:
            loss().backward()
        more = () if rows is None else (rows,)
        try:
            backward(self.net.learn_from(frames, list(lengths), *more))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise RunError(
                "training diverged: outputs cannot be whitened; try a smaller --lr"
            ) from error
        average_gradients(self.net)
        self.optimizer.step()
        self.history.append(float(self.net.cost.objective))

    def settled(self) -> bool:
        """Return whether J has fallen by less than the tolerance from one window to the next."""
        if not self.tolerance or len(self.history) < 2 * self.window:
            return False
        recent = list(self.history)[-2 * self.window :]
        fallen = sum(recent[: self.window]) - sum(recent[self.window :])
        return fallen / self.window < self.tolerance

    def state(self, prefix: str = "") -> dict[str, Tensor]:
        """Return the network and the optimizer as named tensors; `history` is not included."""
        return pack(prefix, self.net, self.optimizer)

    def load(
        self, tensors: Mapping[str, Tensor], history: Sequence[float], prefix: str = ""
    ) -> None:
        """Continue from a `state` and the history that belongs to it."""
        unpack(prefix, tensors, self.net, self.optimizer)
        self.history.clear()
        self.history.extend(map(float, history))
