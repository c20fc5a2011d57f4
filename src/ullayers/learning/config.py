"""Options of `ul learn` and `ul.learn`: defaults, ranges and descriptions.

The `ul` command builds its options from these fields, so this module must not import torch. The
arguments of `ul.learn` repeat them for type checkers; a test compares the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from ullayers.errors import Error

Task = Literal["locate", "orient", "features"]
LongMean = Literal["clip", "stream"]
Optimizer = Literal["adamw", "sgd"]
PathText = str | os.PathLike[str]
ZoneMap = Mapping[str, Sequence[tuple[float, float]]]  # corners of each zone, in pixels

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
    """Description and range of one field of `Config` or `Options`.

    Attributes:
        help: Description, for documentation and `--help`.
        group: Heading in `--help`; None for settings that only Python users can change.
        if_none: Description of the default, if it is None.
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
    group: str | None = ""
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
            group="training",
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
            group="training",
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
            group=None,
        ),
    )
    restarts: int = field(
        default=2,
        metadata=_about(
            "Number of random seeds to try; the one with the lowest J is kept.",
            metavar="N",
            at_least=1,
            at_most=MAX_COUNT,
            group="training",
        ),
    )
    long_mean: LongMean | None = field(
        default=None,
        metadata=_about(
            "Reference mean for long-term variation: the mean of each clip, or of the whole "
            "stream.",
            if_none="locate tries both and keeps the one with the lower J; otherwise clip for "
            "several inputs, stream for one",
            group="training",
        ),
    )
    batch: int = field(
        default=4,
        metadata=_about("Clips per step.", metavar="N", at_least=1, at_most=MAX_COUNT, group=None),
    )
    clip: int = field(
        default=32,
        metadata=_about("Frames per clip.", metavar="N", at_least=3, at_most=MAX_COUNT, group=None),
    )
    mu: float = field(
        default=0.5,
        metadata=_about(
            "Short-term rate: weight of the newest frame in the short-term mean. Smaller values "
            "average over more frames. 0 < eps <= mu < 1.",
            group="training",
        ),
    )
    eps: float = field(
        default=1e-3,
        metadata=_about(
            "Long-term rate: like --mu, but for long-term statistics. 0 < eps <= mu < 1.",
            group="training",
        ),
    )
    local: float | None = field(
        default=None,
        metadata=_about(
            "Weight of UL layers after hidden layers.", if_none="0: there are none", group=None
        ),
    )
    optimizer: Optimizer = field(
        default="adamw",
        metadata=_about("Optimizer. sgd is the optimizer of the paper.", group="training"),
    )
    lr: float | None = field(
        default=None,
        metadata=_about(
            "Learning rate. Use a smaller one if training diverges.",
            if_none=f"{ADAMW_LR['locate']:g} for locate, {ADAMW_LR['orient']:g} otherwise; "
            f"{SGD_LR:g} with sgd",
            above=0,
            below=1e6,
            group="training",
        ),
    )
    momentum: float = field(
        default=0.9,
        metadata=_about("Momentum of SGD.", at_least=0, below=1, group="training"),
    )
    weight_decay: float = field(
        default=0.01,
        metadata=_about("Weight decay of the optimizer.", at_least=0, below=1e30, group="training"),
    )
    tolerance: float = field(
        default=0.0,
        metadata=_about(
            "Stop early when J has improved by less than this over the last steps; 0 disables it.",
            at_least=0,
            below=1e30,
            group="training",
        ),
    )
    seed: int = field(
        default=0,
        metadata=_about(
            "Seed of all random numbers.", metavar="N", at_least=0, below=2**62, group="general"
        ),
    )
    device: str = field(
        default="auto",
        metadata=_about(
            "Device that torch computes on, such as cpu or cuda:1; auto is cuda if there is one, "
            "cpu otherwise.",
            group="general",
        ),
    )

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            _check(name, getattr(self, name))
        if not 0 < self.eps <= self.mu < 1:
            raise Error(f"expected 0 < eps <= mu < 1, got eps={self.eps} and mu={self.mu}")

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


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `ul learn` reads, measures and writes; with `Config`, all its options.

    None means that the task or the footage determines the value.

    Example:
        >>> Options(start=90, grey=True).stride is None
        True
        >>> Options(stride=0)
        Traceback (most recent call last):
        ullayers.errors.Error: expected stride of at least 1, got 0
    """

    out: PathText = field(default="run", metadata=_about("Folder to write to.", metavar="RUN"))
    corrections: PathText | None = field(
        default=None,
        metadata=_about(
            "Train again on the inputs of RUN with its settings, and with the positions corrected "
            "by the user (corrections.json in RUN). RUN is not changed.",
            metavar="RUN",
        ),
    )
    masks: bool = field(
        default=False,
        metadata=_about(
            "Also write a PNG file with the mask of each frame: black and white or, with several "
            "objects, a palette image whose pixel values are object numbers."
        ),
    )
    skip_bad: bool = field(
        default=False,
        metadata=_about("Skip unreadable inputs and list them, instead of stopping."),
    )
    size: int | tuple[int, int] | None = field(
        default=None,
        metadata=_about(
            "Frame size for training: the longer side, or height x width such as 48x64.",
            group="reading",
            if_none=f"{DEFAULT_SIZE}",
            metavar="N|HxW",
            at_least=8,
            at_most=8192,
        ),
    )
    stride: int | None = field(
        default=None,
        metadata=_about(
            "Train on every Nth frame; the table always has all frames.",
            group="reading",
            if_none="about six frames per second of each input, or all frames of a short one",
            metavar="N",
            at_least=1,
            at_most=MAX_COUNT,
        ),
    )
    max_frames: int | None = field(
        default=None,
        metadata=_about(
            "Use only the first N frames of each input, from --start on, including those that "
            "--stride skips.",
            group="reading",
            if_none="all",
            metavar="N",
            at_least=1,
            at_most=MAX_COUNT,
        ),
    )
    start: float = field(
        default=0.0,
        metadata=_about(
            "Use frames from this time on: seconds, MM:SS or HH:MM:SS, such as 90, 1:30 or "
            "0:01:30.5. Tables keep the frame numbers and times of the whole video.",
            group="reading",
            if_none="the beginning",
            metavar="TIME",
            at_least=0,
            below=1e9,
        ),
    )
    end: float | None = field(
        default=None,
        metadata=_about(
            "Use frames before this time only.",
            group="reading",
            if_none="the end",
            metavar="TIME",
            at_least=0,
            below=1e9,
        ),
    )
    roi: PathText | tuple[int, int, int, int] | None = field(
        default=None,
        metadata=_about(
            "Region of interest: ignore everything outside it. A rectangle in pixels of the "
            "video, such as 100,50,640,480 (640 x 480 pixels, 100 from the left and 50 from the "
            "top), or a mask image, white inside and black outside. Positions and masks refer to "
            "the whole frame.",
            group="reading",
            if_none="the whole frame",
            metavar="X,Y,W,H|FILE",
        ),
    )
    grey: bool = field(
        default=False, metadata=_about("Read frames without colour.", group="reading")
    )
    follow: bool | None = field(
        default=None,
        metadata=_about(
            "For orient and features: crop frames to a square around the moving object. Frames "
            "are then read at --size 128.",
            group="reading",
            if_none="for orient, if the object covers less than half of the frame",
        ),
    )
    zones: PathText | ZoneMap | None = field(
        default=None,
        metadata=_about(
            "Measure the time of each object in named polygons and write zones.csv. A JSON file "
            'such as {"zones": {"nest": [[10, 10], [90, 10], [50, 80]]}}, corners in pixels of '
            'the video, or in 0..1 of the frame with "units": "frame".',
            group="measuring",
            metavar="FILE",
        ),
    )
    mm_per_pixel: float | None = field(
        default=None,
        metadata=_about(
            "Size of a pixel of the video in millimetres, for distances and speeds in mm.",
            group="measuring",
            metavar="F",
            above=0,
            below=1e9,
        ),
    )
    quiet: bool = field(
        default=False, metadata=_about("Show no progress and no summary.", group="general")
    )
    force: bool = field(
        default=False, metadata=_about("Replace earlier results in --out.", group="general")
    )
    resume: bool = field(
        default=False,
        metadata=_about(
            "Continue the run in --out with its own inputs and options. For a finished run, only "
            "missing files are written, and new --zones or --mm-per-pixel are applied.",
            group="general",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("stride", "max_frames", "start", "end", "mm_per_pixel"):
            _check(name, getattr(self, name))
        for side in self.size if isinstance(self.size, tuple) else (self.size,):
            if side is not None and (problem := setting("size").problem(side)):
                raise Error(f"expected sides {problem}, got {self.size}")
        if self.end is not None and self.end <= self.start:
            raise Error(f"--end {self.end:g} is not after --start {self.start:g}")


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


OPTIONS = {each.name: each for each in (*fields(Config), *fields(Options))}  # of `ul.learn`


def setting(name: str) -> Setting:
    """Return the description and range of an option.

    >>> setting("momentum").help
    'Momentum of SGD.'
    """
    found: Setting = OPTIONS[name].metadata["setting"]
    return found


def option_name(name: str) -> str:
    """Return the option of the command for a setting.

    >>> option_name("max_frames")
    '--max-frames'
    """
    return "--" + name.replace("_", "-")


def default_of(name: str) -> Any:
    """Return the default of an option."""
    return OPTIONS[name].default


@cache
def kind_of(name: str) -> tuple[type, tuple[str, ...]]:
    """Return the type of an option, without None, and its choices if it has any.

    Options of several types count as str.

    >>> kind_of("steps"), kind_of("optimizer"), kind_of("grey")
    ((<class 'int'>, ()), (<class 'str'>, ('adamw', 'sgd')), (<class 'bool'>, ()))
    """
    owner = Config if name in Config.__dataclass_fields__ else Options
    hint = get_type_hints(owner)[name]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    values = kinds if isinstance(kinds[0], str) else get_args(kinds[0])
    choices = tuple(value for value in values if isinstance(value, str))
    return (str, choices) if choices or len(kinds) > 1 else (kinds[0], ())


def _check(name: str, value: Any) -> None:
    """Raise Error unless `value` has the type and range of an option."""
    if value is None and default_of(name) is None:
        return
    kind, choices = kind_of(name)
    if choices and value not in choices:
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise Error(f"expected {name} {listed}, got {value!r}")
    expected: dict[type, type] = {int: Integral, float: Real, str: str}
    if not isinstance(value, expected[kind]) or isinstance(value, bool):
        raise Error(f"expected {name} of type {kind.__name__}, got {value!r}")
    problem = "" if kind is str else setting(name).problem(value)  # type: ignore[arg-type]
    if problem:
        raise Error(f"expected {name} {problem}, got {value}")
