"""A plain network whose layers can each be followed by a UL layer, end to end or on their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ullayers.nn.layers import UL1d, UL2d, mu_by_depth


class Stages(nn.Module):
    """Convolutional and linear layers with a ReLU between them, and UL layers after some.

    Args:
        layers: `nn.Conv2d` and `nn.Linear`; maps are flattened in front of the first linear one.
        weights: of the UL layer after each layer, by its number; a layer not named has none.
        isolated: no gradient passes from a layer to the one below, so that each learns from the
            UL layer behind it alone.
        choices: more arguments of the UL layers, such as `statistics` and `long_term`.

    Example:
        >>> net = Stages([nn.Conv2d(1, 4, 3), nn.Linear(144, 2)], {1: 1.0}, long_term="shared")
        >>> maps, code = net(torch.rand(5, 1, 8, 8))
        >>> maps.shape, code.shape
        (torch.Size([5, 4, 6, 6]), torch.Size([5, 2]))
    """

    def __init__(
        self,
        layers: Sequence[nn.Conv2d | nn.Linear],
        weights: dict[int, float],
        *,
        isolated: bool = False,
        **choices: Any,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.costs = nn.ModuleList(
            _cost(layer, weights[i], choices) if i in weights else nn.Identity()
            for i, layer in enumerate(layers)
        )
        self.isolated = isolated
        mu_by_depth(self)

    def forward(self, x: Tensor) -> list[Tensor]:
        """What every layer puts out, before its ReLU."""
        outputs: list[Tensor] = []
        for layer, cost in zip(self.layers, self.costs, strict=True):
            if outputs:
                below = outputs[-1].detach() if self.isolated else outputs[-1]
                x = F.relu(below)
            if isinstance(layer, nn.Linear):
                x = x.flatten(1)
            outputs.append(cost(layer(x)))
        return outputs

    def freeze(self, layers: Collection[int]) -> None:
        """Keep some layers as they are."""
        for i in layers:
            self.layers[i].requires_grad_(False)


def _cost(layer: nn.Conv2d | nn.Linear, weight: float, choices: dict[str, Any]) -> nn.Module:
    if isinstance(layer, nn.Conv2d):
        return UL2d(layer.out_channels, weight=weight, **choices)
    return UL1d(layer.out_features, weight=weight, **choices)


def seeded(seed: int) -> torch.Generator:
    """The generator that draws clips; it also seeds the weights made from now on."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)
