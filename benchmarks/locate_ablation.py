"""What the parts of `ul learn --task locate` bring, on the scene of `ul demo` with its truth.

Labels score the rows here; they choose nothing in the product.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np
import torch

from ullayers.learn.config import Config
from ullayers.learn.footage import Footage, LongMean, gather
from ullayers.learn.models import Locator
from ullayers.learn.training import Trial
from ullayers.output.scores import distances
from ullayers.video.reader import Reading, find_sources
from ullayers.video.scene import write_scene

SEEDS = (0, 1)


def scene(folder: str) -> tuple[Footage, np.ndarray]:
    video = write_scene(Path(folder))
    with open(Path(folder, "truth.csv"), encoding="utf-8") as file:
        truth = np.array([[float(row["x"]), float(row["y"])] for row in csv.DictReader(file)])
    return gather(find_sources([str(video)]), Reading(longest=64)), truth


def trial(
    footage: Footage, kind: LongMean, seed: int, *, local: float = 0.0, size: bool = True,
    steps: int = 120, spread: bool = True,
) -> Trial:  # fmt: skip
    config = Config(local=local, seed=seed).resolved(many=False)
    made = Trial(footage, config, kind, seed)
    net = made.net
    assert isinstance(net, Locator)
    if not size:
        net.size.zero_()
    if not spread:
        judge = net.judge
        net.judge = lambda found: judge(found._replace(spread=0 * found.spread))  # type: ignore
    for _ in range(steps):
        made.step()
    return made


def apart(made: Trial, truth: np.ndarray) -> np.ndarray:
    found = []
    made.net.eval()
    with torch.no_grad():
        for piece in made.footage.pieces:
            net, behind = made.net, made.behind.get(piece.source)
            assert isinstance(net, Locator)
            found.append(net(piece.foreground(behind=behind)).centroid.numpy())
    return distances(np.concatenate(found), truth, 0.75)


def main() -> None:
    rows: dict[str, dict[str, object]] = {
        "before learning (background subtraction)": {"steps": 0},
        "as shipped": {},
        "long-term mean of the clip": {"kind": "clip"},
        "UL layers after the convolutions, weight 0.03": {"local": 0.03},
        "UL layers after the convolutions, weight 0.1": {"local": 0.1},
        "without the mask's spread in W": {"spread": False},
        "without the object's size in W": {"size": False},
    }
    print(f"{'':46} {'J':>12} {'median':>15} {'90 %':>17}")
    with tempfile.TemporaryDirectory() as folder:
        footage, truth = scene(folder)
        for name, change in rows.items():
            how = {"kind": "stream", **change}
            made = [trial(footage, seed=seed, **how) for seed in SEEDS]  # type: ignore[arg-type]
            far = [apart(one, truth) for one in made]
            scores = " ".join(f"{one.history[-1]:5.2f}" if one.history else "    -" for one in made)
            middle = " ".join(f"{np.median(d):7.2%}" for d in far)
            tail = " ".join(f"{np.quantile(d, 0.9):8.2%}" for d in far)
            print(f"{name:46} {scores:>12} {middle} {tail}", flush=True)


if __name__ == "__main__":
    main()
