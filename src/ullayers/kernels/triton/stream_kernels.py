"""One frame of a single stream on a GPU: Eq. 6-11 in Triton.

For single frames, time is spent on kernel launches and on pivots that wait for each other.
Everything is computed in float64, as on a CPU. W and B are split into square tiles and solved in
parallel by Gauss-Jordan elimination of whole tiles: one launch for every tile on the diagonal, and
one at the end, which alone writes the layer's buffers.

Of a tile on the diagonal, L L^T, the inverse root L^-1 is stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ullayers.kernels.triton.inverse_kernels import inverse_root_in_blocks, less, times_root


@triton.jit
def exact(rate, keep):
    """Return a rate and one minus the rate in float64, computed from the smaller of the two."""
    rate, keep = tl.cast(rate, tl.float64), tl.cast(keep, tl.float64)
    return tl.where(rate > 0.5, 1 - keep, rate), tl.where(rate > 0.5, keep, 1 - rate)


@triton.jit
def pair(value, rest, at, inside):
    """Return value plus rest; the rest is ignored if the user has set the value."""
    v, r = tl.load(value + at, mask=inside, other=0.0), tl.load(rest + at, mask=inside, other=0.0)
    return v.to(tl.float64) + tl.where(v + r == v, r, 0.0).to(tl.float64)


@triton.jit
def write_pair(value, rest, at, exactly, mask):
    """Store a value and its rounding error in two buffers."""
    v = exactly.to(tl.float32)
    tl.store(value + at, v, mask=mask)
    tl.store(rest + at, (exactly - v).to(tl.float32), mask=mask)


@triton.jit
def fitting(value, dtype: tl.constexpr):
    """Convert to a narrower dtype; values too large for it become zero instead of infinite."""
    narrow = value.to(dtype)
    return tl.where(tl.abs(narrow.to(tl.float32)) < float("inf"), narrow, 0.0)


@triton.jit
def lag_behind(mean, rest, x, share, goes_on, c, inside):
    """Return frame minus moving average after the frame; `share` is what the lag keeps."""
    return (x - tl.where(goes_on, pair(mean, rest, c, inside), 0.0)) * share


@triton.jit
def grow(evidence, goes_on, known, rate, keep):
    """Return the evidence of a mean before and after a frame, and the share its lag keeps."""
    seen = tl.where(goes_on, tl.load(evidence).to(tl.float64), known)
    grown = keep * seen + rate
    return seen, grown, keep * seen / grown


@triton.jit
def spread(value, rest, deviation, held, brought, c, inside, D: tl.constexpr):
    """Return the diagonal of a covariance after the step, times its evidence."""
    return held * pair(value, rest, c * (D + 1), inside) + brought * deviation * deviation


@triton.jit
def pull_share(before, after, frame_weight, jump, smallest):
    """Return the share of the pull that a step keeps; see `covariance.pull_share`."""
    jumps = after > (1 + jump * frame_weight) * before
    share = tl.where(jumps, tl.sqrt(before / after), 1.0)
    return tl.where(share < smallest, 0.0, share)


@triton.jit
def frame_numbers(
    y, short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence, long_evidence,
    short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence, ridges, steps, goes_on,
    largest, known, mu, mu_keep, eps, eps_keep, mu_period, eps_period, high, low, noise, jump,
    smallest_share, which, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return all numbers that the step of W or B needs apart from the covariance itself."""
    c = tl.arange(0, WIDTH)
    inside = c < D
    x = tl.load(y + c, mask=inside, other=0.0).to(tl.float32)
    usable = tl.sum((~(tl.abs(x) <= largest)).to(tl.int32), 0) == 0
    x = tl.where(usable, x, 0.0).to(tl.float64)
    mu, mu_keep = exact(mu, mu_keep)
    eps, eps_keep = exact(eps, eps_keep)
    seen, grown, share = grow(short_evidence, goes_on, known, mu, mu_keep)
    _, longer, long_share = grow(long_evidence, goes_on, known, eps, eps_keep)
    counted, is_w = usable & (seen > 0), which == 0
    within = lag_behind(short_mean, short_mean_rest, x, share, goes_on, c, inside)
    far = lag_behind(long_mean, long_mean_rest, x, long_share, goes_on, c, inside)
    w_seen = tl.load(cov_evidence).to(tl.float64)
    b_seen = tl.load(cov_evidence + 1).to(tl.float64)
    w_held, w_brought = tl.where(counted, mu_keep * w_seen, w_seen), tl.where(counted, mu, 0.0)
    b_held, b_brought = tl.where(counted, eps_keep * b_seen, b_seen), tl.where(counted, eps, 0.0)
    w_spread = spread(short_cov, short_cov_rest, within, w_held, w_brought, c, inside, D)
    b_spread = spread(long_cov, long_cov_rest, far - within, b_held, b_brought, c, inside, D)
    w_trace, b_trace = tl.sum(w_spread, 0), tl.sum(b_spread, 0)
    w_before = w_seen * tl.sum(pair(short_cov, short_cov_rest, c * (D + 1), inside), 0)
    b_before = b_seen * tl.sum(pair(long_cov, long_cov_rest, c * (D + 1), inside), 0)
    b_weight = tl.maximum(b_held + b_brought, 1e-300)
    size_before, size_after = b_before / tl.maximum(b_seen, 1e-300), b_trace / b_weight
    kept = pull_share(size_before, size_after, eps / b_weight, jump, smallest_share)
    held, brought = tl.where(is_w, w_held, b_held), tl.where(is_w, w_brought, b_brought)
    trace, other = tl.where(is_w, w_trace, b_trace), tl.where(is_w, b_trace, w_trace)
    other /= tl.where(is_w, b_weight, tl.maximum(w_held + w_brought, 1e-300))
    renews = tl.load(steps) % tl.where(is_w, mu_period, eps_period) == 0
    ridge = high * tl.where(is_w, w_before, b_before)
    ridge = tl.where(renews, ridge, tl.load(ridges + which).to(tl.float64))
    ridge = tl.where(counted, tl.where(is_w, mu_keep, eps_keep) * ridge, ridge)
    level = tl.maximum(tl.maximum(ridge, low * trace), noise * other * (held + brought))
    level = tl.where(trace > 0, level, 1.0)
    evidence, solvable = tl.where(is_w, grown, longer), counted & (trace > 0)
    return (
        usable, counted, solvable, share, long_share, held, brought, ridge, level, evidence, kept
    )  # fmt: skip


@triton.jit
def frame_begin(
    y, short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence, long_evidence,
    short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence, ridge_level, steps, continues,
    matrices, scratch, inverses, roots, vectors, halves, notes, flags, bad, largest, known,
    mu, mu_keep, eps, eps_keep, mu_period, eps_period, high, low, noise, jump, smallest_share,
    CARRY: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
    PIVOT: tl.constexpr,
):  # fmt: skip
    """Compute one tile of W or B after the frame, with ridge and scaled; L^-1 of the first tile.

    `vectors` receives, for W and for B: the right-hand side, the scales, and the deviation.
    """
    TILES: tl.constexpr = WIDTH // TILE
    place, which = tl.program_id(0), tl.program_id(1)
    goes_on, is_w = (tl.load(continues) != 0) & CARRY, which == 0
    usable, counted, solvable, share, long_share, held, brought, ridge, level, evidence, kept = (
        frame_numbers(
            y, short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence,
            long_evidence, short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence,
            ridge_level, steps, goes_on, largest, known, mu, mu_keep, eps, eps_keep, mu_period,
            eps_period, high, low, noise, jump, smallest_share, which, D, WIDTH,
        )
    )  # fmt: skip
    value, rest = short_cov, short_cov_rest
    if which == 1:
        value, rest = long_cov, long_cov_rest
    row = (place // TILES) * TILE + tl.arange(0, TILE)
    column = (place % TILES) * TILE + tl.arange(0, TILE)
    row_in, column_in = row < D, column < D
    rows = tile_part(
        y, short_mean, short_mean_rest, long_mean, long_mean_rest, usable, goes_on, share,
        long_share, is_w, row, row_in,
    )  # fmt: skip
    columns = tile_part(
        y, short_mean, short_mean_rest, long_mean, long_mean_rest, usable, goes_on, share,
        long_share, is_w, column, column_in,
    )  # fmt: skip
    row_spread = spread(value, rest, rows, held, brought, row, row_in, D) + level
    column_spread = spread(value, rest, columns, held, brought, column, column_in, D) + level
    row_scale = tl.where(row_in & (row_spread > 0), tl.rsqrt(row_spread), 1.0)
    column_scale = tl.where(column_in & (column_spread > 0), tl.rsqrt(column_spread), 1.0)
    filled = row_in[:, None] & column_in[None, :]
    old = pair(value, rest, row[:, None] * D + column[None, :], filled)
    tile = held * old + brought * rows[:, None] * columns[None, :]
    tile = tile * row_scale[:, None] * column_scale[None, :]
    tile = tl.where(row[:, None] == column[None, :], 1.0, tile)
    cells = row[:, None] * WIDTH + column[None, :]
    tl.store(matrices + which * WIDTH * WIDTH + cells, tile)
    if place % TILES == 0:
        vector = vectors + which * 3 * WIDTH + row
        tl.store(vector, row_scale * rows)
        tl.store(vector + WIDTH, row_scale)
        tl.store(vector + 2 * WIDTH, rows)
    if place == 0:
        put = notes + which * 4
        tl.store(put, held)
        tl.store(put + 1, brought)
        tl.store(put + 2, ridge)
        tl.store(put + 3, evidence)
        tl.store(notes + 8, kept)
        tl.store(flags, usable.to(tl.int32))
        tl.store(flags + 1, counted.to(tl.int32))
        tl.store(flags + 2 + which, solvable.to(tl.int32))
        put_root(
            tile, row_scale * rows, scratch, inverses, roots, halves, bad, which, 0, TILES, TILE,
            PIVOT,
        )  # fmt: skip


@triton.jit
def tile_part(
    y, short_mean, short_mean_rest, long_mean, long_mean_rest, usable, goes_on, share, long_share,
    is_w, c, inside,
):  # fmt: skip
    """Return some entries of the deviation that enters W or B."""
    x = tl.where(usable, tl.load(y + c, mask=inside, other=0.0).to(tl.float32), 0.0).to(tl.float64)
    within = lag_behind(short_mean, short_mean_rest, x, share, goes_on, c, inside)
    far = lag_behind(long_mean, long_mean_rest, x, long_share, goes_on, c, inside)
    return tl.where(is_w, within, far - within)


@triton.jit
def put_root(
    tile, rows, scratch, inverses, roots, halves, bad, which, j, TILES: tl.constexpr,
    TILE: tl.constexpr, PIVOT: tl.constexpr,
):  # fmt: skip
    """Store L^-1 of a tile on the diagonal, and its product with the tile's right-hand side."""
    at, c = which * TILES + j, tl.arange(0, TILE)
    to, size = inverses + at * TILE * TILE, TILE * TILE
    room = roots + which * PIVOT * PIVOT
    least = inverse_root_in_blocks(tile, scratch + which * size, to, room, c, TILE, PIVOT)
    inverse = tl.load(to + c[:, None] * TILE + c[None, :])
    tl.store(halves + at * TILE + c, tl.sum(inverse * tl.expand_dims(rows, 0), 1))
    tl.store(bad + at, tl.where(least > 0, 0, 1))


@triton.jit
def frame_step(
    matrices, scratch, inverses, roots, vectors, halves, bad, j,
    TILE: tl.constexpr, WIDTH: tl.constexpr, PIVOT: tl.constexpr,
):  # fmt: skip
    """Eliminate the j-th row of tiles from one tile of another row; compute the next L^-1."""
    TILES: tl.constexpr = WIDTH // TILE
    which, right = tl.program_id(1), TILES - 1 - j
    i, k = tl.program_id(0) // right, j + 1 + tl.program_id(0) % right
    i += (i >= j).to(tl.int32)
    c = tl.arange(0, TILE)
    matrix, vector = matrices + which * WIDTH * WIDTH, vectors + which * 3 * WIDTH
    inner, cells = c[:, None] * TILE + c[None, :], c[:, None] * WIDTH + c[None, :]
    root = tl.load(inverses + (which * TILES + j) * TILE * TILE + inner)
    left = tl.load(matrix + (i * WIDTH + j) * TILE + cells)
    above = tl.load(matrix + (j * WIDTH + k) * TILE + cells)
    here = matrix + (i * WIDTH + k) * TILE + cells
    x = times_root(left, root)
    tile = less(tl.load(here), x, times_root(tl.trans(above), root))
    tl.store(here, tile)
    if k == j + 1:
        half = tl.load(halves + (which * TILES + j) * TILE + c)
        rows = tl.load(vector + i * TILE + c) - tl.sum(x * half[None, :], 1)
        tl.store(vector + i * TILE + c, rows)
        if i == k:
            put_root(
                tile, rows, scratch, inverses, roots, halves, bad, which, k, TILES, TILE, PIVOT
            )


@triton.jit
def solved(
    matrices, inverses, vectors, halves, bad, which, i, TILES: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Return some rows of the solution, after eliminating the last row of tiles."""
    WIDTH: tl.constexpr = TILES * TILE
    LAST: tl.constexpr = TILES - 1
    c = tl.arange(0, TILE)
    inner, cells = c[:, None] * TILE + c[None, :], c[:, None] * WIDTH + c[None, :]
    inverse = inverses + which * TILES * TILE * TILE
    half = tl.load(halves + (which * TILES + LAST) * TILE + c)
    root = tl.load(inverse + i * TILE * TILE + inner)
    if i < LAST:
        last = tl.load(inverse + LAST * TILE * TILE + inner)
        end = tl.sum(last * tl.expand_dims(half, 1), 0)
        left = tl.load(matrices + which * WIDTH * WIDTH + (i * WIDTH + LAST) * TILE + cells)
        rows = tl.load(vectors + which * 3 * WIDTH + i * TILE + c)
        rows -= tl.sum(left * tl.expand_dims(end, 0), 1)
        half = tl.sum(root * tl.expand_dims(rows, 0), 1)
    x = tl.sum(root * tl.expand_dims(half, 1), 0)
    failed = tl.zeros([], tl.int32)
    for tile in tl.static_range(TILES):
        failed += tl.load(bad + which * TILES + tile)
    return x * tl.load(vectors + which * 3 * WIDTH + WIDTH + i * TILE + c), failed


@triton.jit
def frame_end(
    y, gradient, short_mean, short_mean_rest, long_mean, long_mean_rest, short_evidence,
    long_evidence, short_cov, short_cov_rest, long_cov, long_cov_rest, cov_evidence, ridge_level,
    pull, steps, left_out, continues, matrices, inverses, vectors, halves, notes, flags, bad,
    eps, eps_keep, scale, CENTRED: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradient (Eq. 11) and write all buffers of the layer, one tile per program."""
    TILES: tl.constexpr = WIDTH // TILE
    place, which = tl.program_id(0), tl.program_id(1)
    row = (place // TILES) * TILE + tl.arange(0, TILE)
    column = (place % TILES) * TILE + tl.arange(0, TILE)
    note = notes + which * 4
    held, brought, usable = tl.load(note), tl.load(note + 1), tl.load(flags) > 0
    after, entered = held + brought, vectors + which * 3 * WIDTH + 2 * WIDTH
    cells, filled = row[:, None] * D + column[None, :], (row < D)[:, None] & (column < D)[None, :]
    value, rest = short_cov, short_cov_rest
    if which == 1:
        value, rest = long_cov, long_cov_rest
    total = held * pair(value, rest, cells, filled)
    total += brought * tl.load(entered + row)[:, None] * tl.load(entered + column)[None, :]
    write_pair(value, rest, cells, total / tl.maximum(after, 1e-300), filled & usable)
    if place == 0:
        tl.store(cov_evidence + which, after.to(tl.float32), mask=usable)
        tl.store(ridge_level + which, tl.load(note + 2).to(tl.float32), mask=usable)
    if (which == 0) & (place % TILES == 0):
        i, inside = place // TILES, row < D
        w, w_failed = solved(matrices, inverses, vectors, halves, bad, 0, i, TILES, TILE)
        b, b_failed = solved(matrices, inverses, vectors, halves, bad, 1, i, TILES, TILE)
        w_taken = (tl.load(flags + 2) > 0) & (w_failed == 0)
        b_taken = (tl.load(flags + 3) > 0) & (b_failed == 0)
        g = tl.where(w_taken, after * w, 0.0)
        g -= tl.where(b_taken, (tl.load(notes + 4) + tl.load(notes + 5)) * b, 0.0)
        counted = tl.load(flags + 1) > 0
        if CENTRED:
            rate, keep = exact(eps, eps_keep)
            keep *= tl.load(notes + 8)
            drift = keep * tl.load(pull + row, mask=inside, other=0.0).to(tl.float64) + rate * g
            g = tl.where(counted, g - drift, 0.0)
            tl.store(pull + row, fitting(drift, tl.float32), mask=inside & counted)
        tl.store(gradient + row, fitting(g * scale, gradient.dtype.element_ty), mask=inside)
        x = tl.load(y + row, mask=inside, other=0.0).to(tl.float32).to(tl.float64)
        within = tl.load(entered + row)
        far = within + tl.load(entered + 3 * WIDTH + row)
        write_pair(short_mean, short_mean_rest, row, x - within, inside & usable)
        write_pair(long_mean, long_mean_rest, row, x - far, inside & usable)
        if place == 0:
            tl.store(short_evidence, tl.load(notes + 3).to(tl.float32), mask=usable)
            tl.store(long_evidence, tl.load(notes + 7).to(tl.float32), mask=usable)
            tl.store(steps, tl.load(steps) + 1, mask=usable)
            failures = (w_failed > 0).to(tl.int64) + (b_failed > 0).to(tl.int64)
            tl.store(left_out, tl.load(left_out) + 1, mask=~usable)
            tl.store(left_out + 1, tl.load(left_out + 1) + failures, mask=usable)
            tl.store(continues, usable | True)
