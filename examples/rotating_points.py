"""Learn the angle of 28 rotating points in strong noise, without labels.

Runs in a few seconds, prints the error of the angle decoded from the learned code, and draws a
figure.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import ullayers as ul

FRAMES = 1440
POINTS = 28
NOISE = 0.5  # standard deviation relative to that of the points
OUT = Path("demo")


def turning_points(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return noisy frames (FRAMES, 2 * POINTS), the angle of each, and the clean shape."""
    shape = torch.rand(POINTS, 2, generator=generator) - 0.5
    shape = shape - shape.mean(0)
    angle = torch.arange(FRAMES) * math.radians(5)
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    clean = torch.einsum("tij,pj->tpi", turn, shape).flatten(1)
    noise = NOISE * clean.std() * torch.randn(clean.shape, generator=generator)
    return clean + noise, angle, shape


def learn(net: nn.Sequential, frames: Tensor, epochs: int) -> tuple[list[float], list[float]]:
    """Train without labels; return J and the effective rank after every epoch."""
    layer = ul.ul_layers(net)[0]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    objective = []
    rank = []
    for _ in range(epochs):
        for chunk in frames.split(72):
            optimizer.zero_grad()
            ul.backward(net(chunk))
            optimizer.step()
        health = layer.health()
        objective.append(health.objective)
        rank.append(health.rank)
    return objective, rank


def angle_error(code: Tensor, angle: Tensor) -> float:
    """Return the mean error in degrees of a linear read-out, fitted and scored on two halves."""
    half = len(code) // 2
    inputs = torch.cat([code, torch.ones(len(code), 1)], 1)
    target = torch.stack([angle.sin(), angle.cos()], 1)
    decoded = inputs @ torch.linalg.lstsq(inputs[:half], target[:half]).solution
    error = torch.atan2(decoded[:, 0], decoded[:, 1]) - angle
    error = torch.remainder(error + math.pi, 2 * math.pi) - math.pi
    return float(error[half:].abs().mean().rad2deg())


def draw(
    frames: Tensor, angle: Tensor, codes: list[Tensor], curves: tuple[list[float], list[float]]
) -> Path:
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12)  # type: ignore[union-attr, call-arg]
    draw_frames(axes[0], frames, angle)
    for ax, code, title in zip(axes[1:3], codes, ("before", "after"), strict=True):
        shown = (code - code.mean(0)) / code.std(0)
        dots = ax.scatter(*shown.T, c=torch.rad2deg(angle) % 360, s=4, cmap="twilight")
        ax.set(title=f"output {title} learning", xlabel="output 1", ylabel="output 2")
        ax.set_aspect("equal", adjustable="datalim")
    figure.colorbar(dots, ax=axes[2], label="true angle (degrees)")
    draw_curves(axes[3], *curves)
    OUT.mkdir(exist_ok=True)
    path = OUT / "rotating_points.png"
    figure.savefig(path, dpi=110)
    return path


def draw_frames(ax: Axes, frames: Tensor, angle: Tensor) -> None:
    for i, colour in zip((0, 6, 12), ("tab:blue", "tab:orange", "tab:green"), strict=True):
        points = frames[i].view(POINTS, 2)
        ax.plot(*points.T, "o", ms=3, color=colour, label=f"{math.degrees(angle[i]):.0f}°")
    ax.legend(title="turned by", fontsize=7, title_fontsize=7, loc="upper right", ncol=3)
    ax.set(title="input of the network", xlabel="x", ylabel="y", ylim=(-0.75, 1.2))
    ax.set_aspect("equal")


def draw_curves(ax: Axes, objective: list[float], rank: list[float]) -> None:
    epochs = range(1, len(objective) + 1)
    ax.plot(epochs, objective, color="tab:blue")
    ax.set(title="training without labels", xlabel="epoch")
    ax.set_ylabel("J (lower is better)", color="tab:blue")
    right = ax.twinx()
    right.plot(epochs, rank, color="tab:red")
    right.set_ylim(0, 2.05)
    right.set_ylabel("effective rank of B against W", color="tab:red")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    frames, angle, shape = turning_points(torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Linear(2 * POINTS, 2), ul.UL1d(2, mu=0.3))
    with torch.no_grad():
        before = net.eval()(frames)
    curves = learn(net.train(), frames, epochs=20)
    with torch.no_grad():
        after = net.eval()(frames)
    quarter = torch.stack([-shape[:, 1], shape[:, 0]], 1)
    oracle = frames @ torch.stack([shape.flatten(), quarter.flatten()], 1)
    print("mean error of the angle decoded from the output, on frames not used for the decoder:")
    print(f"  before learning                 {angle_error(before, angle):6.1f} degrees")
    print(f"  after learning, no labels       {angle_error(after, angle):6.1f} degrees")
    print(f"  matched filter, knows the shape {angle_error(oracle, angle):6.1f} degrees")
    print(f"health of the layer: {ul.ul_layers(net)[0].health()}")
    print(f"figure: {draw(frames, angle, [before, after], curves)}")


if __name__ == "__main__":
    main()
