"""Have all loops compiled and kept, so that nobody waits for them later."""

import torch

from ullayers.layers import UL1d, UL2d, backward

for layer, shape in ((UL1d(2), (1, 2)), (UL2d(4), (2, 4, 32, 32))):
    for spread in (1.0, 0.0):  # channels that differ, and such that need float64
        frames = torch.randn(shape) * spread + torch.randn(shape[:1] + (1,) * (len(shape) - 1))
        backward(layer(frames.requires_grad_()))
