"""Moving averages over the frames of one call, as matrix products, and their transposes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

BLOCK = 32  # longer inputs are filtered in blocks of this many frames
LONGEST_SINGLE = 64  # up to here one triangular matrix is cheaper


@dataclass(frozen=True)
class Filter:
    """m_t = sum_s a^(t-s) x_s / sum_s a^(t-s) over s <= t: Eq. 6 from a start without a past.

    Time is cut into K blocks of n frames. Inside a block the average is a triangular product; what
    earlier blocks contribute is carried from block to block.
    """

    steps: int
    local: Tensor  # (K, n, n)
    gain: Tensor  # (K, n, 1), of the carry
    tail: Tensor  # (1, n), the carry that a block hands on, before that of earlier blocks
    chain: Tensor  # (K, K), strictly triangular: carries from what blocks hand on

    def __call__(self, x: Tensor) -> Tensor:
        """The averages of (T, K) values after each step."""
        if len(self.local) == 1:
            return self.local[0] @ x
        blocks = self._blocks(x)
        averages = torch.bmm(self.local, blocks)
        carry = self.chain @ (self.tail @ blocks).squeeze(1)
        averages.addcmul_(self.gain, carry[:, None])
        return averages.flatten(0, 1)[: self.steps]

    def transposed(self, g: Tensor) -> Tensor:
        """The gradient with respect to the values, from that with respect to the averages."""
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
    """The filter for `steps` frames, in the dtype and on the device of `like`."""
    return _build(steps, rate, like.dtype, like.device)


@lru_cache(maxsize=64)
def _build(steps: int, rate: float, dtype: torch.dtype, device: torch.device) -> Filter:
    n = steps if steps <= LONGEST_SINGLE else BLOCK
    count = -(-steps // n)
    time = torch.arange(n, dtype=torch.float64, device=device)
    block = torch.arange(count, dtype=torch.float64, device=device)
    keep = 1.0 - rate
    raw = (rate * keep ** (time[:, None] - time).clamp(min=0)).tril()
    # Of all that was seen so far, 1 - keep^t: not zero for the smallest of rates.
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
