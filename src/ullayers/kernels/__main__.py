"""Compile all loops and keep them on disk, so that no training run waits for them."""

import logging

import torch

from ullayers.layers import UL1d, UL2d, backward

logging.getLogger("ullayers").setLevel(logging.ERROR)  # they are to be compiled now
for layer, shape in ((UL1d(2), (1, 2)), (UL2d(4), (32, 4, 32, 32))):
    backward(layer(torch.randn(shape, requires_grad=True)))
