"""Settings of a training run: defaults, ranges and descriptions.

The `ul` command builds its options from these fields, so this module must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_type_hints

from ullayers.errors import UserError

Task = Literal["locate", "orient", "features"]
LongMean = Literal["clip", "stream"]
Optimizer = Literal["adamw", "sgd"]

MAX_OBJECTS = 64
MAX_COUNT = 10**9
DEFAULT_SIZE = 64  # pixels of the longer side of training frames
STEPS: dict[Task, int] = {"locate": 240, "orient": 2000, "features": 2000}
UNCHECKED_STEPS: dict[Task, int] = {
    "locate": 120,
    "orient": 300,
    "features": 300,
}  # if nothing is held out
TRIAL_STEPS: dict[Task, int] = {"locate": 20, "orient": 100, "features": 100}
ADAMW_LR: dict[Task, float] = {"locate": 3e-3, "orient": 1e-3, "features": 1e-3}
SGD_LR = 1e-5  # the value of the paper, for SGD on video


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Description and range of one field of `Config`.

    Attributes:
        help: Description, for documentation and `--help`.
        if_none: Meaning of a default of None.
        metavar: Placeholder of the value in `--help`.
        at_least: Smallest value.
        above: Bound that the value must exceed.
        at_most: Largest value.
        below: Bound that the value must stay under.

    Example:
        >>> Setting(help="Momentum.", at_least=0, below=1).problem(1.5)
        'below 1'
    """

    help: str
    if_none: str = ""
    metavar: str | None = None
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def problem(self, value: float) -> str:
        """Return the bound that `value` violates, or an empty string. NaN violates any bound."""
        if self.at_least is not None and not value >= self.at_least:
            return f"of at least {_short(self.at_least)}"
        if self.above is not None and not value > self.above:
            return f"above {_short(self.above)}"
        if self.at_most is not None and not value <= self.at_most:
            return f"of at most {_short(self.at_most)}"
        if self.below is not None and not value < self.below:
            return f"below {_short(self.below)}"
        return ""


def _short(value: float) -> str:
    return f"{value:g}".replace("e+0", "e").replace("e+", "e")


def _about(help: str, **details: Any) -> dict[str, Setting]:
    return {"setting": Setting(help=help, **details)}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a training run. None means that the task or the footage determines the value.

    Each field has its description and range as a `Setting`; see `setting`.

    Example:
        >>> Config(task="orient").resolved(many=True).long_mean
        'clip'
        >>> setting("momentum").help
        'Momentum of SGD.'
    """

    task: Task = field(
        default="locate",
        metadata=_about(
            "What to learn. locate: position and mask of the moving object; orient: a code for the "
            "way it faces; features: the slowest features of the whole frame."
        ),
    )
    outputs: int = field(
        default=2,
        metadata=_about(
            "Length of the code; not for locate, which gives x and y.",
            metavar="D",
            at_least=1,
            at_most=MAX_COUNT,
        ),
    )
    objects: int | None = field(
        default=None,
        metadata=_about(
            "Number of objects to track (locate only); auto finds it. Several objects need a "
            "camera that stays in one place.",
            if_none="auto",
            metavar="N|auto",
            at_least=1,
            at_most=MAX_OBJECTS,
        ),
    )
    steps: int | None = field(
        default=None,
        metadata=_about(
            "Maximum number of training steps for the best trial. Training stops earlier if J on "
            "held-out frames no longer falls.",
            if_none=f"{STEPS['locate']} for locate, {STEPS['orient']} otherwise",
            metavar="N",
            at_least=1,
            at_most=MAX_COUNT,
        ),
    )
    trial_steps: int | None = field(
        default=None,
        metadata=_about(
            "Training steps of each trial before the best one is chosen.",
            if_none=f"{TRIAL_STEPS['locate']} for locate, {TRIAL_STEPS['orient']} otherwise",
            metavar="N",
            at_least=1,
            at_most=MAX_COUNT,
        ),
    )
    restarts: int = field(
        default=2,
        metadata=_about(
            "Number of random seeds to try; the one with the lowest J is kept.",
            metavar="N",
            at_least=1,
            at_most=MAX_COUNT,
        ),
    )
    long_mean: LongMean | None = field(
        default=None,
        metadata=_about(
            "Reference mean for long-term variation: the mean of each clip, or of the whole "
            "stream.",
            if_none="locate tries both and keeps the one with the lower J; otherwise clip for "
            "several inputs, stream for one",
        ),
    )
    batch: int = field(
        default=4,
        metadata=_about("Clips per step.", metavar="N", at_least=1, at_most=MAX_COUNT),
    )
    clip: int = field(
        default=32,
        metadata=_about("Frames per clip.", metavar="N", at_least=3, at_most=MAX_COUNT),
    )
    mu: float = field(
        default=0.5,
        metadata=_about(
            "Short-term rate: weight of the newest frame in the short-term mean. Smaller values "
            "average over more frames. 0 < eps <= mu < 1."
        ),
    )
    eps: float = field(
        default=1e-3,
        metadata=_about(
            "Long-term rate: like --mu, but for long-term statistics. 0 < eps <= mu < 1."
        ),
    )
    local: float | None = field(
        default=None,
        metadata=_about("Weight of UL layers after hidden layers.", if_none="0: there are none"),
    )
    optimizer: Optimizer = field(
        default="adamw",
        metadata=_about("Optimizer. sgd is the optimizer of the paper."),
    )
    lr: float | None = field(
        default=None,
        metadata=_about(
            "Learning rate. Use a smaller one if training diverges.",
            if_none=f"{ADAMW_LR['locate']:g} for locate, {ADAMW_LR['orient']:g} otherwise; "
            f"{SGD_LR:g} with sgd",
            above=0,
            below=1e6,
        ),
    )
    momentum: float = field(
        default=0.9,
        metadata=_about("Momentum of SGD.", at_least=0, below=1),
    )
    weight_decay: float = field(
        default=0.01,
        metadata=_about("Weight decay of the optimizer.", at_least=0, below=1e30),
    )
    tolerance: float = field(
        default=0.0,
        metadata=_about(
            "Stop early when J has improved by less than this over the last steps; 0 disables it.",
            at_least=0,
            below=1e30,
        ),
    )
    seed: int = field(
        default=0,
        metadata=_about("Seed of all random numbers.", metavar="N", at_least=0, below=2**62),
    )
    device: str = field(
        default="auto",
        metadata=_about(
            "Device that torch computes on, such as cpu or cuda:1; auto is cuda if there is one, "
            "cpu otherwise."
        ),
    )

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            _check(name, getattr(self, name))
        if not 0 < self.eps <= self.mu < 1:
            raise UserError(f"expected 0 < eps <= mu < 1, got eps={self.eps} and mu={self.mu}")

    def resolved(self, *, many: bool, checked: bool = True) -> Config:
        """Return a copy with all values that depend on the task and footage filled in.

        Args:
            many: Whether there is more than one sequence.
            checked: Whether there are enough frames to hold some out.
        """
        steps = STEPS[self.task] if checked else UNCHECKED_STEPS[self.task]
        defaults: dict[str, Any] = {
            "steps": steps,
            "trial_steps": TRIAL_STEPS[self.task],
            "long_mean": self._default_long_mean(many),
            "local": 0.0,
            "lr": ADAMW_LR[self.task] if self.optimizer == "adamw" else SGD_LR,
        }
        device = choose_device(self.device)
        chosen = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        outputs = 2 if self.task == "locate" else self.outputs
        return replace(self, outputs=outputs, device=device, **chosen)

    def _default_long_mean(self, many: bool) -> LongMean | None:
        if self.task == "locate":
            return None  # trials of both kinds compete
        # With several sequences, "stream" would code which sequence a frame belongs to.
        return "clip" if many else "stream"


def choose_device(name: str) -> str:
    """Return the device of a name: "auto" is cuda if available, otherwise cpu.

    Apple's mps is never chosen, because it has no float64.

    >>> choose_device("cpu")
    'cpu'
    """
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def setting(name: str) -> Setting:
    """Return the description and range of a field of `Config`."""
    found: Setting = Config.__dataclass_fields__[name].metadata["setting"]
    return found


def default_of(name: str) -> Any:
    """Return the default of a field of `Config`."""
    return Config.__dataclass_fields__[name].default


@cache
def kind_of(name: str) -> tuple[type, tuple[str, ...]]:
    """Return the type of a field of `Config` (int, float or str), and its choices if it has any.

    >>> kind_of("steps"), kind_of("optimizer")
    ((<class 'int'>, ()), (<class 'str'>, ('adamw', 'sgd')))
    """
    hint = get_type_hints(Config)[name]
    options = [option for option in get_args(hint) if option is not type(None)]
    if not options:
        return hint, ()
    if isinstance(options[0], str):
        return str, tuple(options)
    inner = options[0]
    if choices := get_args(inner):
        return str, choices
    return inner, ()


def _check(name: str, value: Any) -> None:
    """Raise UserError unless `value` has the type and range of a field."""
    if value is None and default_of(name) is None:
        return
    kind, choices = kind_of(name)
    if choices and value not in choices:
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise UserError(f"expected {name} {listed}, got {value!r}")
    expected: dict[type, type] = {int: Integral, float: Real, str: str}
    if not isinstance(value, expected[kind]) or isinstance(value, bool):
        raise UserError(f"expected {name} of type {kind.__name__}, got {value!r}")
    problem = "" if kind is str else setting(name).problem(value)  # type: ignore[arg-type]
    if problem:
        raise UserError(f"expected {name} {problem}, got {value}")
