"""Gridworlds: floor plans, random walks, true eigenvectors, and scores against them.

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

# Heights and widths of the rooms, or the size of a maze, and a seed. Of the first 200 seeds it is
# the one with the widest gaps between eigenvalues, since no method can separate vectors of nearly
# equal eigenvalues with this number of samples. A square room has exactly equal ones.
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
EQUAL = 1e-6  # relative difference below which eigenvalues count as equal
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True)
class Gridworld:
    """A floor plan.

    Attributes:
        name: Name of the world.
        walls: Whether each cell is a wall, (height, width).
    """

    name: str
    walls: NDArray[np.bool_]

    @cached_property
    def cells(self) -> Ints:
        """Row and column of every free cell, (states, 2)."""
        return np.argwhere(~self.walls)

    @cached_property
    def neighbours(self) -> Ints:
        """Next state of each of the four actions, (states, 4)."""
        number = np.full(self.walls.shape, -1)
        number[tuple(self.cells.T)] = np.arange(len(self.cells))
        ends = [number[tuple((self.cells + move).T)] for move in MOVES]
        here = np.arange(len(self.cells))
        return np.stack([np.where(end < 0, here, end) for end in ends], 1)

    @cached_property
    def coordinates(self) -> Floats:
        """Coordinates x and y of every cell, scaled to [-1, 1], (states, 2)."""
        low = self.cells.min(0)
        high = self.cells.max(0)
        scaled: Floats = (2 * (self.cells - low) / (high - low) - 1)[:, ::-1]
        return np.ascontiguousarray(scaled)

    def pictures(self) -> Floats:
        """Return walls and agent seen from above, (states, 2, height, width)."""
        n = len(self.cells)
        agent = np.zeros((n, *self.walls.shape))
        agent[np.arange(n), self.cells[:, 0], self.cells[:, 1]] = 1
        return np.stack([np.broadcast_to(self.walls, agent.shape), agent], 1).astype(np.float32)

    def chain(self) -> Floats:
        """Return the transition probabilities, (states, states)."""
        n = len(self.cells)
        matrix = np.zeros((n, n))
        for ends in self.neighbours.T:
            matrix[np.arange(n), ends] += 1 / len(MOVES)
        return matrix

    def on_plan(self, values: Floats) -> Floats:
        """Return one value per state as a picture (height, width), NaN for walls."""
        plan = np.full(self.walls.shape, np.nan)
        plan[tuple(self.cells.T)] = values
        return plan


def gridworld(name: str) -> Gridworld:
    """Return one of the worlds `NAMES`.

    >>> gridworld("GridRoom-16").walls.shape
    (21, 21)
    """
    walls = _rooms(*ROOMS[name]) if name in ROOMS else _maze(*MAZES[name])
    return Gridworld(name, walls)


def _rooms(heights: tuple[int, ...], widths: tuple[int, ...], seed: int) -> NDArray[np.bool_]:
    """Return rooms in a grid, with one-cell doors along a spanning tree and half of the others."""
    random = np.random.default_rng(seed)
    tops = np.cumsum([0, *(height + 1 for height in heights)])
    lefts = np.cumsum([0, *(width + 1 for width in widths)])
    walls = np.ones((tops[-1] + 1, lefts[-1] + 1), bool)
    for row, column in np.ndindex(len(heights), len(widths)):
        walls[tops[row] + 1 : tops[row + 1], lefts[column] + 1 : lefts[column + 1]] = False
    for (row, column), (below, right), in_tree in _links(len(heights), len(widths), random):
        in_same_row = row == below
        along = 1 + random.integers(heights[row] if in_same_row else widths[column])
        if not in_tree and random.random() >= 0.5:
            continue
        if in_same_row:
            walls[tops[row] + along, lefts[right]] = False
        else:
            walls[tops[below], lefts[column] + along] = False
    return walls


def _maze(size: int, seed: int) -> NDArray[np.bool_]:
    """Return one-cell corridors with a single path between any two cells; sides are odd."""
    random = np.random.default_rng(seed)
    nodes = size // 2
    walls = np.ones((2 * nodes + 1, 2 * nodes + 1), bool)
    walls[1::2, 1::2] = False
    for a, b, in_tree in _links(nodes, nodes, random):
        if in_tree:
            walls[a[0] + b[0] + 1, a[1] + b[1] + 1] = False
    return walls


Node = tuple[int, int]


def _links(
    rows: int, columns: int, random: np.random.Generator
) -> Iterator[tuple[Node, Node, bool]]:
    """Yield neighbours in a grid in random order, and whether a spanning tree links them."""
    nodes = list(np.ndindex(rows, columns))
    pairs = [((r, c), (r, c + 1)) for r, c in nodes if c + 1 < columns]
    pairs += [((r, c), (r + 1, c)) for r, c in nodes if r + 1 < rows]
    group = {node: i for i, node in enumerate(nodes)}
    for i in random.permutation(len(pairs)):
        a, b = pairs[i]
        joins = group[a] != group[b]
        if joins:
            old = group[b]
            group.update({node: group[a] for node in nodes if group[node] == old})
        yield a, b, joins


def walk(world: Gridworld, samples: int, seed: int) -> Ints:
    """Return states (episodes, `EPISODE`) of a random walk; episodes start anywhere."""
    random = np.random.default_rng(seed)
    states = np.empty((samples // EPISODE, EPISODE), np.int64)
    states[:, 0] = random.integers(len(world.cells), size=len(states))
    for t in range(1, EPISODE):
        actions = random.integers(len(MOVES), size=len(states))
        states[:, t] = world.neighbours[states[:, t - 1], actions]
    return states


def step_counts(states: Ints, n: int) -> Floats:
    """Return how often the walk stepped between two states in either direction, (n, n)."""
    flat = states[:, :-1].ravel() * n + states[:, 1:].ravel()
    counts = np.bincount(flat, minlength=n * n).reshape(n, n)
    return (counts + counts.T) / 2


@dataclass(frozen=True)
class Truth:
    """The slowest eigenvectors of a chain.

    Attributes:
        eigenvalues: Eigenvalues (k,) of the transition matrix, descending, without that of the
            constant vector.
        vectors: Orthonormal eigenvectors (states, k); k exceeds `count` if the last eigenvalue is
            degenerate.
        count: Number of eigenvectors to find.
    """

    eigenvalues: Floats
    vectors: Floats
    count: int

    def groups(self) -> list[Ints]:
        """Return the indices of the vectors, grouped by equal eigenvalue."""
        speed = 1 - self.eigenvalues
        breaks = np.flatnonzero(np.diff(speed) > EQUAL * speed[1:]) + 1
        return np.split(np.arange(len(speed)), breaks)


def truth(world: Gridworld, count: int) -> Truth:
    """Return the `count` slowest eigenvectors except for the constant one."""
    values, vectors = np.linalg.eigh(world.chain())
    speed = 1 - values[::-1][1:]
    vectors = vectors[:, ::-1][:, 1:]
    k = int(np.sum(speed <= speed[count - 1] * (1 + EQUAL)))
    return Truth(1 - speed[:k], vectors[:, :k], count)


def slowest(outputs: Floats, counts: Floats, count: int) -> Floats:
    """Return the slowest linear combinations of a network's outputs, by a small eigenproblem.

    Args:
        outputs: Outputs (states, d) for every state.
        counts: Symmetric counts of steps between states, (states, states).
        count: Number of combinations.

    Returns:
        Combinations (states, count); columns of zeros if the outputs span fewer directions.
    """
    found = np.zeros((len(outputs), count))
    if not np.isfinite(outputs).all():
        return found
    visits = counts.sum(1) / counts.sum()
    centred = outputs - visits @ outputs
    variance, axes = np.linalg.eigh(centred.T * visits @ centred)
    kept = variance > 1e-10 * max(variance[-1], 1e-30)
    white = centred @ (axes[:, kept] / np.sqrt(variance[kept]))
    correlations = white.T @ (counts / counts.sum()) @ white  # of consecutive states
    combinations = np.linalg.eigh(correlations)[1][:, ::-1][:, :count]
    found[:, : combinations.shape[1]] = white @ combinations
    return found


def cosines(found: Floats, true: Truth) -> Floats:
    """Return the absolute cosine of every vector with the true one, (count,).

    Vectors of equal eigenvalue are determined as a subspace only; for them, the cosines of the
    principal angles between the subspaces are returned.
    """
    centred = found - found.mean(0)
    parts = []
    for group in true.groups():
        inside = group[group < true.count]
        basis = _orthonormal(centred[:, inside])
        parts.append(np.linalg.svd(true.vectors[:, group].T @ basis, compute_uv=False))
    return np.concatenate(parts)[: true.count]


def overlap(found: Floats, true: Truth) -> float:
    """Return the share of the found space that lies in the true one, from 0 to 1."""
    basis = _orthonormal(found - found.mean(0))
    return float(np.sum((true.vectors.T @ basis) ** 2) / true.count)


def _orthonormal(vectors: Floats) -> Floats:
    """Return an orthonormal basis of the columns, with zeros for missing directions."""
    left, size, _ = np.linalg.svd(vectors, full_matrices=False)
    basis: Floats = left * (size > 1e-8 * max(size[0], 1e-30))
    return basis
