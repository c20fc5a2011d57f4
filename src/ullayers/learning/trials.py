"""Training from one random start: the optimizer, held-out frames, the cost of locating."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ullayers.errors import RunError
from ullayers.learning.checkpoint import below, pack, unpack
from ullayers.learning.config import Config, Task
from ullayers.learning.footage import Footage, LongMean, Piece
from ullayers.learning.networks import Encoder, Locator, Model
from ullayers.learning.teaching import Lesson
from ullayers.nn.networks import backward
from ullayers.video.sources import VideoError

HELD_OUT_PERIOD = 4  # of this many blocks, one is held out
MAX_BLOCK = 16  # frames
MIN_BLOCK = 2
SHORT_BLOCKS = 36  # number of blocks in short footage
MIN_FRAMES = 32  # in shorter footage, nothing is held out
MIN_OUTPUTS = 16  # of a network with more outputs than the code has numbers
CHECK_STEPS = 25  # steps between two checks on held-out frames
MIN_FALL = 0.02  # training stops if held-out J has fallen by less than this ...
PATIENCE: dict[Task, int] = {"locate": 75, "orient": 400, "features": 400}  # ... over these steps,
PATIENCE_SHARE = 1 / 3  # ... or this share of the steps so far, if it is more
WINDOW = 20  # steps over which J is averaged to decide whether it still falls
EVALUATION_CLIPS = 16  # clips on which trials are compared
MIN_HELD_OUT_CLIPS = EVALUATION_CLIPS // 2  # fewer would differ from training clips by chance


def enough_to_hold_out(lengths: Sequence[int]) -> bool:
    """Return whether there are enough frames to hold some out."""
    return sum(lengths) >= MIN_FRAMES


def held_out_frames(lengths: Sequence[int]) -> list[Tensor]:
    """Choose the frames that are held out: every fourth block.

    Blocks have up to 16 frames, fewer if the footage is short. A short sequence is a single block.

    Args:
        lengths: Number of frames of each sequence.

    Returns:
        For each sequence, (length,) whether a frame is held out.

    Example:
        >>> [frames] = held_out_frames([32])
        >>> torch.nonzero(frames)[:, 0].tolist()
        [2, 3, 10, 11, 18, 19, 26, 27]
        >>> [bool(frames.any()) for frames in held_out_frames([13] * 60)[:6]]
        [False, True, False, False, False, True]
    """
    if not enough_to_hold_out(lengths):
        return [torch.zeros(length, dtype=torch.bool) for length in lengths]
    size = min(MAX_BLOCK, max(MIN_BLOCK, sum(lengths) // SHORT_BLOCKS))
    held_out = []
    first = 0
    for length in lengths:
        count = max(1, round(length / size))
        block = first + torch.arange(length) * count // length
        held_out.append(block % HELD_OUT_PERIOD == 1)
        first += count
    return held_out


def held_out_stretches(lengths: Sequence[int], clip: int) -> list[range]:
    """Choose the held-out frames for training on whole clips.

    In a sequence of four clips or more, the middle clip is held out; of shorter sequences, every
    fourth one.

    Args:
        lengths: Number of frames of each sequence.
        clip: Number of frames of a clip.

    Returns:
        For each sequence, the numbers of the held-out frames.

    Example:
        >>> held_out_stretches([100, 30], 20)
        [range(40, 60), range(0, 0)]
        >>> held_out_stretches([30] * 5, 20)
        [range(0, 0), range(0, 30), range(0, 0), range(0, 0), range(0, 0)]
    """
    stretches = []
    short = 0
    for length in lengths:
        if length >= HELD_OUT_PERIOD * clip:
            start = (length - clip) // 2
            stretches.append(range(start, start + clip))
        else:
            is_held_out = short % HELD_OUT_PERIOD == 1 and len(lengths) >= HELD_OUT_PERIOD
            stretches.append(range(length) if is_held_out else range(0))
            short += 1
    return stretches


def held_out_correlation(codes: Sequence[Tensor], held_out: Sequence[Tensor]) -> list[float]:
    """Return the correlation of held-out frames with their neighbours in time, for each code.

    It is near 1 for a slow code of the content of the frames, and near 0 for a code of their order,
    which does not generalise to frames outside the training set.

    Args:
        codes: (frames, codes) of each sequence.
        held_out: (frames,) of each sequence, from `held_out_frames`.

    Example:
        >>> held_out = held_out_frames([200])
        >>> wave = torch.arange(200.0).div(9).sin()
        >>> noise = torch.randn(200, generator=torch.Generator().manual_seed(0))
        >>> slow, fast = held_out_correlation([torch.stack([wave, noise], 1)], held_out)
        >>> slow > 0.9, abs(fast) < 0.2
        (True, True)
    """
    joined = torch.cat(list(codes)).double()
    apart = torch.cat(list(held_out))
    # Computed separately, because a network varies less between frames it was not trained on.
    standard = torch.empty_like(joined)
    for chosen in (apart, ~apart):
        centred = joined[chosen] - joined[chosen].mean(0)
        standard[chosen] = centred / centred.square().mean(0).sqrt()
    sequence = torch.arange(len(codes)).repeat_interleave(torch.tensor([len(c) for c in codes]))
    is_pair = (sequence[1:] == sequence[:-1]) & (apart[1:] | apart[:-1])
    products = (standard[1:] * standard[:-1])[is_pair]
    return products.mean(0).nan_to_num(0.0).tolist()  # a constant code has no correlation


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


@dataclass(frozen=True)
class Check:
    """J during training.

    Attributes:
        training: J on training frames.
        held_out: J on held-out frames; None if there are none.
        taught: Loss on frames corrected by the user.
    """

    training: float
    held_out: float | None
    taught: float = 0.0

    @property
    def cost(self) -> float:
        """Cost on held-out frames; infinite if unknown."""
        total = math.inf if self.held_out is None else self.held_out + self.taught
        return total if math.isfinite(total) else math.inf


class Trial(ABC):
    """One network with one seed and one kind of long-term mean.

    Args:
        footage: From `gather`.
        config: Settings, resolved.
        kind: Reference mean for long-term variation.
        seed: Seed of the initial weights and of the clips.
        outputs: Outputs of the network of a code; None for those of the task.

    Attributes:
        checks: J after every 25 steps.
    """

    def __init__(
        self,
        footage: Footage,
        config: Config,
        kind: LongMean,
        seed: int,
        outputs: int | None = None,
    ) -> None:
        self.footage = footage
        self.config = config
        self.kind = kind
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        channels, height, width = footage.pieces[0].clip.frames.shape[1:]
        size = height, width
        self.trainer = Trainer(config, kind, channels, size, outputs, seed=seed, window=WINDOW)
        self.checks: list[Check] = []
        self._best: dict[str, Tensor] = {}

    @property
    def net(self) -> Model:
        """The network."""
        return self.trainer.net

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the network."""
        return self.trainer.optimizer

    @property
    def history(self) -> deque[float]:
        """J of every step."""
        return self.trainer.history

    @property
    @abstractmethod
    def held_out_count(self) -> int:
        """Number of held-out frames."""

    @property
    def comparable(self) -> bool:
        """Whether J on held-out frames can be compared with J on training frames."""
        return self.held_out_count > 0

    @abstractmethod
    def learn(self) -> None:
        """Learn from one batch of clips."""

    @abstractmethod
    def check(self) -> Check:
        """Return J of the current network."""

    @abstractmethod
    def score(self) -> float:
        """Return the J used to compare trials."""

    def step(self) -> None:
        """Learn from one batch of clips, and check J regularly."""
        self.learn()
        if len(self.history) % CHECK_STEPS:
            return
        self.checks.append(self.check())
        if self._best_check() == len(self.checks) - 1:
            self._best = {k: v.detach().clone() for k, v in self.net.named_parameters()}

    def _best_check(self) -> int:
        """Return the number of the check with the lowest cost; the last if none is known."""
        known = [check.cost for check in self.checks]
        best = min(known)
        return known.index(best) if math.isfinite(best) else len(self.checks) - 1

    @property
    def last_check(self) -> Check | None:
        """The check after the last step; None if there was none."""
        checked = self.checks and len(self.history) % CHECK_STEPS == 0
        return self.checks[-1] if checked else None

    def settled(self) -> bool:
        """Return whether held-out J has stopped falling, or J on training frames if requested."""
        if self.trainer.settled():
            return True
        patience = max(PATIENCE[self.config.task], PATIENCE_SHARE * len(self.history))
        recent = round(patience / CHECK_STEPS)
        if not self.held_out_count or len(self.checks) <= recent:
            return False
        known = [check.cost for check in self.checks]
        return min(known[:-recent]) - min(known[-recent:]) < MIN_FALL

    def finish(self) -> None:
        """Restore the weights with the lowest held-out J."""
        if self.held_out_count and self._best:
            with torch.no_grad():
                for name, weight in self.net.named_parameters():
                    weight.copy_(self._best[name])
        self.net.eval()

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Return network, optimizer and random state as named tensors."""
        best = {f"{prefix}best.{name}": weight for name, weight in self._best.items()}
        random = {f"{prefix}generator": self.generator.get_state()}
        return self.trainer.state(prefix) | best | random

    def load(
        self,
        tensors: Mapping[str, Tensor],
        history: list[float],
        checks: list[Check] | None,
        prefix: str,
    ) -> None:
        """Continue from a `state` and its values of J.

        Args:
            tensors: The state.
            history: J of every step.
            checks: The checks so far; None for a state of version 0.1, which has none.
            prefix: As in `state`.

        Raises:
            ValueError: The values do not belong together.
        """
        if checks is not None and len(checks) != len(history) // CHECK_STEPS:
            raise ValueError(f"expected {len(history) // CHECK_STEPS} checks, got {len(checks)}")
        self.trainer.load(tensors, history, prefix)
        self.generator.set_state(tensors[f"{prefix}generator"])
        self.checks = list(checks or [])
        self._best = below(tensors, f"{prefix}best.")
        names = {name for name, _ in self.net.named_parameters()}
        if self._best.keys() != (names if checks else set()):
            raise ValueError("expected the best weights so far")


class ClipTrial(Trial):
    """Training of a network that locates: whole clips are held out.

    Networks for codes can be trained in the same way, with nothing held out.
    """

    def __init__(self, footage: Footage, config: Config, kind: LongMean, seed: int) -> None:
        super().__init__(footage, config, kind, seed)
        self.behind = footage.backdrops() if kind == "stream" else {}
        lengths = [len(piece) for piece in footage.pieces]
        self.held_out = [range(0)] * len(lengths)
        if config.task == "locate":
            self.held_out = held_out_stretches(lengths, config.clip)
        left = [n - len(apart) for n, apart in zip(lengths, self.held_out, strict=True)]
        self.shares = torch.tensor(left, dtype=torch.float32)
        self.net.get_ready(torch.cat(self._evaluation_clips()))
        self.lesson = self._lesson()

    def _lesson(self) -> Lesson | None:
        """Return the corrected frames as input of the network; None if there are none."""
        taught = self.footage.taught
        if not taught:
            return None
        frames = torch.cat([self.read(each.piece, slice(None)) for each in taught])
        places = torch.tensor(np.stack([each.place for each in taught]), dtype=torch.float32)
        return Lesson(frames, places.to(frames.device))

    @property
    def held_out_count(self) -> int:
        """Number of frames that are held out."""
        return sum(map(len, self.held_out))

    @property
    def comparable(self) -> bool:
        """Whether enough clips are held out to compare their J with that of training clips."""
        return sum(map(bool, self.held_out)) >= MIN_HELD_OUT_CLIPS

    def draw(self, count: int, generator: torch.Generator) -> list[Tensor]:
        """Draw random clips; all training frames have equal probability."""
        numbers = torch.multinomial(self.shares, count, True, generator=generator).tolist()
        return [self._draw_from(i, generator) for i in numbers]

    def _draw_from(self, number: int, generator: torch.Generator) -> Tensor:
        piece = self.footage.pieces[number]
        apart = self.held_out[number]
        length = min(self.config.clip, len(piece))
        before = max(0, apart.start - length + 1) if apart else len(piece) - length + 1
        after = len(piece) - length + 1 - apart.stop if apart else 0
        start = int(torch.randint(before + after, (), generator=generator))
        if start >= before:
            start += apart.stop - before
        return self.read(piece, slice(start, start + length))

    def read(self, piece: Piece, rows: slice) -> Tensor:
        """Return frames as input of the network."""
        if self.net.sees == "foreground":
            clip = piece.foreground(rows, self.behind.get(piece.source))
        else:
            clip = piece.clip.frames[rows].float() / 255
        return clip.to(self.config.device)

    def _evaluation_clips(self) -> list[Tensor]:
        """Draw the clips on which all trials are compared."""
        return self.draw(EVALUATION_CLIPS, torch.Generator().manual_seed(self.config.seed))

    def _held_out_clips(self) -> list[Tensor]:
        pairs = [pair for pair in zip(self.footage.pieces, self.held_out, strict=True) if pair[1]]
        every = -(-len(pairs) // EVALUATION_CLIPS)
        return [self.read(piece, slice(rows.start, rows.stop)) for piece, rows in pairs[::every]]

    def learn(self) -> None:
        """Learn from one batch of clips."""
        clips = self.draw(self.config.batch, self.generator)
        frames = torch.cat(clips)
        # Positions may be mirrored, but a mirrored orientation is a different one.
        if self.config.task == "locate" and torch.rand((), generator=self.generator) < 0.5:
            frames = frames.flip(-1)
        lesson, net = self.lesson, self.net
        loss = None
        if lesson is not None and isinstance(net, Locator):
            loss = partial(lesson.loss, net, self.generator)
        self.trainer.step(frames, [len(clip) for clip in clips], loss=loss)

    def _objective(self, clips: list[Tensor]) -> float:
        """Return J of clips, from the statistics of these clips only."""
        judge = copy.deepcopy(self.net).eval()
        judge.cost.reset()
        judge.cost.train()
        with torch.no_grad():
            judge.learn_from(torch.cat(clips), [len(clip) for clip in clips])
        return float(judge.cost.objective)

    def _taught_loss(self) -> float:
        """Return the loss on all corrected frames; 0 if there are none."""
        if self.lesson is None or not isinstance(self.net, Locator):
            return 0.0
        with torch.no_grad():
            return float(self.lesson.loss(self.net))

    def score(self) -> float:
        """Return the evaluation J, computed on the same clips for all trials.

        These are training clips, because few clips may be held out. The loss on corrected frames is
        added.
        """
        return self._objective(self._evaluation_clips()) + self._taught_loss()

    def check(self) -> Check:
        """Return J of the current network."""
        training = self._objective(self._evaluation_clips())
        held_out = self._objective(self._held_out_clips()) if self.held_out_count else None
        return Check(training, held_out, self._taught_loss())
