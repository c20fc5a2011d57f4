"""Moving averages over the frames of one call, as matrix products, and their transposes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

BLOCK_FRAMES = 32  # longer inputs are filtered in blocks of this many frames
LONGEST_SINGLE = 64  # up to this many frames one triangular matrix is cheaper


@dataclass(frozen=True)
class Filter:
    """m_t = sum_s a^(t-s) x_s / sum_s a^(t-s) over s <= t: Eq. 6 without earlier frames.

    Time is cut into K blocks of n frames. Inside a block the average is a triangular product; the
    contribution of earlier blocks is carried from block to block.
    """

    steps: int
    local: Tensor  # (K, n, n)
    gain: Tensor  # (K, n, 1), factor of the carry
    tail: Tensor  # (1, n), weights of a block's own frames in the carry it passes on
    chain: Tensor  # (K, K), strictly triangular: carry into each block from earlier ones

    def __call__(self, x: Tensor) -> Tensor:
        """Return the averages of (T, K) values after each step."""
        if len(self.local) == 1:
            return self.local[0] @ x
        blocks = self._blocks(x)
        averages = torch.bmm(self.local, blocks)
        carry = self.chain @ (self.tail @ blocks).squeeze(1)
        averages.addcmul_(self.gain, carry[:, None])
        return averages.flatten(0, 1)[: self.steps]

    def transposed(self, g: Tensor) -> Tensor:
        """Return the gradient with respect to the values, given that of the averages."""
        if len(self.local) == 1:
            return self.local[0].T @ g
        blocks = self._blocks(g)
        values = torch.bmm(self.local.mT, blocks)
        carry = self.chain.T @ (self.gain.mT @ blocks).squeeze(1)
        values.addcmul_(self.tail.mT, carry[:, None])
        return values.flatten(0, 1)[: self.steps]

    def _blocks(self, x: Tensor) -> Tensor:
        count, n, _ = self.local.shape
        missing = count * n - self.steps
        if missing:
            x = torch.cat([x, x.new_zeros(missing, x.shape[1])])
        return x.view(count, n, -1)


def moving_average(steps: int, rate: float, like: Tensor) -> Filter:
    """Return the filter for `steps` frames, in the dtype and on the device of `like`."""
    return _build(steps, rate, like.dtype, like.device)


def deviation_matrix(steps: int, mu: float, eps: float | None, like: Tensor) -> Tensor:
    """Return (2 T, T): D of every frame, then E, as a product with the frames of a stream.

    Args:
        steps: Number of frames T.
        mu: Rate of the short-term mean.
        eps: Rate of the long-term mean; None if frames are relative to it already.
        like: Tensor with the dtype and device of the result.
    """
    return _build_deviations(steps, mu, eps, like.dtype, like.device)


@lru_cache(maxsize=64)
def _build_deviations(
    steps: int, mu: float, eps: float | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    short = _single(steps, mu, device)
    within = torch.eye(steps, dtype=torch.float64, device=device) - short
    between = short if eps is None else short - _single(steps, eps, device)
    within[0] = 0.0  # a first frame is its own short-term mean, up to rounding
    if eps is not None:
        between[0] = 0.0
    return torch.cat([within, between]).to(dtype)


def _single(steps: int, rate: float, device: torch.device) -> Tensor:
    """Return a moving average as one (T, T) matrix."""
    identity = torch.eye(steps, dtype=torch.float64, device=device)
    return _build(steps, rate, torch.float64, device)(identity)


@lru_cache(maxsize=64)
def _build(steps: int, rate: float, dtype: torch.dtype, device: torch.device) -> Filter:
    n = steps if steps <= LONGEST_SINGLE else BLOCK_FRAMES
    count = -(-steps // n)
    time = torch.arange(n, dtype=torch.float64, device=device)
    block = torch.arange(count, dtype=torch.float64, device=device)
    keep = 1.0 - rate
    raw = (rate * keep ** (time[:, None] - time).clamp(min=0)).tril()
    # The total weight so far is 1 - keep^t; expm1 keeps it above zero for tiny rates.
    weight = -torch.expm1((block[:, None] * n + time + 1.0) * math.log1p(-rate))
    apart = block[:, None] - block - 1.0
    chain = torch.where(apart >= 0, keep ** (n * apart.clamp(min=0)), 0.0)
    tensors = (
        raw / weight[:, :, None],
        (keep ** (time + 1.0) / weight)[:, :, None],
        raw[-1:],
        chain,
    )
    return Filter(steps, *(tensor.to(dtype) for tensor in tensors))
