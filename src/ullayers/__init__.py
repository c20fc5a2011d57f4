"""Unsupervised learning layers for video and other sequences.

`UL1d` and `UL2d` watch a network's output over time and push it to be slow within moments and
rich over the long run. `closed_form` and `SlowFeatures` solve the same objective exactly, for
states of a Markov chain and for linear functions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullayers.estimator import RankError as RankError
    from ullayers.estimator import SlowFeatures as SlowFeatures
    from ullayers.health import Health as Health
    from ullayers.health import effective_rank as effective_rank
    from ullayers.layers import UL1d as UL1d
    from ullayers.layers import UL2d as UL2d
    from ullayers.layers import backward as backward
    from ullayers.layers import mu_by_depth as mu_by_depth
    from ullayers.layers import sequences as sequences
    from ullayers.layers import ul_layers as ul_layers
    from ullayers.online import watch as watch
    from ullayers.replay_memory import ReplayMemory as ReplayMemory
    from ullayers.spatial import mask_moments as mask_moments
    from ullayers.spectral import DisconnectedError as DisconnectedError
    from ullayers.spectral import Spectrum as Spectrum
    from ullayers.spectral import closed_form as closed_form
    from ullayers.spectral import objective as objective
    from ullayers.spectral import transitions as transitions
    from ullayers.whiten import Whiten as Whiten

__version__ = "0.1.0"
__all__ = [
    "DisconnectedError", "Health", "RankError", "ReplayMemory", "SlowFeatures", "Spectrum", "UL1d",
    "UL2d", "Whiten", "backward", "closed_form", "effective_rank", "mask_moments", "mu_by_depth",
    "objective", "sequences", "transitions", "ul_layers", "watch",
]  # fmt: skip

# Loaded by those who use them: the layers need torch alone and must drop into any project, and
# `ul --help` needs not even that.
_HOMES = {
    "estimator": ["RankError", "SlowFeatures"],
    "health": ["Health", "effective_rank"],
    "online": ["watch"],
    "layers": ["UL1d", "UL2d", "backward", "mu_by_depth", "sequences", "ul_layers"],
    "replay_memory": ["ReplayMemory"],
    "spatial": ["mask_moments"],
    "spectral": ["DisconnectedError", "Spectrum", "closed_form", "objective", "transitions"],
    "whiten": ["Whiten"],
}
_LAZY = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ullayers' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"ullayers.{_LAZY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
