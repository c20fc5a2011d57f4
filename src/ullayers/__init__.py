"""Unsupervised learning layers for video and other sequences.

`UL1d` and `UL2d` watch a network's output over time and push it to be slow within moments and
rich over the long run. `closed_form` and `SlowFeatures` solve the same objective exactly, for
states of a Markov chain and for linear functions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullayers.exact.markov import DisconnectedError as DisconnectedError
    from ullayers.exact.markov import Spectrum as Spectrum
    from ullayers.exact.markov import closed_form as closed_form
    from ullayers.exact.markov import objective as objective
    from ullayers.exact.markov import transitions as transitions
    from ullayers.exact.slow_features import RankError as RankError
    from ullayers.exact.slow_features import SlowFeatures as SlowFeatures
    from ullayers.learn.online import watch as watch
    from ullayers.nn.health import Health as Health
    from ullayers.nn.health import effective_rank as effective_rank
    from ullayers.nn.layers import UL1d as UL1d
    from ullayers.nn.layers import UL2d as UL2d
    from ullayers.nn.layers import backward as backward
    from ullayers.nn.layers import mu_by_depth as mu_by_depth
    from ullayers.nn.layers import sequences as sequences
    from ullayers.nn.layers import ul_layers as ul_layers
    from ullayers.nn.replay_memory import ReplayMemory as ReplayMemory
    from ullayers.nn.spatial import mask_moments as mask_moments
    from ullayers.nn.whiten import Whiten as Whiten

__version__ = "0.1.0"
__all__ = [
    "DisconnectedError", "Health", "RankError", "ReplayMemory", "SlowFeatures", "Spectrum", "UL1d",
    "UL2d", "Whiten", "backward", "closed_form", "effective_rank", "mask_moments", "mu_by_depth",
    "objective", "sequences", "transitions", "ul_layers", "watch",
]  # fmt: skip

# Loaded by those who use them: the layers need torch alone and must drop into any project, and
# `ul --help` needs not even that.
_HOMES = {
    "exact.slow_features": ["RankError", "SlowFeatures"],
    "nn.health": ["Health", "effective_rank"],
    "learn.online": ["watch"],
    "nn.layers": ["UL1d", "UL2d", "backward", "mu_by_depth", "sequences", "ul_layers"],
    "nn.replay_memory": ["ReplayMemory"],
    "nn.spatial": ["mask_moments"],
    "exact.markov": ["DisconnectedError", "Spectrum", "closed_form", "objective", "transitions"],
    "nn.whiten": ["Whiten"],
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ullayers' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"ullayers.{_LAZY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
