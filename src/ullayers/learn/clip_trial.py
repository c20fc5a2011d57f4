"""Training on clips of consecutive frames, from one random start."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ullayers.learn.config import Config
from ullayers.learn.footage import Footage, LongMean, Piece
from ullayers.learn.held_out import held_out_stretches
from ullayers.learn.models import Locator
from ullayers.learn.teaching import Lesson
from ullayers.learn.trial import Check, Trial

EVALUATION_CLIPS = 16  # clips on which trials are compared
MIN_HELD_OUT_CLIPS = EVALUATION_CLIPS // 2  # fewer would differ from training clips by chance


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
