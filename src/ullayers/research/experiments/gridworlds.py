"""Gridworlds: floor plans, random walks on them, their true eigenvectors, and scores against them.

A walker goes up, down, left or right with equal probability and stays where it is if there is a
wall. The transition matrix of this chain is symmetric, so every cell is visited equally often and
the eigenvectors are orthonormal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

# Heights and widths of the rooms, or the size of a maze, and a seed: of the first 200, the one that
# keeps the eigenvalues farthest apart, since vectors of nearly equal ones cannot be told apart
# from so many samples by any method. A square room has exactly equal ones.
ROOMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "GridRoom-1": ((20,), (20,), 0),
    "GridRoom-4": ((6, 10), (9, 14), 25),
    "GridRoom-16": ((4,) * 4, (4,) * 4, 123),
    "GridRoom-32": ((4,) * 8, (4,) * 4, 41),
    "GridRoom-64": ((4,) * 8, (4,) * 8, 144),
}
MAZES = {
    "GridMaze-9": (9, 63),
    "GridMaze-19": (19, 75),
    "GridMaze-26": (26, 59),
    "GridMaze-32": (32, 51),
}
NAMES = (*ROOMS, *MAZES)
EPISODE = 50  # steps
EQUAL = 1e-6  # eigenvalues that differ by less, relative to the larger, are equal
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True)
class Gridworld:
    """A floor plan.

    Attributes:
        name: of the world.
        walls: (height, width), True where nobody can stand.
    """

    name: str
    walls: NDArray[np.bool_]

    @cached_property
    def cells(self) -> Ints:
        """(states, 2), row and column of every free cell."""
        return np.argwhere(~self.walls)

    @cached_property
    def neighbours(self) -> Ints:
        """(states, 4), where each of the four actions leads."""
        number = np.full(self.walls.shape, -1)
        number[tuple(self.cells.T)] = np.arange(len(self.cells))
        ends = [number[tuple((self.cells + move).T)] for move in MOVES]
        here = np.arange(len(self.cells))
        return np.stack([np.where(end < 0, here, end) for end in ends], 1)

    @cached_property
    def coordinates(self) -> Floats:
        """(states, 2), x and y of every cell, scaled to [-1, 1]."""
        low, high = self.cells.min(0), self.cells.max(0)
        scaled: Floats = (2 * (self.cells - low) / (high - low) - 1)[:, ::-1]
        return np.ascontiguousarray(scaled)

    def pictures(self) -> Floats:
        """(states, 2, height, width), the walls and the agent seen from above."""
        n = len(self.cells)
        agent = np.zeros((n, *self.walls.shape))
        agent[np.arange(n), self.cells[:, 0], self.cells[:, 1]] = 1
        return np.stack([np.broadcast_to(self.walls, agent.shape), agent], 1).astype(np.float32)

    def chain(self) -> Floats:
        """(states, states), the transition probabilities."""
        n = len(self.cells)
        matrix = np.zeros((n, n))
        for ends in self.neighbours.T:
            matrix[np.arange(n), ends] += 1 / len(MOVES)
        return matrix

    def on_plan(self, values: Floats) -> Floats:
        """A value for each state as a picture (height, width), NaN where there are walls."""
        plan = np.full(self.walls.shape, np.nan)
        plan[tuple(self.cells.T)] = values
        return plan


def gridworld(name: str) -> Gridworld:
    """One of `NAMES`.

    >>> gridworld("GridRoom-16").walls.shape
    (21, 21)
    """
    walls = _rooms(*ROOMS[name]) if name in ROOMS else _maze(*MAZES[name])
    return Gridworld(name, walls)


def _rooms(heights: tuple[int, ...], widths: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Rooms in a grid: doors of one cell that link them all as a tree, and half of the others."""
    random = np.random.default_rng(seed)
    tops, lefts = (np.cumsum([0, *(side + 1 for side in sides)]) for sides in (heights, widths))
    walls = np.ones((tops[-1] + 1, lefts[-1] + 1), bool)
    for row, column in np.ndindex(len(heights), len(widths)):
        walls[tops[row] + 1 : tops[row + 1], lefts[column] + 1 : lefts[column + 1]] = False
    for (row, column), (below, right), in_tree in _links(len(heights), len(widths), random):
        beside = row == below
        along = 1 + random.integers(heights[row] if beside else widths[column])
        if in_tree or random.random() < 0.5:
            across, down = (tops[row] + along, lefts[right]), (tops[below], lefts[column] + along)
            walls[across if beside else down] = False
    return walls


def _maze(size: int, seed: int) -> NDArray[np.bool_]:
    """Corridors one cell wide, with one way between any two places; a side is odd."""
    random = np.random.default_rng(seed)
    places = size // 2
    walls = np.ones((2 * places + 1, 2 * places + 1), bool)
    walls[1::2, 1::2] = False
    for a, b, in_tree in _links(places, places, random):
        if in_tree:
            walls[a[0] + b[0] + 1, a[1] + b[1] + 1] = False
    return walls


Place = tuple[int, int]


def _links(
    down: int, across: int, random: np.random.Generator
) -> Iterator[tuple[Place, Place, bool]]:
    """Neighbours in a grid in random order, and whether their link is part of a spanning tree."""
    places = list(np.ndindex(down, across))
    pairs = [((r, c), (r, c + 1)) for r, c in places if c + 1 < across]
    pairs += [((r, c), (r + 1, c)) for r, c in places if r + 1 < down]
    group = {place: i for i, place in enumerate(places)}
    for i in random.permutation(len(pairs)):
        a, b = pairs[i]
        joins = group[a] != group[b]
        if joins:
            old = group[b]
            group.update({place: group[a] for place in places if group[place] == old})
        yield a, b, joins


def walk(world: Gridworld, samples: int, seed: int) -> Ints:
    """(episodes, `EPISODE`) states of a random walk; every episode starts anywhere."""
    random = np.random.default_rng(seed)
    states = np.empty((samples // EPISODE, EPISODE), np.int64)
    states[:, 0] = random.integers(len(world.cells), size=len(states))
    for t in range(1, EPISODE):
        actions = random.integers(len(MOVES), size=len(states))
        states[:, t] = world.neighbours[states[:, t - 1], actions]
    return states


def step_counts(states: Ints, n: int) -> Floats:
    """(n, n), how often the walk stepped between two states, both directions taken together."""
    flat = states[:, :-1].ravel() * n + states[:, 1:].ravel()
    counts = np.bincount(flat, minlength=n * n).reshape(n, n)
    return (counts + counts.T) / 2


@dataclass(frozen=True)
class Truth:
    """The slowest eigenvectors of a chain.

    Attributes:
        eigenvalues: (k,) of the transition matrix without the constant vector, descending.
        vectors: (states, k), orthonormal. k exceeds `count` where the last eigenvalue is multiple.
        count: how many are asked for.
    """

    eigenvalues: Floats
    vectors: Floats
    count: int

    def groups(self) -> list[Ints]:
        """Indices of the vectors, those of equal eigenvalue together."""
        speed = 1 - self.eigenvalues
        breaks = np.flatnonzero(np.diff(speed) > EQUAL * speed[1:]) + 1
        return np.split(np.arange(len(speed)), breaks)


def truth(world: Gridworld, count: int) -> Truth:
    """The `count` slowest eigenvectors beside the constant one."""
    values, vectors = np.linalg.eigh(world.chain())
    speed, vectors = 1 - values[::-1][1:], vectors[:, ::-1][:, 1:]
    k = int(np.sum(speed <= speed[count - 1] * (1 + EQUAL)))
    return Truth(1 - speed[:k], vectors[:, :k], count)


def slowest(outputs: Floats, counts: Floats, count: int) -> Floats:
    """The slowest linear combinations of a network's outputs, by one small eigenproblem.

    Args:
        outputs: (states, d) for every state.
        counts: (states, states), symmetric: how often the walk stepped from one to the other.
        count: how many combinations.

    Returns:
        (states, count); columns of zeros where the outputs span fewer directions.
    """
    found = np.zeros((len(outputs), count))
    if not np.isfinite(outputs).all():
        return found
    visits = counts.sum(1) / counts.sum()
    centred = outputs - visits @ outputs
    variance, axes = np.linalg.eigh(centred.T * visits @ centred)
    kept = variance > 1e-10 * max(variance[-1], 1e-30)
    white = centred @ (axes[:, kept] / np.sqrt(variance[kept]))
    kept_along = white.T @ (counts / counts.sum()) @ white
    combinations = np.linalg.eigh(kept_along)[1][:, ::-1][:, :count]
    found[:, : combinations.shape[1]] = white @ combinations
    return found


def cosines(found: Floats, true: Truth) -> Floats:
    """(count,), the absolute cosine of every vector found with the true one.

    Vectors of equal eigenvalue are only determined as a subspace; theirs are the cosines of the
    principal angles between the subspaces.
    """
    centred = found - found.mean(0)
    parts = []
    for group in true.groups():
        inside = group[group < true.count]
        basis = _orthonormal(centred[:, inside])
        parts.append(np.linalg.svd(true.vectors[:, group].T @ basis, compute_uv=False))
    return np.concatenate(parts)[: true.count]


def overlap(found: Floats, true: Truth) -> float:
    """The share of the space that was found that lies in the true one, 0 to 1."""
    basis = _orthonormal(found - found.mean(0))
    return float(np.sum((true.vectors.T @ basis) ** 2) / true.count)


def _orthonormal(vectors: Floats) -> Floats:
    """An orthonormal basis of the columns, with columns of zeros in place of missing directions."""
    left, size, _ = np.linalg.svd(vectors, full_matrices=False)
    basis: Floats = left * (size > 1e-8 * max(size[0], 1e-30))
    return basis
