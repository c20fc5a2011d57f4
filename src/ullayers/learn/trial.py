"""Training from one random start, checked on held-out frames."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ullayers.learn.checkpoint import below
from ullayers.learn.config import Config, Task
from ullayers.learn.footage import Footage, LongMean
from ullayers.learn.models import Model
from ullayers.learn.trainer import Trainer
from ullayers.learn.typed_json import AnyFloat

CHECK_STEPS = 25  # steps between two checks on held-out frames
MIN_FALL = 0.02  # training stops if held-out J has fallen by less than this ...
PATIENCE: dict[Task, int] = {"locate": 75, "orient": 400, "features": 400}  # ... over these steps,
PATIENCE_SHARE = 1 / 3  # ... or this share of the steps so far, if it is more
WINDOW = 20  # steps over which J is averaged to decide whether it still falls


@dataclass(frozen=True)
class Check:
    """J during training.

    Attributes:
        training: J on training frames.
        held_out: J on held-out frames; None if there are none.
        taught: Loss on frames corrected by the user.
    """

    training: AnyFloat
    held_out: AnyFloat | None
    taught: AnyFloat = 0.0

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
