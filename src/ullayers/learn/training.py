"""Learning from footage: restarts and kinds of long-term mean in a race, then the winner goes on.

One loop serves everyone: Python users iterate it, the command shows it. What it has done so far can
be saved at any step and continued, to the same weights bit for bit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ullayers.learn.checkpoint import RunError, pack, unpack
from ullayers.learn.config import Config
from ullayers.learn.footage import Footage, LongMean, Piece
from ullayers.learn.models import Encoder, Locator, Model
from ullayers.nn.layers import backward
from ullayers.video.reader import VideoError

WINDOW = 20  # steps over which J is averaged to see whether it still falls
JUDGED = 16  # clips that finished trials are compared on
STILL = 4.5 / 255  # what changes by less than this from frame to frame is noise of the codec
PUMPING = 24 / 255  # a key frame may differ by this much from those before it, but only once
SOON = 8  # frames in which a thing that moves does so more than once
BLOCK = 64  # frames that go through a network at once when nothing is learned


@dataclass(frozen=True)
class Record:
    """One step of learning.

    Attributes:
        trial: number of the trial: a kind of long-term mean and a seed.
        step: steps this trial has made.
        kind: of long-term mean.
        seed: of the trial.
        objective: J, lower is better.
        rank: the collapse meter: in how many independent directions the output is rich.
        features: how many there could be.
        seconds: since learning began.
    """

    trial: int
    step: int
    kind: LongMean
    seed: int
    objective: float
    rank: float
    features: int
    seconds: float


def build(config: Config, kind: LongMean, channels: int, size: tuple[int, int]) -> Model:
    """The network of a task."""
    long_term: Any = "shared" if kind == "stream" else "clip"
    rates = {"mu": config.mu, "eps": config.eps, "long_term": long_term}
    local = config.local or 0.0
    if config.task == "locate":
        return Locator(channels, local=local, **rates)
    inputs = channels * size[0] * size[1]
    if config.outputs > inputs:
        raise VideoError(f"--outputs {config.outputs}: a frame has {inputs} numbers; ask for fewer")
    outputs = config.outputs if config.task == "orient" else max(16, 2 * config.outputs)
    return Encoder(size, channels, outputs=outputs, codes=config.outputs, local=local, **rates)


def make_optimizer(net: Model, config: Config) -> torch.optim.Optimizer:
    """AdamW, or SGD as in the paper."""
    assert config.lr is not None, "the configuration is resolved"
    if config.optimizer == "adamw":
        return torch.optim.AdamW(net.parameters(), config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        net.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay
    )


def check_weights(net: Model) -> None:
    """Refuse weights that are not numbers."""
    if not all(bool(weight.isfinite().all()) for weight in net.parameters()):
        raise RunError("learning went astray, its weights are no numbers; try a smaller --lr")


class Trial:
    """One start of a network with one kind of long-term mean."""

    def __init__(self, footage: Footage, config: Config, kind: LongMean, seed: int) -> None:
        self.footage, self.config, self.kind, self.seed = footage, config, kind, seed
        self.behind = footage.backdrops() if kind == "stream" else {}
        self.shares = torch.tensor([float(len(piece)) for piece in footage.pieces])
        self.generator = torch.Generator().manual_seed(seed)
        self.history: list[float] = []
        channels, *size = footage.pieces[0].clip.frames.shape[1:]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = build(config, kind, channels, (size[0], size[1])).to(config.device)
        self.net.get_ready(torch.cat(self.draw(JUDGED, self._fixed())))
        self.optimizer = make_optimizer(self.net, config)

    def _fixed(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.config.seed)  # the same clips for all trials

    def draw(self, count: int, generator: torch.Generator) -> list[Tensor]:
        """Random clips, each from anywhere in the footage with the same probability."""
        clips = []
        for i in torch.multinomial(self.shares, count, True, generator=generator).tolist():
            piece = self.footage.pieces[i]
            length = min(self.config.clip, len(piece))
            start = int(torch.randint(len(piece) - length + 1, (), generator=generator))
            rows = slice(start, start + length)
            if self.net.sees == "foreground":
                clip = piece.foreground(rows, self.behind.get(piece.source))
            else:
                clip = piece.clip.frames[rows].float() / 255
            clips.append(clip.to(self.config.device))
        return clips

    def step(self) -> None:
        """Learn from one batch of clips."""
        clips = self.draw(self.config.batch, self.generator)
        frames = torch.cat(clips)
        # A thing may be anywhere, but a mirrored heading is another one.
        if self.config.task == "locate" and torch.rand((), generator=self.generator) < 0.5:
            frames = frames.flip(-1)
        self.optimizer.zero_grad()
        try:
            backward(self.net.learn_from(frames, [len(clip) for clip in clips]))
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise VideoError("learning went astray; try a smaller --lr") from error
        self.optimizer.step()
        self.history.append(float(self.net.cost.objective))

    def score(self) -> float:
        """J on clips that are the same for all trials, with statistics of these alone."""
        judge = copy.deepcopy(self.net).eval()
        judge.cost.reset()
        judge.cost.train()
        clips = self.draw(JUDGED, self._fixed())
        with torch.no_grad():
            judge.learn_from(torch.cat(clips), [len(clip) for clip in clips])
        return float(judge.cost.objective)

    def settled(self) -> bool:
        """Whether J has stopped falling."""
        last, before = self.history[-WINDOW:], self.history[-2 * WINDOW : -WINDOW]
        if len(before) < WINDOW or not self.config.tolerance:
            return False
        return (sum(before) - sum(last)) / WINDOW < self.config.tolerance


class Learner:
    """The race of trials, and the winner's way to the end.

    Args:
        footage: from `gather`.
        config: what to learn and how.

    Attributes:
        trials: what has been started.
        scores: J of the trials that were judged.

    Raises:
        VideoError: there is nothing to learn from.

    Example:
        >>> import tempfile
        >>> from ullayers.learn.footage import gather
        >>> from ullayers.video.scene import write_scene
        >>> from ullayers.video.reader import Reading, find_sources
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
        self.config = config.resolved(many=len({p.source for p in footage.pieces}) > 1)
        kinds: list[LongMean] = ["clip", "stream"]
        if self.config.long_mean is not None:
            kinds = [self.config.long_mean]
        seeds = range(self.config.seed, self.config.seed + self.config.restarts)
        self.plan = [(kind, seed) for seed in seeds for kind in kinds]
        self.trials: list[Trial] = []
        self.scores: list[float] = []
        self.began = time.perf_counter()

    @property
    def total(self) -> int:
        """Steps of all trials together, if none stops early."""
        assert self.config.steps is not None
        race = min(self.config.trial_steps, self.config.steps)
        return len(self.plan) * race + self.config.steps - race

    @property
    def winner(self) -> int:
        """The trial with the lowest J; one whose J is not a number never wins."""
        ranking = [(not score < 1e30, score, i) for i, score in enumerate(self.scores)]
        return min(ranking)[2]

    @property
    def best(self) -> Trial:
        """The trial that won."""
        return self.trials[self.winner]

    def start(self) -> None:
        """Make the next network; the first shows whether the options go with the footage."""
        self.trials.append(Trial(self.footage, self.config, *self.plan[len(self.trials)]))

    def __iter__(self) -> Iterator[Record]:
        assert self.config.steps is not None
        race = min(self.config.trial_steps, self.config.steps)
        while len(self.scores) < len(self.plan):
            if len(self.trials) == len(self.scores):
                self.start()
            number, trial = len(self.trials) - 1, self.trials[-1]
            while len(trial.history) < race:
                trial.step()
                yield self._record(number)
            self.scores.append(trial.score())
        while len(self.best.history) < self.config.steps and not self.best.settled():
            self.best.step()
            yield self._record(self.winner)
        self._finish()

    def _record(self, number: int) -> Record:
        trial = self.trials[number]
        health = trial.net.cost.health()
        return Record(
            number, len(trial.history), trial.kind, trial.seed, health.objective, health.rank,
            health.features, round(time.perf_counter() - self.began, 3),
        )  # fmt: skip

    def _finish(self) -> None:
        """Solve the last layer of a code in closed form."""
        net = self.best.net.eval()
        if isinstance(net, Encoder):
            solve_readout(net, self.footage, self.config.device)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to go on: tensors, and what fits into JSON."""
        tensors: dict[str, Tensor] = {}
        for i, trial in enumerate(self.trials):
            tensors |= pack(f"{i}.", trial.net, trial.optimizer)
            tensors[f"{i}.generator"] = trial.generator.get_state()
        histories = [trial.history for trial in self.trials]
        return tensors, {"scores": self.scores, "histories": histories}

    def load(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> Self:
        """Go on from a `state`."""
        self.scores = list(rest["scores"])
        self.trials = []
        for i, history in enumerate(rest["histories"]):
            trial = Trial(self.footage, self.config, *self.plan[i])
            trial.history = list(history)
            unpack(f"{i}.", tensors, trial.net, trial.optimizer)
            trial.generator.set_state(tensors[f"{i}.generator"])
            self.trials.append(trial)
        return self


def solve_readout(net: Encoder, footage: Footage, device: str) -> None:
    """The closed-form last layer: slowest first, uncorrelated, of unit variance."""
    # Here, as scikit-learn takes a second to load and only codes need it.
    from ullayers.exact.slow_features import RankError, SlowFeatures

    with torch.no_grad():
        outputs = [
            torch.cat([net((part.float() / 255).to(device)) for part in p.clip.frames.split(BLOCK)])
            for p in footage.pieces
        ]
    # Around each sequence's own mean, or the slowest feature would be which sequence it is.
    middle = torch.cat(outputs).double().mean(0).cpu()
    rows = [(y - y.mean(0) if net.by_clip else y).double().cpu().numpy() for y in outputs]
    codes = len(net.readout)
    try:
        slow = SlowFeatures(codes).fit(rows)
    except RankError as error:
        raise VideoError(
            f"fewer than {codes} features vary in this footage: ask for less"
        ) from error
    spread = torch.cat(outputs).double().cpu() - middle
    components = torch.from_numpy(slow.components_)
    scale = (spread @ components.T).square().mean(0).sqrt()
    net.mean.copy_(middle)
    net.readout.copy_(components / scale[:, None])


def _check(footage: Footage, config: Config) -> None:
    names = ", ".join(footage.names[:3]) + (", ..." if len(footage.names) > 3 else "")
    if not footage.pieces:
        raise VideoError(
            f"{names}: {footage.seen} frames in all, and no sequence of at "
            "least 3; learning needs frames that follow each other"
        )
    frames = sum(map(len, footage.pieces))
    if config.task != "locate" and config.outputs > frames:
        raise VideoError(f"--outputs {config.outputs}: there are {frames} frames; ask for fewer")
    if not any(map(_moves, footage.pieces)):
        raise VideoError(
            f"{names}: nothing moves, so nothing can be learned; if it is slow, try more --stride"
        )


def _moves(piece: Piece) -> bool:
    """Whether more happens than that a still picture is encoded anew."""
    seen = piece.foreground()
    if float(seen.abs().max()) > PUMPING:
        return True
    changed = seen.diff(dim=0).abs().flatten(1).amax(1) > STILL
    window = min(SOON, len(changed))
    return bool((changed.float().unfold(0, window, 1).sum(1) > 1).any())
