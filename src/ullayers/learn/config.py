"""What to learn and how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from ullayers.errors import UserError
from ullayers.learn.footage import LongMean


@dataclass(frozen=True, kw_only=True)
class Config:
    """What to learn and how. `None` means: chosen from the footage or the task.

    Attributes:
        task: "locate" for masks and places of what moves, "orient" for a code of what a frame
            shows, "features" for the slowest features of a frame.
        outputs: numbers in the code; "locate" has x and y.
        steps: optimizer steps of the winner.
        trial_steps: steps after which trials are compared.
        restarts: seeds that are tried.
        long_mean: what "rich over the long run" is measured from: the mean of each clip, or of the
            whole stream. "locate" tries both and keeps the one with the lower J. Codes use "clip"
            for many sequences (else they would tell which one it is) and "stream" for one.
        batch: clips of a step.
        clip: frames of a clip.
        mu: short-term rate.
        eps: long-term rate.
        local: weight of UL layers after hidden layers.
        optimizer: "adamw" or "sgd".
        lr: learning rate.
        momentum: of SGD.
        weight_decay: of either.
        tolerance: stop when J has fallen by less than this over 20 steps; 0 goes on to `steps`.
        seed: of everything that is random.
        device: "cpu", "cuda", ...

    Example:
        >>> Config(task="orient").resolved(many=True).long_mean
        'clip'
    """

    task: Literal["locate", "orient", "features"] = "locate"
    outputs: int = 2
    steps: int | None = None
    trial_steps: int = 20
    restarts: int = 2
    long_mean: LongMean | None = None
    batch: int = 4
    clip: int = 32
    mu: float = 0.5
    eps: float = 1e-3
    local: float | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float | None = None
    momentum: float = 0.9
    weight_decay: float = 0.01
    tolerance: float = 0.0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.task not in ("locate", "orient", "features"):
            raise UserError(f"expected task locate, orient or features, got {self.task!r}")
        for name in ("outputs", "steps", "trial_steps", "restarts", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"expected {name} of at least 1, got {value}")
        if self.clip < 3:
            raise UserError(f"expected clips of at least 3 frames, got {self.clip}")
        if self.lr is not None and not 0 < self.lr < 1e6:
            raise UserError(f"expected a learning rate lr between 0 and 1e6, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise UserError(f"expected 0 <= momentum < 1, got {self.momentum}")
        for name in ("weight_decay", "tolerance"):
            if not 0 <= getattr(self, name) < 1e30:
                raise UserError(f"expected {name} of at least 0, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**62:
            raise UserError(f"expected a seed of at least 0, got {self.seed}")
        if not 0 < self.eps <= self.mu < 1:
            raise UserError(f"expected 0 < eps <= mu < 1, got eps={self.eps} and mu={self.mu}")

    def resolved(self, *, many: bool) -> Config:
        """With everything that depends on the task and on whether there are many sequences."""
        locate = self.task == "locate"
        rates = {"adamw": 3e-3 if locate else 1e-3, "sgd": 1e-5}  # the paper's for SGD on video
        defaults: dict[str, Any] = {
            "steps": 120 if locate else 300,
            "long_mean": None if locate else "clip" if many else "stream",
            "local": 0.0,
            "lr": rates[self.optimizer],
        }
        chosen = {key: value for key, value in defaults.items() if getattr(self, key) is None}
        return replace(self, outputs=2 if locate else self.outputs, **chosen)
