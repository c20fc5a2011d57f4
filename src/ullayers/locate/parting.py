"""Dividing the pixels of a blob between several objects, and the axes of objects."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

EM_STEPS = 4
EM_PIXELS = 400  # of a blob that are used to divide it
MOST_TURN = 0.3  # radians: largest rotation of the axes of an object from frame to frame
ELLIPTIC = 0.9  # least share of its ellipse that an elliptic object fills
FIT_STEPS = 5
FIT_POINTS = 800  # points in and around a blob at which ellipses are compared with it
BORDER = 3  # pixels around a blob
SOFTNESS = 0.15  # of the radius of an ellipse: width of its soft edge
STRAY = 0.2  # of its length: standard deviation of an object from its predicted position
STRAY_TURN = 0.3  # radians: the same for its axes
UNLIKE = 0.005  # of its area: usual difference of an object from an ellipse
OVERLAP_GAIN = 0.25  # how far overlapping objects follow the pixels; 1 if they are separate

Floats = NDArray[np.float64]


class Parted(NamedTuple):
    """The objects of a blob.

    Attributes:
        places: (objects, 2) centroids x, y.
        spreads: (objects, 2, 2) covariances of their pixels.
        owner: (pixels,) the object of each pixel.
        known: (objects,) how well the pixels determine each position, from 0 to 1.
    """

    places: Floats
    spreads: Floats
    owner: NDArray[np.intp]
    known: Floats


def part_pixels(pixels: Floats, places: Floats, spreads: Floats, areas: Floats) -> Parted:
    """Divide the pixels of a blob between objects.

    Objects with the shape of an ellipse, like most animals seen from above, are fitted with one.

    Args:
        pixels: (pixels, 2) centres x, y of all pixels of a blob.
        places: (objects, 2) predicted positions of the objects.
        spreads: (objects, 2, 2) covariances of their pixels.
        areas: (objects,) their usual areas.
    """
    filled = areas / (4 * math.pi * np.sqrt(np.linalg.det(spreads)))
    if filled.min() > ELLIPTIC:
        return fit_ellipses(pixels, places, spreads)
    return mix_gaussians(pixels, places, spreads, areas)


def axes_of(spread: Floats) -> tuple[float, float, float]:
    """Return the variance along the longer and the shorter axis, and the angle of the longer."""
    (xx, xy), (_, yy) = spread.tolist()
    middle, half = (xx + yy) / 2, math.hypot((xx - yy) / 2, xy)
    return middle + half, middle - half, math.atan2(2 * xy, xx - yy) / 2


def _turned(lengths: Floats, axes: Floats, before: float) -> Floats:
    """Return a covariance as `with_axes_of` does, but with a limited rotation of its axes."""
    turn = (axes_of(axes)[2] - before + math.pi / 2) % math.pi - math.pi / 2
    return _with_angle(lengths, before + min(max(turn, -MOST_TURN), MOST_TURN))


def with_axes_of(lengths: Floats, axes: Floats) -> Floats:
    """Return a covariance with the eigenvalues of one matrix and the eigenvectors of another."""
    return _with_angle(lengths, axes_of(axes)[2])


def _with_angle(lengths: Floats, angle: float) -> Floats:
    """Return a covariance with the eigenvalues of a matrix and its longer axis at an angle."""
    longer, shorter = (max(value, 0.25) for value in axes_of(lengths)[:2])
    cosine, sine = math.cos(angle), math.sin(angle)
    mixed = (longer - shorter) * cosine * sine
    return np.array(
        [
            [longer * cosine**2 + shorter * sine**2, mixed],
            [mixed, longer * sine**2 + shorter * cosine**2],
        ]
    )


def separation(places: Floats, spreads: Floats) -> Floats:
    """Return how clearly each object is separated from the others that share its blob.

    It is 0 for an object at the position of another one, and 1 for one that hardly touches it.
    """
    apart = np.ones(len(places))
    for i, place in enumerate(places):
        for j, other in enumerate(places):
            if i != j:
                offset = other - place
                scaled = np.sqrt(offset @ np.linalg.solve(spreads[i] + spreads[j], offset))
                apart[i] = min(apart[i], scaled / 2)
    return apart


def mix_gaussians(pixels: Floats, places: Floats, spreads: Floats, areas: Floats) -> Parted:
    """Divide pixels between objects of known size by expectation maximisation.

    Args:
        pixels: (pixels, 2) positions x, y.
        places: (objects, 2) predicted positions of the objects.
        spreads: (objects, 2, 2) covariances of their pixels; their axes may rotate.
        areas: (objects,) their usual areas.

    Example:
        >>> left = np.random.default_rng(0).normal((0, 0), 1, (200, 2))
        >>> right = np.random.default_rng(1).normal((4, 0), 1, (200, 2))
        >>> both = np.concatenate([left, right])
        >>> start = np.array([(0.5, 0.5), (3.0, 0.0)])
        >>> places = mix_gaussians(both, start, np.stack([np.eye(2)] * 2), np.ones(2)).places
        >>> bool(np.abs(places - [(0, 0), (4, 0)]).max() < 0.3)
        True
    """
    some = pixels[:: max(1, len(pixels) // EM_PIXELS)]
    expected = places
    angles = [axes_of(each)[2] for each in spreads]
    for _ in range(EM_STEPS):
        chances = _chances(some, places, spreads, areas)
        weight = chances.sum(0)
        if weight.min() < 1:  # one of them is hidden, so the pixels do not show it
            break
        places = (chances.T @ some) / weight[:, None]
        offsets = some[None] - places[:, None]
        second = np.einsum("kp,kpi,kpj->kij", chances.T, offsets, offsets) / weight[:, None, None]
        second += 0.25 * np.eye(2)
        turned = zip(spreads, second, angles, strict=True)
        spreads = np.stack([_turned(*each) for each in turned])
    owner = _chances(pixels, places, spreads, areas).argmax(1)
    gains = np.maximum(separation(places, spreads), OVERLAP_GAIN)
    return Parted(expected + gains[:, None] * (places - expected), spreads, owner, gains)


def _chances(pixels: Floats, places: Floats, spreads: Floats, areas: Floats) -> Floats:
    offsets = pixels[None] - places[:, None]
    precision = np.linalg.inv(spreads)
    scaled = np.einsum("kpi,kij,kpj->kp", offsets, precision, offsets)
    logits = np.log(areas)[:, None] - 0.5 * np.log(np.linalg.det(spreads))[:, None] - scaled / 2
    logits -= logits.max(0)
    chances = np.exp(logits)
    shares: Floats = (chances / chances.sum(0)).T
    return shares


def fit_ellipses(pixels: Floats, places: Floats, spreads: Floats) -> Parted:
    """Divide pixels between objects: fit one ellipse of known size each, near its prediction.

    Args:
        pixels: (pixels, 2) centres x, y of all pixels of a blob.
        places: (objects, 2) predicted positions of the objects.
        spreads: (objects, 2, 2) covariances of their pixels; their axes may rotate.

    Example:
        >>> disc = np.argwhere(np.hypot(*np.mgrid[-4:5, -4:5]) < 4.5) + 0.5
        >>> both = np.unique(np.concatenate([disc, disc + [0, 6]]), axis=0)
        >>> start = np.array([(5.5, 5.0), (4.0, 10.0)])
        >>> places, _, owner, _ = fit_ellipses(both, start, np.stack([5.06 * np.eye(2)] * 2))
        >>> bool(np.abs(places - [(4.5, 4.5), (4.5, 10.5)]).max() < 0.3), len(owner) == len(both)
        (True, True)
    """
    grid, covered, weight = _grid(pixels)
    ellipses = [axes_of(each) for each in spreads]
    half = np.array([[2 * math.sqrt(max(value, 0.25)) for value in each[:2]] for each in ellipses])
    away = np.square(places[:, None] - pixels).sum(2)
    nearest = pixels[away.argmin(1)]
    start = np.where(away.min(1)[:, None] > 1, nearest, places)  # an object lies within its blob
    pose = np.column_stack([start, [each[2] for each in ellipses]])
    expected = pose.copy()
    # Prior: deviation from the predicted position and rotation.
    loose = np.column_stack([STRAY * 2 * half[:, :1]] * 2 + [np.full(len(half), STRAY_TURN)])
    prior = 1 / np.square(loose).ravel()
    weight /= UNLIKE * np.pi * float(np.mean(half.prod(1)))
    for _ in range(FIT_STEPS):
        inside, slopes = _coverage(grid, pose, half)
        outside = np.prod(1 - inside, axis=0)
        others = outside / np.maximum(1 - inside, 1e-6)
        jacobian = (others[:, None] * slopes).reshape(pose.size, -1)
        normal = weight * (jacobian @ jacobian.T) + np.diag(prior)
        wrong = covered - (1 - outside)
        pull = weight * (jacobian @ wrong) - prior * (pose - expected).ravel()
        step = np.linalg.solve(normal, pull).reshape(pose.shape)
        pose = pose + np.clip(step, -2 * loose, 2 * loose)
    known = 1 - np.diag(np.linalg.inv(normal)).reshape(pose.shape) * prior.reshape(pose.shape)
    found = np.stack([_with_angle(*each) for each in zip(spreads, pose[:, 2], strict=True)])
    owner = _radius(pixels, pose, half)[0].argmin(0)
    return Parted(pose[:, :2], found, owner, known[:, :2].mean(1).clip(0, 1))


def _grid(pixels: Floats) -> tuple[Floats, Floats, float]:
    """Return points in and around a blob, whether they are inside, and pixels per point."""
    low, high = pixels.min(0) - BORDER, pixels.max(0) + BORDER
    step = max(1, round(math.sqrt(float(np.prod(high - low + 1)) / FIT_POINTS)))
    x, y = (np.arange(low[i], high[i] + 0.5, step) for i in (0, 1))
    columns, rows = np.floor(pixels - low + 0.5).astype(int).T
    mask = np.zeros(np.floor(high - low + 1.5).astype(int)[::-1])
    mask[rows, columns] = 1
    grid = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    return grid, mask[::step, ::step].ravel(), float(step * step)


def _radius(points: Floats, pose: Floats, half: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the radius of points relative to ellipses (1 at the outline), and along axes.

    Args:
        points: (points, 2).
        pose: (objects, 3) x, y, angle.
        half: (objects, 2) half axes.
    """
    cosine, sine = np.cos(pose[:, 2:]), np.sin(pose[:, 2:])
    x, y = points[:, 0] - pose[:, :1], points[:, 1] - pose[:, 1:2]
    along, across = (x * cosine + y * sine), (y * cosine - x * sine)
    radius = np.sqrt(np.square(along / half[:, :1]) + np.square(across / half[:, 1:]))
    return np.maximum(radius, 1e-6), along, across


def _coverage(points: Floats, pose: Floats, half: Floats) -> tuple[Floats, Floats]:
    """Return (objects, points) coverage of points, and its derivatives by x, y and angle."""
    radius, along, across = _radius(points, pose, half)
    inside = 1 / (1 + np.exp(np.clip((radius - 1) / SOFTNESS, -30, 30)))
    cosine, sine = np.cos(pose[:, 2:]), np.sin(pose[:, 2:])
    first, second = along / np.square(half[:, :1]), across / np.square(half[:, 1:])
    slopes = np.stack(
        [
            first * cosine - second * sine,
            first * sine + second * cosine,
            first * -across + second * along,
        ],
        axis=1,
    )
    return inside, slopes / radius[:, None] * (inside * (1 - inside) / SOFTNESS)[:, None]
