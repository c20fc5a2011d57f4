"""Ablations of `ul learn --task locate` on the scene of `ul demo`, scored with its truth."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from ullayers.learn.config import Config
from ullayers.learn.footage import Footage, LongMean, gather
from ullayers.learn.models import Locator
from ullayers.learn.training import Trial
from ullayers.output.scores import distances
from ullayers.research.bench.video import read_columns
from ullayers.video.reader import Reading, find_sources
from ullayers.video.scene import write_scene

SEEDS = (0, 1)
ASPECT = 0.75  # height over width of the scene


def scene(folder: str) -> tuple[Footage, np.ndarray]:
    video = write_scene(Path(folder))
    truth = read_columns(Path(folder, "truth.csv"), "x", "y")
    return gather(find_sources([str(video)]), Reading(longest=64)), truth


def train(
    footage: Footage,
    kind: LongMean,
    seed: int,
    *,
    local: float = 0.0,
    size: bool = True,
    steps: int = 120,
    spread: bool = True,
) -> Trial:
    config = Config(local=local, seed=seed).resolved(many=False)
    trial = Trial(footage, config, kind, seed)
    net = trial.net
    assert isinstance(net, Locator)
    if not size:
        net.size.zero_()
    if not spread:
        judge = net.judge
        net.judge = lambda found: judge(found._replace(spread=0 * found.spread))  # type: ignore
    for _ in range(steps):
        trial.step()
    return trial


def errors(trial: Trial, truth: np.ndarray) -> np.ndarray:
    found = []
    net = trial.net.eval()
    assert isinstance(net, Locator)
    with torch.no_grad():
        for piece in trial.footage.pieces:
            background = trial.behind.get(piece.source)
            found.append(net(piece.foreground(behind=background)).centroid.numpy())
    return distances(np.concatenate(found), truth, ASPECT)


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
            options = {"kind": "stream", **change}
            trials = [train(footage, seed=seed, **options) for seed in SEEDS]  # type: ignore[arg-type]
            print(f"{name:46} {row(trials, truth)}", flush=True)


def row(trials: list[Trial], truth: np.ndarray) -> str:
    """Return J, median error and 90 % quantile of all trials."""
    of_trials = [errors(trial, truth) for trial in trials]
    scores = " ".join(f"{trial.history[-1]:5.2f}" if trial.history else "    -" for trial in trials)
    medians = " ".join(f"{np.median(values):7.2%}" for values in of_trials)
    quantiles = " ".join(f"{np.quantile(values, 0.9):8.2%}" for values in of_trials)
    return f"{scores:>12} {medians} {quantiles}"


if __name__ == "__main__":
    main()
