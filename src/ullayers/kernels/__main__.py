"""Have all loops compiled and kept, so that nobody waits for them later."""

import torch

from ullayers.layers import UL1d, UL2d, backward

for make, shape in ((UL1d, (1, 2)), (UL2d, (3, 4, 64, 64))):
    frames = torch.randn(shape)
    for part in (frames, frames[:, :1].expand(shape)):  # channels alike need float64
        layer = make(shape[1])
        for _ in range(2):  # the second goes on with the streams
            backward(layer(part.clone().requires_grad_()))
