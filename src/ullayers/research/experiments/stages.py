"""A plain network with UL layers after any of its layers, trained end to end or layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ullayers.nn.layers import UL1d, UL2d, mu_by_depth


class Stages(nn.Module):
    """Convolutional and linear layers with ReLUs between them and UL layers after some of them.

    Args:
        layers: `nn.Conv2d` and `nn.Linear`; maps are flattened before the first linear layer.
        weights: Weight of the UL layer after each layer, by the layer's index; others have none.
        isolated: Stop gradients between layers, so that each learns from its own UL layer only.
        ul_options: More arguments of the UL layers, such as `statistics` and `long_term`.

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
        **ul_options: Any,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.ul_layers = nn.ModuleList(
            _ul_layer(layer, weights[i], ul_options) if i in weights else nn.Identity()
            for i, layer in enumerate(layers)
        )
        self.isolated = isolated
        mu_by_depth(self)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the output of every layer, before its ReLU."""
        outputs: list[Tensor] = []
        for layer, ul_layer in zip(self.layers, self.ul_layers, strict=True):
            if outputs:
                below = outputs[-1].detach() if self.isolated else outputs[-1]
                x = F.relu(below)
            if isinstance(layer, nn.Linear):
                x = x.flatten(1)
            outputs.append(ul_layer(layer(x)))
        return outputs

    def freeze(self, layers: Collection[int]) -> None:
        """Exclude layers from training."""
        for i in layers:
            self.layers[i].requires_grad_(False)


def _ul_layer(layer: nn.Conv2d | nn.Linear, weight: float, options: dict[str, Any]) -> nn.Module:
    if isinstance(layer, nn.Conv2d):
        return UL2d(layer.out_channels, weight=weight, **options)
    return UL1d(layer.out_features, weight=weight, **options)


def seeded(seed: int) -> torch.Generator:
    """Seed torch's global generator and return another one with the same seed, to draw clips."""
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)
