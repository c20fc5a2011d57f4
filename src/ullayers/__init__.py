"""Unsupervised learning layers for video and other sequences.

`UL1d` and `UL2d` watch a network's output over time and push it to be slow within moments and
rich over the long run. `closed_form` and `SlowFeatures` solve the same objective exactly, for
states of a Markov chain and for linear functions.
"""

from typing import TYPE_CHECKING, Any

from ullayers.health import Health as Health
from ullayers.health import effective_rank as effective_rank
from ullayers.layers import UL1d as UL1d
from ullayers.layers import UL2d as UL2d
from ullayers.layers import backward as backward
from ullayers.layers import mu_by_depth as mu_by_depth
from ullayers.layers import sequences as sequences
from ullayers.layers import ul_layers as ul_layers
from ullayers.spatial import mask_moments as mask_moments
from ullayers.whiten import Whiten as Whiten
