"""The training loop: trials compete for some steps, then the winner trains to the end.

Python users iterate over a `Learner`; the command shows its progress. Its state can be saved after
any step; training then resumes with bit-identical weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch import Tensor

from ullayers.learning.codes import CodeTrial
from ullayers.learning.config import Config
from ullayers.learning.footage import Footage, LongMean
from ullayers.learning.trials import Check, ClipTrial, Trial, enough_to_hold_out
from ullayers.video.camera.motion import shows_motion
from ullayers.video.sources import VideoError


@dataclass(frozen=True)
class Record:
    """One training step.

    Attributes:
        trial: Number of the trial.
        step: Steps of this trial so far.
        kind: Reference mean for long-term variation.
        seed: Seed of the trial.
        objective: J; lower is better.
        rank: Collapse meter: number of independent directions in which the output varies.
        features: Largest possible rank.
        seconds: Time since training started.
        training: J on training frames, after every 25th step; None after other steps.
        held_out: The same on held-out frames.
    """

    trial: int
    step: int
    kind: LongMean
    seed: int
    objective: float
    rank: float
    features: int
    seconds: float
    training: float | None = None
    held_out: float | None = None


@dataclass(frozen=True, kw_only=True)
class LearnerState:
    """State of a `Learner` in a checkpoint, besides its tensors.

    Attributes:
        scores: Evaluation J of the trials that have been compared.
        histories: J of each step of each trial; NaN or infinite if nothing varied.
        checks: J of each check of each trial; None in checkpoints of version 0.1.
    """

    scores: list[float]
    histories: list[list[float]]
    checks: list[list[Check]] | None = None


class Learner:
    """Competing trials, and training of the winner to the end.

    Args:
        footage: From `gather`.
        config: Settings.

    Attributes:
        plan: Kind of long-term mean and seed of each trial.
        trials: Trials that have started.
        scores: Evaluation J of the trials that have been compared.

    Raises:
        VideoError: There is nothing to learn from.

    Example:
        >>> import tempfile
        >>> from ullayers.learning.footage import gather
        >>> from ullayers.video.demo_films import write_scene
        >>> from ullayers.video.sources import Reading, find_sources
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     video = write_scene(folder, frames=60)
        ...     footage = gather(find_sources([str(video)]), Reading(longest=32))
        >>> learner = Learner(footage, Config(trial_steps=2, steps=3, restarts=1))
        >>> [(record.kind, record.step) for record in learner]
        [('clip', 1), ('clip', 2), ('stream', 1), ('stream', 2), ('...', 3)]
        >>> len(learner.scores)
        2
    """

    def __init__(self, footage: Footage, config: Config) -> None:
        _check(footage, config)
        self.footage = footage
        self.config = config.resolved(
            many=len({piece.source for piece in footage.pieces}) > 1,
            checked=enough_to_hold_out([len(piece) for piece in footage.pieces]),
        )
        kinds: list[LongMean] = ["clip", "stream"]
        if self.config.long_mean is not None:
            kinds = [self.config.long_mean]
        seeds = range(self.config.seed, self.config.seed + self.config.restarts)
        self.plan = [(kind, seed) for seed in seeds for kind in kinds]
        self.trials: list[Trial] = []
        self.scores: list[float] = []
        self.began = time.perf_counter()

    @property
    def steps(self) -> int:
        """Largest number of steps of the winner."""
        assert self.config.steps is not None, "expected a resolved configuration"
        return self.config.steps

    @property
    def trial_steps(self) -> int:
        """Steps after which trials are compared."""
        assert self.config.trial_steps is not None, "expected a resolved configuration"
        return min(self.config.trial_steps, self.steps)

    @property
    def done(self) -> int:
        """Steps of all trials so far."""
        return sum(len(trial.history) for trial in self.trials)

    @property
    def total(self) -> int:
        """Steps of all trials, completed and remaining; fewer once the winner has settled."""
        if self._finished():
            return self.done
        return len(self.plan) * self.trial_steps + self.steps - self.trial_steps

    def _finished(self) -> bool:
        """Return whether no step is left."""
        if len(self.scores) < len(self.plan):
            return False
        return len(self.best.history) >= self.steps or self.best.settled()

    @property
    def winner(self) -> int:
        """Number of the trial with the lowest J; a J of NaN never wins."""
        ranking = [(not score < 1e30, score, i) for i, score in enumerate(self.scores)]
        return min(ranking)[2]

    @property
    def best(self) -> Trial:
        """The trial that won."""
        return self.trials[self.winner]

    def start(self) -> None:
        """Start the next trial; the first one checks the options against the footage."""
        self.trials.append(self.new_trial(len(self.trials)))

    def new_trial(self, number: int) -> Trial:
        """Return a trial of the plan before its first step."""
        made = ClipTrial if self.config.task == "locate" else CodeTrial
        return made(self.footage, self.config, *self.plan[number])

    def __iter__(self) -> Iterator[Record]:
        while len(self.scores) < len(self.plan):
            if len(self.trials) == len(self.scores):
                self.start()
            trial = self.trials[-1]
            while len(trial.history) < self.trial_steps:
                trial.step()
                yield self._record(len(self.trials) - 1)
            self.scores.append(trial.score())
        while not self._finished():
            self.best.step()
            yield self._record(self.winner)
        self.best.finish()

    def _record(self, number: int) -> Record:
        trial = self.trials[number]
        health = trial.net.cost.health()
        check = trial.last_check
        return Record(
            trial=number,
            step=len(trial.history),
            kind=trial.kind,
            seed=trial.seed,
            objective=health.objective,
            rank=health.rank,
            features=health.features,
            seconds=round(time.perf_counter() - self.began, 3),
            training=None if check is None else check.training,
            held_out=None if check is None else check.held_out,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the complete state: tensors and JSON values."""
        tensors: dict[str, Tensor] = {}
        for i, trial in enumerate(self.trials):
            tensors |= trial.state(f"{i}.")
        rest = {
            "scores": self.scores,
            "histories": [list(trial.history) for trial in self.trials],
            "checks": [[asdict(check) for check in trial.checks] for trial in self.trials],
        }
        return tensors, rest

    def load(self, tensors: dict[str, Tensor], state: LearnerState) -> Self:
        """Continue from a `state`.

        Raises:
            ValueError: The state cannot be that of a run with these settings.
        """
        self._check_progress(state)
        self.scores = list(state.scores)
        self.trials = []
        for i, history in enumerate(state.histories):
            trial = self.new_trial(i)
            checks = None if state.checks is None else state.checks[i]
            trial.load(tensors, history, checks, f"{i}.")
            self.trials.append(trial)
        return self

    def _check_progress(self, state: LearnerState) -> None:
        """Refuse a number of trials or steps that is impossible with this plan."""
        compared = len(state.scores)
        started = len(state.histories)
        if not compared <= started <= min(compared + 1, len(self.plan)):
            raise ValueError(f"expected scores of all trials but the last, got {compared}")
        for i, history in enumerate(state.histories):
            fewest = self.trial_steps if i < compared else 1
            most = self.steps if i < compared else self.trial_steps
            if not fewest <= len(history) <= most:
                raise ValueError(f"expected {fewest} to {most} steps, got {len(history)}")


def _check(footage: Footage, config: Config) -> None:
    """Refuse footage from which nothing can be learned."""
    names = ", ".join(footage.names[:3]) + (", ..." if len(footage.names) > 3 else "")
    if not footage.pieces:
        noun = "frame" if footage.seen == 1 else "frames"
        raise VideoError(
            f"{names}: {footage.seen} {noun} in all, and no sequence of at least 3; learning needs "
            "consecutive frames"
        )
    frames = sum(map(len, footage.pieces))
    if config.task != "locate" and config.outputs > frames:
        raise VideoError(f"--outputs {config.outputs}: there are {frames} frames; ask for fewer")
    if not any(shows_motion(piece.foreground()) for piece in footage.pieces):
        raise VideoError(
            f"{names}: nothing moves, so nothing can be learned; for slow motion, try a longer "
            "part of the video, or a larger --stride"
        )
