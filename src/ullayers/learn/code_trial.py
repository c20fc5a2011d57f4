"""Training of a code from one random start, checked on frames that are held out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ullayers.learn.checkpoint import below
from ullayers.learn.code_clips import CodeClips, shifted
from ullayers.learn.config import Config
from ullayers.learn.footage import Footage, LongMean
from ullayers.learn.held_out import held_out_correlation
from ullayers.learn.models import Encoder, code_objective
from ullayers.learn.readout import (
    consecutive_parts,
    outputs_of,
    slow_directions,
    solve_readout,
)
from ullayers.learn.trainer import Trainer
from ullayers.learn.typed_json import AnyFloat

CHECK_STEPS = 25  # steps between two checks on held-out frames
MIN_FALL = 0.02  # training stops if J on held-out frames has fallen by less than this ...
PATIENCE = 400  # ... over this many steps, ...
PATIENCE_SHARE = 1 / 3  # ... or this share of all steps, if it is more
WINDOW = 25  # steps over which J is averaged to see whether it still falls


@dataclass(frozen=True)
class Check:
    """J of the code during training.

    Attributes:
        training: On training frames.
        held_out: On frames that are held out; None if there are none.
    """

    training: AnyFloat
    held_out: AnyFloat | None


class CodeTrial:
    """One encoder with one seed.

    Args:
        footage: From `gather`.
        config: What to learn and how, resolved.
        kind: Reference mean for long-term variation.
        seed: Seed of the initial weights and of the clips.

    Attributes:
        checks: J after every 25 steps.
    """

    def __init__(self, footage: Footage, config: Config, kind: LongMean, seed: int) -> None:
        self.footage = footage
        self.config = config
        self.kind = kind
        self.seed = seed
        self.clips = CodeClips(footage, config)
        self.generator = torch.Generator().manual_seed(seed)
        channels, height, width = footage.pieces[0].clip.frames.shape[1:]
        self.trainer = Trainer(config, kind, channels, (height, width), seed=seed, window=WINDOW)
        self.checks: list[Check] = []
        self._best: dict[str, Tensor] = {}
        self._training = self.clips.check_training()
        self._held_out = self.clips.check_held_out() if self.clips.checked else None

    @property
    def net(self) -> Encoder:
        """The network."""
        net = self.trainer.net
        assert isinstance(net, Encoder)
        return net

    @property
    def history(self) -> deque[float]:
        """J of every step."""
        return self.trainer.history

    def step(self) -> None:
        """Learn from one batch of clips, and check J now and then."""
        batch = self.clips.draw(self.generator)
        frames = batch.frames.float() / 255
        if self.config.task == "orient":
            frames = shifted(frames, self.generator)
        self.trainer.step(frames.to(self.config.device), batch.lengths, batch.rows)
        if len(self.history) % CHECK_STEPS == 0:
            self._check()

    def _check(self) -> None:
        self.checks.append(self.check())
        if self._best_check() == len(self.checks) - 1:
            self._best = {k: v.detach().clone() for k, v in self.net.named_parameters()}

    def _best_check(self) -> int:
        """Return the number of the check with the lowest J on held-out frames; the last if none."""
        known = [_or_infinity(check.held_out) for check in self.checks]
        best = min(known)
        return known.index(best) if math.isfinite(best) else len(self.checks) - 1

    def check(self) -> Check:
        """Return J of the code."""
        net = self.net
        batch = self._training
        training = outputs_of(net, batch.frames, self.config.device)
        slow = torch.eye(net.full.out_features)
        if len(net.readout) < len(slow):
            clips = training.split(batch.lengths), batch.rows.split(batch.lengths)
            parts = consecutive_parts(*clips, by_clip=net.by_clip)
            slow = slow_directions(parts, len(net.readout)).float()
        objective = code_objective(net, training @ slow.T, batch.lengths, batch.rows)
        if self._held_out is None:
            return Check(objective, None)
        batch = self._held_out
        held_out = outputs_of(net, batch.frames, self.config.device) @ slow.T
        return Check(objective, code_objective(net, held_out, batch.lengths, batch.rows))

    @property
    def last_check(self) -> Check | None:
        """The check after the last step; None if there was none."""
        checked = self.checks and len(self.history) % CHECK_STEPS == 0
        return self.checks[-1] if checked else None

    def score(self) -> float:
        """Return the J by which trials are compared: on held-out frames, if there are any."""
        check = self.check()
        return check.training if check.held_out is None else check.held_out

    def settled(self) -> bool:
        """Whether J on held-out frames has stopped falling, or J on training frames if asked."""
        if self.trainer.settled():
            return True
        recent = round(max(PATIENCE, PATIENCE_SHARE * len(self.history)) / CHECK_STEPS)
        if not self.clips.checked or len(self.checks) <= recent:
            return False
        known = [_or_infinity(check.held_out) for check in self.checks]
        return min(known[:-recent]) - min(known[-recent:]) < MIN_FALL

    def finish(self) -> None:
        """Return to the weights with the lowest J on held-out frames, and solve the read-out."""
        if self._best:
            with torch.no_grad():
                for name, weight in self.net.named_parameters():
                    weight.copy_(self._best[name])
        self.net.eval()
        solve_readout(self.net, self.footage, self.config.device)

    def correlation(self) -> list[float] | None:
        """Return `held_out_correlation` of the code; None if nothing is held out."""
        if not self.clips.checked:
            return None
        net = self.net
        outputs = [
            outputs_of(net, piece.clip.frames, self.config.device) for piece in self.footage.pieces
        ]
        learned = [torch.nonzero(~apart)[:, 0] for apart in self.clips.held_out]
        known = [(y[rows], rows) for y, rows in zip(outputs, learned, strict=True) if len(rows)]
        parts = consecutive_parts(*zip(*known, strict=True), by_clip=net.by_clip)
        slow = slow_directions(parts, len(net.readout))
        codes = [y.double() @ slow.T for y in outputs]
        if net.by_clip:
            codes = [code - code.mean(0) for code in codes]
        return held_out_correlation(codes, self.clips.held_out)

    def state(self, prefix: str) -> dict[str, Tensor]:
        """Return network, optimizer and random numbers as named tensors."""
        best = {f"{prefix}best.{name}": weight for name, weight in self._best.items()}
        random = {f"{prefix}generator": self.generator.get_state()}
        return self.trainer.state(prefix) | best | random

    def load(
        self,
        tensors: Mapping[str, Tensor],
        history: list[float],
        checks: list[Check],
        prefix: str,
    ) -> None:
        """Continue from a `state` and the J that belong to it.

        Raises:
            ValueError: They do not belong together.
        """
        if len(checks) != len(history) // CHECK_STEPS:
            raise ValueError(f"expected {len(history) // CHECK_STEPS} checks, got {len(checks)}")
        self.trainer.load(tensors, history, prefix)
        self.generator.set_state(tensors[f"{prefix}generator"])
        self.checks = list(checks)
        self._best = below(tensors, f"{prefix}best.")
        names = {name for name, _ in self.net.named_parameters()}
        if self._best.keys() != (names if checks else set()):
            raise ValueError("expected the best weights so far")


def _or_infinity(objective: float | None) -> float:
    """Return a J to compare; one that is unknown or not finite is the worst."""
    return objective if objective is not None and math.isfinite(objective) else math.inf
