"""How many frames a call needs: `python -m experiments.studies.frames_per_call`.

d slow sources (a first-order process that keeps 0.98 of its value) and 64 - d of white noise are
mixed at random. A linear network learns d outputs from calls of a few consecutive frames, with
fresh or with running statistics, each with the better of two learning rates. The score is the
share of the network's rows that lies in the space of the slow sources; chance is d / 64.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import ullayers as ul

WIDTH, FRAMES, KEEP = 64, 20_000, 0.98
RATES = (1e-2, 1e-3)
CALLS = {2: (4, 8, 16, 32, 64, 128), 8: (4, 8, 16, 32, 64, 128), 32: (8, 16, 32, 64, 128)}


def main() -> None:
    torch.set_num_threads(1)
    print("outputs  frames a call  fresh  running")
    for outputs, lengths in CALLS.items():
        mixed, plane = sources(outputs)
        for length in lengths:
            fresh = max(score(mixed, plane, length, "fresh", rate) for rate in RATES)
            running = max(score(mixed, plane, length, "running", rate) for rate in RATES)
            print(f"{outputs:7}  {length:13}  {fresh:5.3f}  {running:7.3f}", flush=True)


def sources(count: int) -> tuple[Tensor, Tensor]:
    """Mixtures (FRAMES, WIDTH), and the basis of the slow sources in them."""
    torch.manual_seed(0)
    pushes, state, slow = torch.randn(FRAMES, count), torch.zeros(count), []
    for push in pushes:
        state = KEEP * state + (1 - KEEP**2) ** 0.5 * push
        slow.append(state)
    basis = torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q
    every = torch.cat([torch.stack(slow), torch.randn(FRAMES, WIDTH - count)], 1)
    return every @ basis.T, basis[:, :count]


def score(
    mixed: Tensor, plane: Tensor, length: int, statistics: Literal["fresh", "running"], rate: float
) -> float:
    """Learn for at most 2,000 calls, at most four times through all frames."""
    torch.manual_seed(0)
    outputs = plane.shape[1]
    net = torch.nn.Linear(WIDTH, outputs, bias=False)
    layer = ul.UL1d(outputs, statistics=statistics)
    optimizer = torch.optim.Adam(net.parameters(), rate)
    calls = mixed[: FRAMES // length * length].view(-1, length, WIDTH)
    for step in range(min(2000, 4 * len(calls))):
        optimizer.zero_grad()
        ul.backward(layer(net(calls[step % len(calls)])))
        optimizer.step()
    rows = torch.linalg.qr(net.weight.detach().T).Q
    return float((rows.T @ plane).square().sum() / outputs)


if __name__ == "__main__":
    main()
