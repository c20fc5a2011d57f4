"""Learning by gradients on ill-conditioned input: how good, and how soon.

Everyone learns in slices and is asked for its features after each; the clock runs while it learns,
whatever it does to its input first included, and stands while it is asked. It counts the seconds
of the processor: learning cannot be done twice to see which round was less disturbed, and on one
thread of a quiet machine they are those of the wall.

Settings are those of our tests, which have data of this kind, and of the peers' documentation.
Rows that say "tuned" have the best of several that were tried on these very data, for us (10
linear, 11 MLP) and for VAMPNet (7, 3); a tuned row may be compared with a tuned one only. CEBRA
was not tuned.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ullayers.exact.slow_features import Floats
from ullayers.nn.layers import UL1d, backward
from ullayers.nn.whiten import Whiten
from ullayers.research.bench.batch import ILL
from ullayers.research.bench.sources import SLOW, mixture, read_out_r2
from ullayers.research.bench.timing import How, Row, missing

GOAL, ENOUGH = 0.99, 0.9995  # R2 to be reached, and beyond which nobody need go on
BUDGET = 20.0  # seconds of learning
CHUNK = 1000  # frames of one of our steps, which have to show the slowest source


class Learner(Protocol):
    """Something that learns bit by bit."""

    def learn(self) -> None:
        """Go on for a while: a pass over the data, or so."""

    def features(self) -> Floats:
        """What is made of every row now."""


def rows(how: How) -> Iterator[Row]:
    """A row for each learner."""
    sizes, budget = ((500, 10), 0.0) if how.quick else ((10_000, 50), BUDGET)
    x = mixture(*sizes, condition=ILL)
    makers: dict[str, Callable[[], Learner]] = own_learners(x)
    # What is loaded and compiled at a first step is nobody's.
    torch.optim.Adam([nn.Parameter(torch.zeros(1))]).step()
    backward(UL1d(SLOW)(torch.zeros(1, SLOW, requires_grad=True)))
    for package, peers in PEERS.items():
        try:
            makers |= peers(x)
        except ModuleNotFoundError:
            yield missing(package)
    for name, make in makers.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peers warn of their own numerics
            yield {"kind": "learning", "data": f"{sizes[0]} x {sizes[1]}, condition {ILL:.1e}",
                   "learner": name, "budget": budget, **course(make, budget)}  # fmt: skip


def course(make: Callable[[], Learner], budget: float) -> Row:
    """Seconds and R2 over learning, when the goal was reached, and what was reached at last."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - what peers draw from
    spent, seen, learner = 0.0, list[tuple[float, float]](), None
    while not seen or (spent < budget and not seen[-1][1] >= ENOUGH):
        begin = time.process_time()
        learner = learner or make()
        learner.learn()
        spent += time.process_time() - begin
        seen.append((round(spent, 3), round(read_out_r2(learner.features()), 4)))
    reached = [seconds for seconds, r2 in seen if r2 >= GOAL]
    return {
        "seconds to goal": reached[0] if reached else None,
        "seconds": seen[-1][0], "r2": seen[-1][1], "course": seen,
    }  # fmt: skip


def standardised(x: Floats) -> Floats:
    """Zero mean and unit variance of each feature: what everyone recommends."""
    return np.asarray((x - x.mean(axis=0)) / x.std(axis=0))


def whitened(x: Floats) -> Floats:
    """What none of the peers does by itself."""
    from sklearn.decomposition import PCA

    return np.asarray(PCA(whiten=True).fit_transform(x))


class Ours:
    """A network under UL1d, one pass of chunks after the other."""

    def __init__(self, x: Floats, *layers: nn.Module, lr: float = 0.01, mu: float = 0.2) -> None:
        self.x = torch.from_numpy(x).float()
        self.net = nn.Sequential(*layers, UL1d(SLOW, mu=mu))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)

    def learn(self) -> None:
        """One pass over the data."""
        self.net.train()
        for frames in self.x.split(CHUNK):
            self.optimizer.zero_grad()
            backward(self.net(frames))
            self.optimizer.step()

    @torch.no_grad()
    def features(self) -> Floats:
        """What the network gives now."""
        found: Tensor = self.net.eval()(self.x)
        return found.double().numpy()


def own_learners(x: Floats) -> dict[str, Callable[[], Learner]]:
    """Raw input behind `Whiten`; and what becomes of us without it."""
    d = x.shape[1]
    return {
        "ullayers Whiten + linear": lambda: Ours(x, Whiten(d), nn.Linear(d, SLOW)),
        "ullayers Whiten + linear, tuned": lambda: Ours(x, Whiten(d), nn.Linear(d, SLOW), mu=0.05),
        "ullayers Whiten + MLP": lambda: Ours(x, Whiten(d), *mlp(d)),
        "ullayers Whiten + MLP, tuned": lambda: Ours(x, Whiten(d), *mlp(d), lr=1e-3, mu=0.05),
        "ullayers linear, standardised": lambda: Ours(standardised(x), nn.Linear(d, SLOW)),
    }


def mlp(inputs: int) -> list[nn.Module]:
    """One that is small."""
    return [nn.Linear(inputs, 64), nn.ELU(), nn.Linear(64, SLOW)]


class Vampnet:
    """deeptime's VAMPNet with its own rate and batches of 512 pairs, as its documentation has."""

    def __init__(self, x: Floats, *layers: nn.Module, lr: float = 5e-4) -> None:
        from deeptime.decomposition.deep import VAMPNet
        from deeptime.util.data import TrajectoryDataset
        from torch.utils.data import DataLoader

        self.x = x.astype(np.float32)
        self.estimator = VAMPNet(nn.Sequential(*layers), learning_rate=lr)
        pairs = TrajectoryDataset(1, self.x)
        self.batches = DataLoader(pairs, batch_size=512, shuffle=True, drop_last=len(x) > 512)

    def learn(self) -> None:
        """One pass over the data."""
        self.estimator.fit(self.batches, n_epochs=1)

    def features(self) -> Floats:
        """What the network gives now."""
        return np.asarray(self.estimator.transform(self.x), np.float64)


def vampnets(x: Floats) -> dict[str, Callable[[], Learner]]:
    """With a linear network as with an MLP, as recommended and with the input whitened for it."""
    import deeptime.decomposition.deep  # noqa: F401 - it must be here

    d = x.shape[1]
    return {
        "VAMPNet linear, standardised": lambda: Vampnet(standardised(x), nn.Linear(d, SLOW)),
        "VAMPNet MLP, standardised": lambda: Vampnet(standardised(x), *mlp(d)),
        "VAMPNet linear, whitened": lambda: Vampnet(whitened(x), nn.Linear(d, SLOW)),
        "VAMPNet linear, whitened, tuned": lambda: Vampnet(
            whitened(x), nn.Linear(d, SLOW), lr=0.02
        ),
        "VAMPNet MLP, whitened": lambda: Vampnet(whitened(x), *mlp(d)),
        "VAMPNet MLP, whitened, tuned": lambda: Vampnet(whitened(x), *mlp(d), lr=5e-3),
    }


class Cebra:
    """CEBRA-Time as its usage guide has it, but for the device and the number of iterations."""

    def __init__(self, x: Floats) -> None:
        import cebra

        self.x = x.astype(np.float32)
        self.model: Any = cebra.CEBRA(
            model_architecture="offset10-model", batch_size=512, learning_rate=3e-4,
            temperature=1.0, output_dimension=8, max_iterations=50, distance="cosine",
            conditional="time", time_offsets=10, device="cpu",
        )  # fmt: skip

    def learn(self) -> None:
        """Fifty iterations."""
        self.model.partial_fit(self.x)

    def features(self) -> Floats:
        """What the network gives now."""
        return np.asarray(self.model.transform(self.x), np.float64)


def cebras(x: Floats) -> dict[str, Callable[[], Learner]]:
    """As recommended, and with the input whitened for it."""
    import cebra  # noqa: F401 - it must be here

    return {
        "CEBRA, standardised": lambda: Cebra(standardised(x)),
        "CEBRA, whitened": lambda: Cebra(whitened(x)),
    }


PEERS: dict[str, Callable[[Floats], dict[str, Callable[[], Learner]]]] = {
    "deeptime": vampnets,
    "cebra": cebras,
}


def line(row: Row) -> str:
    """A row of the table."""
    if not row["budget"]:  # a first pass over a few rows: how good it is says nothing
        return f"{row['learner']:34} R2 - after one pass of {row['seconds']:.1f} s"
    goal = row["seconds to goal"]
    soon = f"R2 {GOAL} not reached" if goal is None else f"R2 {GOAL} after {goal:.2f} s"
    return f"{row['learner']:34} {soon:24} R2 {row['r2']:7.4f} after {row['seconds']:.1f} s"
