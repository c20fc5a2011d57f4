"""What we are compared with: other ways to read a video, each given a fair chance.

Some of them give codes without a scale (`slow_codes`, `similarity_codes`, a network trained by
`learn_physics`): whoever needs metres or degrees has to decode them with labels, and must say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from ullayers.errors import MissingPackageError
from ullayers.exact.markov import DisconnectedError, closed_form, transitions
from ullayers.exact.slow_features import SlowFeatures
from ullayers.learn.config import Config
from ullayers.learn.footage import LongMean
from ullayers.learn.models import Model
from ullayers.learn.trainer import build

Floats = NDArray[np.floating[Any]]
Coder = Callable[[Floats], Floats]  # rows of pixels (n, pixels) to codes (n, outputs)

ROOM = 10.0  # positions are in 0..ROOM while physics is learned, as its authors have it
SPREAD_WEIGHT, INSIDE_WEIGHT = 0.6, 1.0  # their weights of the two terms against collapse
# MOG2's own settings are for hours of video. These were chosen, with truth, to serve it in clips of
# seconds.
DIFFERENT = 64.0  # squared distance, in variances of a pixel, beyond which something is new
OFTEN = 0.6  # share of the time that a background is seen
SPECK = 3  # pixels; what is smaller in a foreground is noise


def slow_codes(
    sequences: Sequence[Floats], outputs: int = 2, *, degree: int = 1, components: int = 50
) -> Coder:
    """Slow feature analysis of pixels: reduce them by PCA, then keep what changes least.

    Args:
        sequences: (time, pixels) each.
        outputs: numbers in the code, slowest first.
        degree: 1 for linear slow features, 2 for quadratic ones.
        components: of the PCA; many for quadratic features are too many, for they are squared.

    Returns:
        a function that codes new frames.

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
        found: Floats = slow.transform(reduce(rows))
        return found

    return code


def similarity_codes(
    sequences: Sequence[Floats],
    outputs: int = 2,
    *,
    neighbours: int = 10,
    components: int = 50,
) -> Coder:
    """The paper's closed form on a graph of frames: those that follow each other or look alike.

    On steps in time alone the closed form knows nothing of the pictures. Here every frame is also
    linked to those most like it. A new frame gets the mean code of the known frames nearest to it,
    the nearer the more.

    Args:
        sequences: (time, pixels) each.
        outputs: numbers in the code.
        neighbours: frames that each is linked to; more where the graph would fall apart.
        components: of the PCA in which frames are compared.

    Returns:
        a function that codes new frames.

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
        far, near = search.kneighbors(known)
        scale = float(np.median(far[:, 1:])) + 1e-12
        alike = sparse.csr_array(
            (_closeness(far, scale).ravel(),
             (np.repeat(np.arange(len(known)), near.shape[1]), near.ravel())),
            shape=(len(known), len(known)),
        )  # fmt: skip
        try:
            embedding = closed_form(steps + alike, outputs).embedding
            break
        except DisconnectedError:
            if neighbours >= len(known):
                raise
            neighbours *= 2

    def code(rows: Floats) -> Floats:
        far, near = search.kneighbors(reduce(rows))
        # Relative to the nearest: a frame unlike all others still gets a code.
        weight = _closeness(np.sqrt(far**2 - far[:, :1] ** 2), scale)
        weight /= weight.sum(1, keepdims=True)
        found: Floats = np.einsum("nk,nkd->nd", weight, embedding[near])
        return found

    return code


def _closeness(distance: Floats, scale: float) -> Floats:
    close: Floats = np.exp(-((distance / scale) ** 2) / 2)
    return close


def _reduction(sequences: Sequence[Floats], components: int) -> Coder:
    """PCA, with the largest component at unit variance, so that no unit of pixels matters."""
    from sklearn.decomposition import PCA

    rows = np.concatenate([np.asarray(part, np.float64) for part in sequences])
    pca = PCA(min(components, *rows.shape), svd_solver="randomized", random_state=0).fit(rows)
    scale = float(np.sqrt(pca.explained_variance_[0])) + 1e-12

    def reduce(pixels: Floats) -> Floats:
        reduced: Floats = pca.transform(np.asarray(pixels, np.float64)) / scale
        return reduced

    return reduce


class PositionNet(nn.Module):
    """Numbers straight from a frame: three convolutions and two fully connected layers.

    It is the network of the physics-constraint authors, which the paper puts its UL layer on.

    Args:
        size: (height, width) of the frames.
        channels: of the frames.
        outputs: numbers for each frame.

    Example:
        >>> PositionNet((56, 56))(torch.rand(4, 3, 56, 56)).shape
        torch.Size([4, 2])
    """

    def __init__(self, size: tuple[int, int], channels: int = 3, outputs: int = 2) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for before, after in ((channels, 16), (16, 32), (32, 32)):
            stages += [nn.Conv2d(before, after, 5, 2, 2), nn.ReLU()]
        self.convs = nn.Sequential(*stages)
        places = -(-size[0] // 8) * -(-size[1] // 8)
        self.full = nn.Sequential(nn.Linear(32 * places, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, frames: Tensor) -> Tensor:
        """(time, outputs) of (time, channels, height, width)."""
        maps: Tensor = self.convs(frames)
        found: Tensor = self.full(maps.flatten(1))
        return found + 0.5  # begin in the middle


def physics_error(positions: Tensor, curvature: float = 0.0) -> Tensor:
    """How far trajectories are, on average, from the nearest one that obeys physics.

    Such a trajectory has any start and any velocity, and the given acceleration: it is a straight
    line in time, or a parabola of known width.

    Args:
        positions: (windows, time), one coordinate.
        curvature: acceleration, in positions per frame squared; 0 for constant velocity.

    Returns:
        the mean absolute distance.

    Example:
        >>> time = torch.arange(5.0)
        >>> thrown = 3 + 2 * time + 0.5 * 0.4 * time**2
        >>> bool(physics_error(thrown[None], curvature=0.4) < 1e-5)
        True
        >>> bool(physics_error(thrown[None]) > 0.1)
        True
    """
    time = torch.arange(positions.shape[1], dtype=positions.dtype, device=positions.device)
    falling = curvature * time.square() / 2
    free = torch.stack([torch.ones_like(time), time], 1)  # any start, any velocity
    explained = free @ torch.linalg.pinv(free)
    rest = positions - falling
    error: Tensor = (rest - rest @ explained.T).abs().mean()
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
    """Positions learned from physics alone, after Stewart and Ermon (AAAI 2017).

    A network regresses the position in each frame; windows of consecutive frames must lie near a
    trajectory that physics allows. Where a constant would do (no acceleration), positions must
    also spread out and stay in the room. They are then known up to a mirror and a scale. In short
    windows a network may also learn to turn back and forth in the room instead of following.

    Args:
        clips: (time, channels, height, width) each, floating point; shorter ones than a window are
            left out.
        curvatures: for each coordinate the acceleration in rooms per frame squared, 0 for none.
        window: frames of a trajectory.
        steps: of learning.
        batch: windows of a step.
        lr: learning rate.
        seed: of everything that is random.

    Returns:
        the network; its outputs are in rooms, mostly 0..1.

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
    shares = torch.tensor([len(clip) - window + 1.0 for clip in clips]).clamp(min=0)
    for _ in range(steps):
        chosen = torch.multinomial(shares, batch, True, generator=generator).tolist()
        windows = []
        for number in chosen:
            start = int(torch.randint(int(shares[number]), (), generator=generator))
            seen = clips[number][start : start + window]
            # Physics does not care which way is left, but it knows up from down.
            mirrored = torch.rand((), generator=generator) < 0.5
            windows.append(seen.flip(-1) if mirrored else seen)
        found = ROOM * net(torch.cat(windows)).view(batch, window, len(curvatures))
        loss = found.new_zeros(())
        for positions, curvature in zip(found.unbind(2), curvatures, strict=True):
            loss = loss + physics_error(positions, ROOM * curvature)
            loss = loss + INSIDE_WEIGHT * (F.relu(positions - ROOM) + F.relu(-positions)).mean()
            if curvature == 0:
                loss = loss - SPREAD_WEIGHT * positions.std(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def moving_centroids(frames: NDArray[np.uint8], passes: int = 4) -> Floats:
    """Background subtraction by OpenCV's mixture of Gaussians (MOG2): centroids of what moves.

    Args:
        frames: (time, height, width, 3).
        passes: how often the frames are shown; all but the last only teach it the background.

    Returns:
        (time, 2) x and y in 0..1 of the frame. Where nothing moves it is the last place, before
        anything has moved the first, and the middle if nothing ever does.

    Raises:
        MissingPackageError: OpenCV is not installed.

    Example:
        >>> frames = np.zeros((20, 32, 40, 3), np.uint8)
        >>> for t in range(20):
        ...     frames[t, 8:14, t : t + 6] = 255
        >>> x, y = moving_centroids(frames)[10]  # columns 10 to 15 of 40, rows 8 to 13 of 32
        >>> bool(abs(x - 13 / 40) < 0.02), bool(abs(y - 11 / 32) < 0.02)
        (True, True)
    """
    try:
        import cv2
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "background subtraction needs OpenCV: pip install 'ullayers[camera]'"
        ) from error
    mixture = cv2.createBackgroundSubtractorMOG2(
        history=passes * len(frames), varThreshold=DIFFERENT, detectShadows=False
    )
    mixture.setBackgroundRatio(OFTEN)
    for _ in range(passes - 1):
        for frame in frames:
            mixture.apply(frame)
    height, width = frames.shape[1:3]
    speck = np.ones((SPECK, SPECK), np.uint8)
    places: list[tuple[float, float]] = []
    early = 0  # frames before anything has moved
    for frame in frames:
        mask = cv2.morphologyEx(mixture.apply(frame, learningRate=0), cv2.MORPH_OPEN, speck)
        rows, columns = np.nonzero(mask)
        if len(rows):
            places.append(
                (columns.mean() / width + 0.5 / width, rows.mean() / height + 0.5 / height)
            )
        elif places:
            places.append(places[-1])
        else:
            early += 1
    return np.array((places[:1] or [(0.5, 0.5)]) * early + places)


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
    """The upper bound: train a network with labels, which nothing else here sees.

    Args:
        net: to train; left in evaluation mode.
        read: what it says of frames: (time, k).
        clips: (time, channels, height, width) each.
        truth: (time, k) each, nan where unknown.
        steps: of learning.
        batch: frames of a step, from anywhere.
        lr: learning rate at the beginning; it falls to zero.
        seed: of everything that is random.

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
    wanted = torch.from_numpy(np.concatenate(list(truth))).to(frames.dtype)
    known = torch.nonzero(wanted.isfinite().all(1))[:, 0]
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr)
    # From fast to slow, to end at the bottom and not around it.
    pace = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    net.train()
    for _ in range(steps):
        some = known[torch.randint(len(known), (min(batch, len(known)),), generator=generator)]
        optimizer.zero_grad()
        F.mse_loss(read(frames[some]), wanted[some]).backward()
        optimizer.step()
        pace.step()
    net.eval()


def random_weights(
    config: Config, kind: LongMean, channels: int, size: tuple[int, int], seed: int = 0
) -> Model:
    """Our network before it has learned anything.

    For "locate" this is a centroid of the foreground's energy, since that is where learning begins.

    Example:
        >>> net = random_weights(Config(task="orient"), "clip", 1, (48, 48))
        >>> net.training, sum(p.numel() for p in net.parameters()) > 0
        (False, True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config, kind, channels, size).eval()
