"""Unsupervised learning layers for video and other sequences.

`learn` finds the moving object in a video and returns a `Run` with its tracks; `watch` does so
while frames arrive. `UL1d` and `UL2d` observe a network's output over time and train it to change
slowly within moments and to vary over the long term. `closed_form` and `SlowFeatures` solve the
same objective exactly, for states of a Markov chain and for linear functions.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.1.0"

# Imported on first use: the layers need only torch, and `ul --help` not even that. Type checkers
# cannot read this table, so the imports below repeat it; a test compares the two.
_MODULES = {
    "ullayers.exact.markov": "DisconnectedError Spectrum closed_form objective transitions",
    "ullayers.exact.slow_features": "RankError SlowFeatures",
    "ullayers.errors": "Error",
    "ullayers.run.learn": "Run learn load_run",
    "ullayers.run.watch": "watch",
    "ullayers.run.network": "from_pretrained",
    "ullayers.nn": "functional",
    "ullayers.nn.layers": "UL1d UL2d",
    "ullayers.nn.networks": "backward loss mu_by_depth sequences ul_layers",
    "ullayers.nn.replay_memory": "ReplayMemory",
    "ullayers.nn.spatial": "mask_moments",
    "ullayers.nn.statistics": "Health effective_rank",
    "ullayers.nn.whiten": "Whiten",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)

if _TYPE_CHECKING:
    from ullayers.errors import Error as Error
    from ullayers.exact.markov import DisconnectedError as DisconnectedError
    from ullayers.exact.markov import Spectrum as Spectrum
    from ullayers.exact.markov import closed_form as closed_form
    from ullayers.exact.markov import objective as objective
    from ullayers.exact.markov import transitions as transitions
    from ullayers.exact.slow_features import RankError as RankError
    from ullayers.exact.slow_features import SlowFeatures as SlowFeatures
    from ullayers.nn import functional as functional
    from ullayers.nn.layers import UL1d as UL1d
    from ullayers.nn.layers import UL2d as UL2d
    from ullayers.nn.networks import backward as backward
    from ullayers.nn.networks import loss as loss
    from ullayers.nn.networks import mu_by_depth as mu_by_depth
    from ullayers.nn.networks import sequences as sequences
    from ullayers.nn.networks import ul_layers as ul_layers
    from ullayers.nn.replay_memory import ReplayMemory as ReplayMemory
    from ullayers.nn.spatial import mask_moments as mask_moments
    from ullayers.nn.statistics import Health as Health
    from ullayers.nn.statistics import effective_rank as effective_rank
    from ullayers.nn.whiten import Whiten as Whiten
    from ullayers.run.learn import Run as Run
    from ullayers.run.learn import learn as learn
    from ullayers.run.learn import load_run as load_run
    from ullayers.run.network import from_pretrained as from_pretrained
    from ullayers.run.watch import watch as watch


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ullayers' has no attribute {name!r}")
    value = getattr(_import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
