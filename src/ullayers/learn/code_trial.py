"""Training of a code from one random start, checked on held-out frames."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ullayers.learn.code_clips import CodeClips, shifted
from ullayers.learn.config import Config
from ullayers.learn.folding import folded_share
from ullayers.learn.footage import Footage, LongMean
from ullayers.learn.held_out import held_out_correlation
from ullayers.learn.loops import ring_code
from ullayers.learn.models import Encoder, code_objective
from ullayers.learn.readout import (
    consecutive_parts,
    outputs_of,
    slow_directions,
    solve_readout,
)
from ullayers.learn.trainer import spare_outputs
from ullayers.learn.trial import Check, Trial

RING_STEPS = 100  # steps in which the code of a closed loop is guided by its closed form
RING_WEIGHT = 10.0  # of the squared distance from it; with a weight of 1, codes may still fold


def trained_outputs(config: Config, kind: LongMean, clips: CodeClips) -> int:
    """Return the number of outputs to train, of which the slowest combinations become the code.

    If only as many outputs as the code has numbers are trained, they may settle on faster ones,
    such as twice the angle of a long object, whose two ends look similar. With more of them, the
    network also contains the slower ones. The clips of many sequences are too short to estimate
    more, and the code of a closed loop is known (`ring_code`).
    """
    few = kind == "clip" or clips.frames_per_turn is not None
    return config.outputs if config.task == "orient" and few else spare_outputs(config)


class CodeTrial(Trial):
    """Training of an encoder: blocks of frames are held out."""

    def __init__(self, footage: Footage, config: Config, kind: LongMean, seed: int) -> None:
        self.clips = CodeClips(footage, config)
        super().__init__(footage, config, kind, seed, trained_outputs(config, kind, self.clips))
        self._training = self.clips.check_training()
        self._held_out = self.clips.check_held_out() if self.clips.checked else None

    @property
    def net(self) -> Encoder:
        """The network."""
        net = self.trainer.net
        assert isinstance(net, Encoder)
        return net

    @property
    def held_out_count(self) -> int:
        """Number of held-out frames."""
        return sum(int(apart.sum()) for apart in self.clips.held_out)

    def learn(self) -> None:
        """Learn from one batch of clips."""
        batch = self.clips.draw(self.generator)
        frames = batch.frames.float() / 255
        if self.config.task == "orient":
            frames = shifted(frames, self.generator)
        frames = frames.to(self.config.device)
        loss = None
        if self.clips.frames_per_turn is not None and self._is_guided():
            target = ring_code(batch.rows, self.clips.frames_per_turn).to(frames)
            loss = partial(self._distance_from, frames, target)
        self.trainer.step(frames, batch.lengths, batch.rows, loss)

    def _is_guided(self) -> bool:
        """Return whether the closed form of a loop guides this step.

        From random weights, a code may settle where it goes around a turn twice, or back and forth.
        """
        started = len(self.history) >= RING_STEPS
        return not started and self.config.task == "orient" and len(self.net.readout) >= 2

    def _distance_from(self, frames: Tensor, target: Tensor) -> Tensor:
        """Return the weighted mean squared distance of the first outputs from a target."""
        outputs = self.net.embed(frames)[:, : target.shape[1]]
        return RING_WEIGHT * (outputs - target).square().mean()

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

    def score(self) -> float:
        """Return the J used to compare trials: on held-out frames, if there are any."""
        check = self.check()
        return check.training if check.held_out is None else check.held_out

    def finish(self) -> None:
        """Restore the weights with the lowest held-out J, and solve the read-out."""
        super().finish()
        solve_readout(self.net, self.footage, self.config.device)

    def folded(self) -> float | None:
        """Return `folded_share` of the sequences that are closed loops; None if there are none."""
        pairs = zip(self.footage.pieces, self.clips.is_loop, strict=True)
        loops = [piece.clip.frames for piece, is_loop in pairs if is_loop]
        if not loops or self.config.task != "orient" or len(self.net.readout) < 2:
            return None  # a code of one number goes back and forth in a loop, and features may, too
        shares = [
            len(frames) * folded_share(_code(self.net, frames, self.config.device), frames)
            for frames in loops
        ]
        return sum(shares) / sum(map(len, loops))

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


def _code(net: Encoder, frames: Tensor, device: str) -> Tensor:
    """Return (time, codes) of uint8 frames, after the read-out was solved."""
    outputs = outputs_of(net, frames, device).to(net.mean)
    return ((outputs - net.mean) @ net.readout.T).detach().cpu()
