"""Baselines: other methods to analyse a video.

The codes of `slow_codes`, `similarity_codes` and `learn_physics` have no scale: labels are needed
to decode them to positions or angles, and results must say so. `moving_centroids` is background
subtraction with OpenCV, to which tracks are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from ullayers.exact.markov import DisconnectedError, closed_form, transitions
from ullayers.exact.slow_features import SlowFeatures
from ullayers.learning.config import Config
from ullayers.learning.footage import LongMean
from ullayers.learning.networks import Model
from ullayers.learning.trials import build

Floats = NDArray[np.floating[Any]]
Coder = Callable[[Floats], Floats]  # rows of pixels (n, pixels) to codes (n, outputs)

# Settings of Stewart and Ermon (2017): size of the room, and weights of the terms against collapse.
ROOM = 10.0
SPREAD_WEIGHT = 0.6
INSIDE_WEIGHT = 1.0


def slow_codes(
    sequences: Sequence[Floats], outputs: int = 2, *, degree: int = 1, components: int = 50
) -> Coder:
    """Fit slow feature analysis after a PCA of the pixels.

    Args:
        sequences: Pixels (time, pixels) of each sequence.
        outputs: Size of the code; the slowest feature comes first.
        degree: 1 for linear slow features, 2 for quadratic ones.
        components: Number of principal components; quadratic features use their products.

    Returns:
        A function that encodes frames.

    Example:
        >>> random = np.random.default_rng(0)
        >>> slow = np.sin(np.arange(600) / 40)
        >>> pixels = np.outer(slow, random.normal(size=30)) + random.normal(size=(600, 30))
        >>> code = slow_codes([pixels[:300], pixels[300:]], outputs=1, components=10)(pixels)
        >>> bool(abs(np.corrcoef(code[:, 0], slow)[0, 1]) > 0.95)
        True
    """
    reduce = _reduction(sequences, components)
    slow = SlowFeatures(outputs, degree=degree, tol=1e-6).fit([reduce(rows) for rows in sequences])

    def code(rows: Floats) -> Floats:
        codes: Floats = slow.transform(reduce(rows))
        return codes

    return code


def similarity_codes(
    sequences: Sequence[Floats],
    outputs: int = 2,
    *,
    neighbours: int = 10,
    components: int = 50,
) -> Coder:
    """Solve the paper's closed form on a graph of frames that are consecutive or similar.

    With temporal edges alone, the closed form would ignore the pictures, so every frame is also
    linked to the most similar ones. A new frame gets the mean code of its nearest known frames,
    weighted by similarity.

    Args:
        sequences: Pixels (time, pixels) of each sequence.
        outputs: Size of the code.
        neighbours: Number of similar frames that each frame is linked to; doubled until the graph
            is connected.
        components: Number of principal components in which frames are compared.

    Returns:
        A function that encodes frames.

    Example:
        >>> place = np.abs(np.arange(240) % 120 - 60) / 60  # to and fro, twice
        >>> pixels = np.exp(-((place[:, None] - np.linspace(0, 1, 20)) ** 2) / 0.02)
        >>> code = similarity_codes([pixels[:200]], outputs=1)(pixels[200:])
        >>> bool(abs(np.corrcoef(code[:, 0], place[200:])[0, 1]) > 0.95)
        True
    """
    from sklearn.neighbors import NearestNeighbors

    reduce = _reduction(sequences, components)
    lengths = [len(rows) for rows in sequences]
    known = reduce(np.concatenate(list(sequences)))
    steps = transitions(np.arange(len(known)), lengths, len(known)).astype(float)
    while True:
        search = NearestNeighbors(n_neighbors=min(neighbours + 1, len(known))).fit(known)
        edges, scale = _similarity_edges(search, known)
        try:
            embedding = closed_form(steps + edges, outputs).embedding
            break
        except DisconnectedError:
            if neighbours >= len(known):
                raise
            neighbours *= 2

    def code(rows: Floats) -> Floats:
        distances, nearest = search.kneighbors(reduce(rows))
        # Relative to the nearest frame, so that an outlier gets a code as well.
        weights = _similarity(np.sqrt(distances**2 - distances[:, :1] ** 2), scale)
        weights /= weights.sum(1, keepdims=True)
        codes: Floats = np.einsum("nk,nkd->nd", weights, embedding[nearest])
        return codes

    return code


def _similarity_edges(search: Any, known: Floats) -> tuple[Any, float]:
    """Return the weights of the edges to similar frames, and the scale of their distances."""
    distances, nearest = search.kneighbors(known)
    scale = float(np.median(distances[:, 1:])) + 1e-12
    weights = _similarity(distances, scale).ravel()
    frames = np.repeat(np.arange(len(known)), nearest.shape[1])
    shape = (len(known), len(known))
    return sparse.csr_array((weights, (frames, nearest.ravel())), shape=shape), scale


def _similarity(distance: Floats, scale: float) -> Floats:
    similarity: Floats = np.exp(-((distance / scale) ** 2) / 2)
    return similarity


def _reduction(sequences: Sequence[Floats], components: int) -> Coder:
    """Fit a PCA, scaled so that the largest component has unit variance."""
    from sklearn.decomposition import PCA

    rows = np.concatenate([np.asarray(part, np.float64) for part in sequences])
    pca = PCA(min(components, *rows.shape), svd_solver="randomized", random_state=0).fit(rows)
    scale = float(np.sqrt(pca.explained_variance_[0])) + 1e-12

    def reduce(pixels: Floats) -> Floats:
        reduced: Floats = pca.transform(np.asarray(pixels, np.float64)) / scale
        return reduced

    return reduce


class PositionNet(nn.Module):
    """Three convolutions and two fully connected layers that regress numbers from a frame.

    This is the network of Stewart and Ermon (2017), to which the paper adds its UL layer.

    Args:
        size: (height, width) of the frames.
        channels: Number of channels of the frames.
        outputs: Number of outputs.

    Example:
        >>> PositionNet((56, 56))(torch.rand(4, 3, 56, 56)).shape
        torch.Size([4, 2])
    """

    def __init__(self, size: tuple[int, int], channels: int = 3, outputs: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, maps in ((channels, 16), (16, 32), (32, 32)):
            layers += [nn.Conv2d(inputs, maps, 5, 2, 2), nn.ReLU()]
        self.convs = nn.Sequential(*layers)
        positions = -(-size[0] // 8) * -(-size[1] // 8)
        self.full = nn.Sequential(nn.Linear(32 * positions, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, frames: Tensor) -> Tensor:
        """Return outputs (time, outputs) of frames (time, channels, height, width)."""
        maps: Tensor = self.convs(frames)
        outputs: Tensor = self.full(maps.flatten(1))
        return outputs + 0.5  # starts at the centre of the frame


def physics_error(positions: Tensor, curvature: float = 0.0) -> Tensor:
    """Return the mean absolute distance of trajectories from the nearest physical ones.

    A physical trajectory has any start and velocity, and the given acceleration: it is a straight
    line in time, or a parabola of known width.

    Args:
        positions: One coordinate of each trajectory, (windows, time).
        curvature: Acceleration in positions per frame squared; 0 for constant velocity.

    Example:
        >>> time = torch.arange(5.0)
        >>> thrown = 3 + 2 * time + 0.5 * 0.4 * time**2
        >>> bool(physics_error(thrown[None], curvature=0.4) < 1e-5)
        True
        >>> bool(physics_error(thrown[None]) > 0.1)
        True
    """
    time = torch.arange(positions.shape[1], dtype=positions.dtype, device=positions.device)
    lines = torch.stack([torch.ones_like(time), time], 1)  # any start, any velocity
    projection = lines @ torch.linalg.pinv(lines)
    straight = positions - curvature * time.square() / 2
    error: Tensor = (straight - straight @ projection.T).abs().mean()
    return error


def learn_physics(
    clips: Sequence[Tensor],
    curvatures: Sequence[float] = (0.0,),
    *,
    window: int = 5,
    steps: int = 600,
    batch: int = 16,
    lr: float = 1e-3,
    seed: int = 0,
) -> PositionNet:
    """Learn positions from physical constraints only, after Stewart and Ermon (AAAI 2017).

    A network regresses the position in each frame; windows of consecutive frames must lie near a
    physical trajectory. Without acceleration a constant would do, so positions must also spread
    out and stay in the room. They are then determined up to a mirror image and a scale. With short
    windows a network may also learn to oscillate in the room instead of following the object.

    Args:
        clips: Frames (time, channels, height, width) of each clip, floating point; clips shorter
            than a window are ignored.
        curvatures: Acceleration of each coordinate in rooms per frame squared, 0 for none.
        window: Number of frames per trajectory.
        steps: Number of steps.
        batch: Number of windows per step.
        lr: Learning rate.
        seed: Seed of weights and windows.

    Returns:
        The network; its outputs are in rooms, mostly 0..1.

    Example:
        >>> clip = torch.zeros(12, 1, 16, 16)
        >>> for t in range(12):
        ...     clip[t, :, 6:9, t : t + 3] = 1.0
        >>> x = learn_physics([clip], window=12, steps=60, batch=2)(clip)[:, 0].detach()
        >>> abs(round(float(torch.corrcoef(torch.stack([x, torch.arange(12.0)]))[0, 1]), 1))
        1.0
    """
    generator = torch.Generator().manual_seed(seed)
    _, channels, height, width = clips[0].shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = PositionNet((height, width), channels, len(curvatures))
    optimizer = torch.optim.AdamW(net.parameters(), lr)
    for _ in range(steps):
        windows = _draw_windows(clips, window, batch, generator)
        positions = ROOM * net(torch.cat(windows)).view(batch, window, len(curvatures))
        optimizer.zero_grad()
        _physics_loss(positions, curvatures).backward()
        optimizer.step()
    return net.eval()


def _draw_windows(
    clips: Sequence[Tensor], window: int, batch: int, generator: torch.Generator
) -> list[Tensor]:
    """Draw windows uniformly, and mirror half of them: physics has no left and right."""
    starts = torch.tensor([len(clip) - window + 1.0 for clip in clips]).clamp(min=0)
    windows = []
    for number in torch.multinomial(starts, batch, True, generator=generator).tolist():
        start = int(torch.randint(int(starts[number]), (), generator=generator))
        frames = clips[number][start : start + window]
        mirrored = torch.rand((), generator=generator) < 0.5
        windows.append(frames.flip(-1) if mirrored else frames)
    return windows


def _physics_loss(positions: Tensor, curvatures: Sequence[float]) -> Tensor:
    """Return the loss of positions (windows, time, coordinates) in 0..ROOM."""
    loss = positions.new_zeros(())
    for coordinate, curvature in zip(positions.unbind(2), curvatures, strict=True):
        outside = F.relu(coordinate - ROOM) + F.relu(-coordinate)
        loss = loss + physics_error(coordinate, ROOM * curvature)
        loss = loss + INSIDE_WEIGHT * outside.mean()
        if curvature == 0:
            loss = loss - SPREAD_WEIGHT * coordinate.std(1).mean()
    return loss


def learn_supervised(
    net: nn.Module,
    read: Callable[[Tensor], Tensor],
    clips: Sequence[Tensor],
    truth: Sequence[Floats],
    *,
    steps: int = 300,
    batch: int = 64,
    lr: float = 3e-3,
    seed: int = 0,
) -> None:
    """Train a network with labels, as an upper bound.

    Args:
        net: Network to train; left in evaluation mode.
        read: Function from frames to outputs (time, k) of the network.
        clips: Frames (time, channels, height, width) of each clip.
        truth: Labels (time, k) of each clip, NaN where unknown.
        steps: Number of steps.
        batch: Number of frames per step, drawn from all clips.
        lr: Initial learning rate, annealed to zero.
        seed: Seed of the batches.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> pictures, net = torch.rand(50, 1, 4, 4), nn.Sequential(nn.Flatten(), nn.Linear(16, 1))
        >>> wanted = pictures.sum((1, 2, 3))[:, None].numpy()
        >>> learn_supervised(net, net, [pictures], [wanted], lr=0.05)
        >>> with torch.no_grad():
        ...     bool((net(pictures) - torch.from_numpy(wanted)).abs().mean() < 0.1)
        True
    """
    frames = torch.cat(list(clips))
    targets = torch.from_numpy(np.concatenate(list(truth))).to(frames.dtype)
    labelled = torch.nonzero(targets.isfinite().all(1))[:, 0]
    batch = min(batch, len(labelled))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    net.train()
    for _ in range(steps):
        chosen = labelled[torch.randint(len(labelled), (batch,), generator=generator)]
        optimizer.zero_grad()
        F.mse_loss(read(frames[chosen]), targets[chosen]).backward()
        optimizer.step()
        schedule.step()
    net.eval()


def random_weights(
    config: Config, kind: LongMean, channels: int, size: tuple[int, int], seed: int = 0
) -> Model:
    """Return our network with its initial weights.

    For "locate" its output is the centroid of the foreground's energy.

    Example:
        >>> net = random_weights(Config(task="orient"), "clip", 1, (48, 48))
        >>> net.training, sum(p.numel() for p in net.parameters()) > 0
        (False, True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config, kind, channels, size).eval()


# MOG2's defaults are for hours of video. These were chosen with the truth for clips of seconds.
VARIANCE_THRESHOLD = 64.0
BACKGROUND_RATIO = 0.6
SPECK = 3  # pixels; smaller foreground is noise


def moving_centroids(frames: NDArray[np.uint8], passes: int = 4) -> Floats:
    """Return centroids of the foreground of OpenCV's background subtraction (MOG2).

    Args:
        frames: Frames (time, height, width, 3).
        passes: Number of times that the frames are shown; all but the last only learn the
            background.

    Returns:
        x and y in 0..1 of the frame, (time, 2). Frames without foreground repeat the last
        position, or the first one if there is none yet, or the centre if nothing ever moves.

    Example:
        >>> frames = np.zeros((20, 32, 40, 3), np.uint8)
        >>> for t in range(20):
        ...     frames[t, 8:14, t : t + 6] = 255
        >>> x, y = moving_centroids(frames)[10]  # columns 10 to 15 of 40, rows 8 to 13 of 32
        >>> bool(abs(x - 13 / 40) < 0.02), bool(abs(y - 11 / 32) < 0.02)
        (True, True)
    """
    mixture = cv2.createBackgroundSubtractorMOG2(
        history=passes * len(frames), varThreshold=VARIANCE_THRESHOLD, detectShadows=False
    )
    mixture.setBackgroundRatio(BACKGROUND_RATIO)
    for _ in range(passes - 1):
        for frame in frames:
            mixture.apply(frame)
    speck = np.ones((SPECK, SPECK), np.uint8)
    found = np.full((len(frames), 2), np.nan)
    for t, frame in enumerate(frames):
        mask = cv2.morphologyEx(mixture.apply(frame, learningRate=0), cv2.MORPH_OPEN, speck)
        rows, columns = np.nonzero(mask)
        if len(rows):
            height, width = mask.shape
            found[t] = (columns.mean() + 0.5) / width, (rows.mean() + 0.5) / height
    return _fill_gaps(found)


def _fill_gaps(positions: Floats) -> Floats:
    """Replace missing positions by the last known, else the first known, else the centre."""
    known = np.flatnonzero(np.isfinite(positions[:, 0]))
    if not len(known):
        return np.full_like(positions, 0.5)
    last = np.searchsorted(known, np.arange(len(positions)), side="right") - 1
    return positions[known[np.maximum(last, 0)]]
