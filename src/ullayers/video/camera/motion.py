"""Camera motion: the path of the camera, the background along it, and the foreground.

A shift between two frames is accepted only if it explains the image clearly better than no shift,
so a static camera counts as static however much moves in front of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CANDIDATES = 4  # peaks of the phase correlation to try
MAX_RESIDUAL_RATIO = 0.9  # a shift must reduce the median residual at least to this share
MAX_SHIFT = 0.25  # largest shift between two frames, as a share of the image's sides
REFINEMENTS = (0.5, 0.25, 0.1)  # step sizes in pixels
SAMPLE_INTERVAL = 16  # frames between the pairs compared first, to see if the camera moves at all
PAIRS_AT_ONCE = 64  # pairs of frames compared in one batch
VALUES_AT_ONCE = 2**16  # for few small frames, several shifts are compared in one batch
CHECK_INTERVAL = 4  # frames between checks whether a still live camera has moved
MEDIAN_FRAMES = 128  # number of frames that is enough for a median
# Largest change of a live background from frame to frame, in levels of 255. It falls with the
# number of frames, from the first to the last value.
FIRST_STEP, LAST_STEP = 64.0, 0.5
CODEC_NOISE = 4.5 / 255  # smaller changes from frame to frame are noise of the codec
KEY_FRAME_CHANGE = 24 / 255  # a key frame may differ by this much from the frames before it, once
MOTION_WINDOW = 8  # frames in which something that moves changes more than once
HOLD = 64.0  # times slower under an object that was found
OUTLINE = 5  # pixels: width of the square with which the outline of an object is widened
VACATED = 0.2  # surplus of edges in the background, from -1 to 1: more where an object has left


def camera_path(frames: Tensor) -> Tensor:
    """Estimate the shift of the background since the first frame.

    Args:
        frames: (time, channels, height, width) consecutive frames, floating point.

    Returns:
        (time, 2) shifts down and to the right, in pixels; zeros for a static camera.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> scene = torch.rand(1, 3, 40, 60)
        >>> frames = torch.cat([scene[..., 5:45], scene[..., 3:43]])  # moves to the right
        >>> camera_path(frames).round().tolist()
        [[0.0, 0.0], [0.0, 2.0]]
    """
    if frames.ndim != 4 or not frames.is_floating_point():
        raise ValueError(
            "expected floating point frames (time, channels, height, width), got "
            f"{frames.dtype} {tuple(frames.shape)}"
        )
    if len(frames) < 2 or _stands_still(frames):
        return frames.new_zeros(len(frames), 2)
    shifts = [frames.new_zeros(1, 2)]
    for start in range(0, len(frames) - 1, PAIRS_AT_ONCE):
        end = start + PAIRS_AT_ONCE
        shifts.append(_shifts(frames[start:end], frames[start + 1 : end + 1]))
    return torch.cat(shifts).cumsum(0)


def find_path(frames: Tensor) -> Tensor | None:
    """Return the camera's path if it explains all frames clearly better than a static camera.

    Single pairs of frames can mislead (after a flash, for example), and their errors add up along
    the path. Comparing all frames with one background reveals such errors.

    Args:
        frames: (time, channels, height, width) consecutive frames, floating point.

    Returns:
        (time, 2) as from `camera_path`, or None for a static camera.

    Example:
        >>> import torch
        >>> find_path(torch.rand(1, 3, 40, 60).repeat(8, 1, 1, 1)) is None
        True
    """
    path = camera_path(frames)
    if not bool((path != 0).any()):
        return None
    some = _median_sample(frames)
    static = foreground(frames[some], backdrop(frames))
    moving = foreground(frames[some], backdrop(frames, path), path[some])
    better = _median_energy(moving) < MAX_RESIDUAL_RATIO * _median_energy(static)
    return path if bool(better) else None


def backdrop(frames: Tensor, path: Tensor | None = None) -> Tensor:
    """Return the background: the median of the frames along the camera's path.

    Args:
        frames: (time, channels, height, width) frames, floating point.
        path: The path from `camera_path`; None for a static camera.

    Returns: (channels, height, width), enlarged on all sides by the motion of the camera; NaN where
    no frame shows the background.

    Example:
        >>> import torch
        >>> frames = torch.zeros(5, 1, 4, 4)
        >>> frames[2, 0, 1, 1] = 1.0  # seen once only
        >>> float(backdrop(frames).max())
        0.0
    """
    some = _median_sample(frames)
    if path is None or not bool((path != 0).any()):
        return frames[some].median(0).values
    down, right = (path.amax(0) - path.amin(0)).ceil().int().tolist()
    canvas = F.pad(frames[some], (right, right, down, down), value=torch.nan)
    return _moved(canvas, -path[some]).nanmedian(0).values


def foreground(frames: Tensor, behind: Tensor, path: Tensor | None = None) -> Tensor:
    """Return the difference between frames and their background.

    Args:
        frames: (time, channels, height, width) frames, floating point.
        behind: The background from `backdrop`.
        path: The camera's path for these frames; None for a static camera.

    Returns:
        A tensor of the shape of the frames; zero where the background is unknown.

    Example:
        >>> import torch
        >>> frames = torch.zeros(5, 1, 4, 4)
        >>> frames[2, 0, 1, 1] = 1.0
        >>> foreground(frames, backdrop(frames)).sum((1, 2, 3)).tolist()
        [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    if behind.shape == frames.shape[1:]:
        return torch.nan_to_num(frames - behind)
    if path is None:
        raise ValueError("expected the camera's path with a background larger than the frames")
    height, width = frames.shape[-2:]
    down = (behind.shape[-2] - height) // 2
    right = (behind.shape[-1] - width) // 2
    seen = _moved(behind.expand(len(frames), -1, -1, -1), path)
    return torch.nan_to_num(frames - seen[..., down : down + height, right : right + width])


def shows_motion(seen: Tensor) -> bool:
    """Return whether the change exceeds the noise of encoding a still image.

    Args:
        seen: (time, channels, height, width) from `foreground`, of frames with values from 0 to 1.

    Example:
        >>> import torch
        >>> seen = torch.zeros(9, 1, 4, 4)
        >>> shows_motion(seen)
        False
        >>> seen[3, 0, 1, 1] = 1.0
        >>> shows_motion(seen)
        True
    """
    if float(seen.abs().max()) > KEY_FRAME_CHANGE:
        return True
    changed = seen.diff(dim=0).abs().flatten(1).amax(1) > CODEC_NOISE
    window = min(MOTION_WINDOW, len(changed))
    return bool((changed.float().unfold(0, window, 1).sum(1) > 1).any())


class LiveBackdrop:
    """Background of a stream of frames that arrive one at a time.

    Each pixel follows the frames in small steps, like a running median: passing objects leave no
    trace, and objects that stay become background; held objects do so only after a long time. The
    background moves with the camera.

    Example:
        >>> import torch
        >>> live = LiveBackdrop()
        >>> frame = torch.full((1, 8, 8), 0.5)
        >>> live.update(live.foreground(frame))
        >>> frame[0, 2, 2] = 1.0
        >>> live.foreground(frame)[0, 2].tolist()
        [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    def __init__(self) -> None:
        self.behind: Tensor | None = None
        self.last: Tensor | None = None
        self.count = 0  # frames seen so far
        self.unsteady = 0  # remaining frames to check for motion

    def foreground(self, frame: Tensor) -> Tensor:
        """Return the difference between a frame and the background so far.

        Args:
            frame: (channels, height, width) with values from 0 to 1.
        """
        if self.behind is None or self.last is None:
            self.behind = self.last = frame
        if self.unsteady or self.count % CHECK_INTERVAL == 0:
            shift = camera_path(torch.stack([self.last, frame]))[1:]
            self.unsteady = max(0, self.unsteady - 1)
            if bool((shift != 0).any()):
                self.unsteady = 2 * CHECK_INTERVAL
                moved = _moved(self.behind[None], shift)[0]
                self.behind = torch.where(torch.isnan(moved), frame, moved)
            self.last = frame
        self.count += 1
        return frame - self.behind

    def update(self, difference: Tensor, held: Tensor | None = None) -> None:
        """Update the background with the last frame.

        Args:
            difference: Result of `foreground` for this frame.
            held: (height, width) whether a pixel belongs to an object that must not become
                background soon; None for no pixel.
        """
        assert self.behind is not None, "expected a frame before"
        if held is None:
            held = torch.zeros((), dtype=torch.bool, device=difference.device)
        self.behind = adapt(self.behind, difference, torch.tensor(self.count), held)


def adapt(behind: Tensor, difference: Tensor, count: Tensor, held: Tensor) -> Tensor:
    """Return the next background of a stream.

    Args:
        behind: The background so far.
        difference: Difference between the last frame and the background.
        count: Number of frames so far.
        held: Whether a pixel belongs to an object. No pixel is held before the background is known,
            or where an object that had become background has left.
    """
    step = (FIRST_STEP / count).clamp(min=LAST_STEP).to(behind.device) / 255
    known = (count >= FIRST_STEP / LAST_STEP).to(behind.device)
    part = held.expand(behind.shape[-2:])
    holds = part & known & ~_is_vacated(behind + difference, behind, part)
    step = torch.where(holds, step / HOLD, step)
    return behind + torch.clamp(difference, -step, step)


def _is_vacated(frame: Tensor, behind: Tensor, part: Tensor) -> Tensor:
    """Return whether an object has left: its outline has edges only in the background.

    The surplus of squared edges is compared with those of the difference, which become weaker in
    the same way while the background fades into the frame.
    """
    inside = part.float()[None, None]
    wide = F.max_pool2d(inside, OUTLINE, 1, OUTLINE // 2)
    narrow = -F.max_pool2d(-inside, OUTLINE, 1, OUTLINE // 2)
    outline = (wide - narrow)[0, 0]
    images = (frame, behind, frame - behind)
    in_frame, in_background, in_difference = ((outline * _edges(each)).sum() for each in images)
    return in_background - in_frame > VACATED * in_difference


def _edges(image: Tensor) -> Tensor:
    """Return the (height, width) squared length of the gradient."""
    padded = F.pad(image[None], (1, 1, 1, 1), mode="replicate")[0]
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    return (across.square() + down.square()).sum(0)


def _median_sample(frames: Tensor) -> slice:
    """Return evenly spaced rows of frames from which medians are computed."""
    return slice(None, None, -(-len(frames) // MEDIAN_FRAMES))


def _median_energy(difference: Tensor) -> Tensor:
    return difference.abs().mean(1).flatten(1).median(1).values.mean()


def _stands_still(frames: Tensor) -> bool:
    """Compare sample pairs: distant ones reveal a slow pan, adjacent ones a hand-held camera."""
    distant = frames[::SAMPLE_INTERVAL]
    if len(distant) <= 2:
        return False
    middle = SAMPLE_INTERVAL // 2
    before = frames[middle::SAMPLE_INTERVAL]
    after = frames[middle + 1 :: SAMPLE_INTERVAL]
    pairs = [(distant[:-1], distant[1:]), (before[: len(after)], after)]
    return not any(bool((_shifts(*pair) != 0).any()) for pair in pairs)


def _shifts(before: Tensor, after: Tensor) -> Tensor:
    """Return (pairs, 2) shifts between images; zero where no shift is clearly better."""
    before = before[: len(after)]
    still = _residual(before, after, before.new_zeros(len(before), 2))
    best = before.new_zeros(len(before), 2)
    score = still
    peaks = _correlation_peaks(before.mean(1), after.mean(1)).transpose(0, 1)
    best, score = _best_of(before, after, peaks, best, score)
    for step in REFINEMENTS:
        offsets = torch.cartesian_prod(*[before.new_tensor([-step, 0.0, step])] * 2)
        around = offsets[(offsets != 0).any(1)]  # the score of the centre itself is known
        best, score = _best_of(before, after, best + around[:, None], best, score)
    return torch.where((score < MAX_RESIDUAL_RATIO * still)[:, None], best, 0)


def _best_of(
    before: Tensor, after: Tensor, shifts: Tensor, best: Tensor, score: Tensor
) -> tuple[Tensor, Tensor]:
    """Keep, for each pair, the shift with the smallest residual; `shifts` is (shifts, pairs, 2)."""
    for some in shifts.split(max(1, VALUES_AT_ONCE // before.numel())):
        first, second = (x.expand(len(some), *x.shape).flatten(0, 1) for x in (before, after))
        difference = _difference(first, second, some.flatten(0, 1))
        differences = difference.unflatten(0, some.shape[:2])
        if len(some) > 1 and not bool(_is_lower(differences, score).any()):
            continue
        for shift, each in zip(some, differences, strict=True):
            wins = _is_lower(each, score)
            if bool(wins.any()):
                score = score.clone()
                score[wins] = each[wins].nanmedian(1).values
                best = torch.where(wins[:, None], shift, best)
    return best, score


def _is_lower(differences: Tensor, score: Tensor) -> Tensor:
    """Return whether the median over the pixels is below a score.

    It is if half of the values are. Counting them is faster than computing the median.
    """
    lower = (differences < score[:, None]).sum(-1)
    valid = (~differences.isnan()).sum(-1)
    return (lower >= (valid + 1) // 2) & (valid > 0)


def _residual(before: Tensor, after: Tensor, shift: Tensor) -> Tensor:
    """Return the median difference where images overlap; small objects do not affect it."""
    return _difference(before, after, shift).nanmedian(1).values


def _difference(before: Tensor, after: Tensor, shift: Tensor) -> Tensor:
    """Return (pairs, pixels) differences after shifting; NaN where images do not overlap."""
    grid = _grid(before, shift)
    difference = (_sampled(before, grid) - after).abs().mean(1)
    return difference.masked_fill(grid.outside, torch.nan).flatten(1)


def _correlation_peaks(before: Tensor, after: Tensor) -> Tensor:
    """Return (pairs, CANDIDATES, 2) whole-pixel shifts with the highest phase correlation."""
    height, width = before.shape[-2:]
    window = torch.outer(
        torch.hann_window(height, periodic=False, device=before.device, dtype=before.dtype),
        torch.hann_window(width, periodic=False, device=before.device, dtype=before.dtype),
    )
    a, b = (torch.fft.rfft2((x - x.mean((1, 2), keepdim=True)) * window) for x in (before, after))
    cross = b * a.conj()
    correlation = torch.fft.irfft2(cross / cross.abs().clamp(min=1e-9), s=(height, width))
    place = correlation.flatten(1).topk(min(CANDIDATES, height * width), 1).indices
    down, right = place // width, place % width
    down = torch.where(down > height // 2, down - height, down)
    right = torch.where(right > width // 2, right - width, right)
    shift = torch.stack([down, right], -1).to(before.dtype)
    near = shift.abs() <= MAX_SHIFT * shift.new_tensor([height, width])
    return torch.where(near.all(-1, keepdim=True), shift, 0)


def _moved(frames: Tensor, shift: Tensor) -> Tensor:
    """Shift images down and to the right by fractions of a pixel; NaN where nothing is known."""
    grid = _grid(frames, shift)
    hole = torch.isnan(frames)
    sampled = _sampled(torch.where(hole, 0, frames), grid)
    unknown = grid.outside[:, None]
    if bool(hole.any()):
        weight = F.grid_sample(hole.to(frames.dtype), grid.places, align_corners=False)
        unknown = unknown | (weight > 0.01)
    return torch.where(unknown, torch.nan, sampled)


class _Grid(NamedTuple):
    """Source positions of the pixels of a shifted image, and whether they are outside."""

    places: Tensor  # (N, height, width, 2)
    outside: Tensor  # (N, height, width)


def _grid(frames: Tensor, shift: Tensor) -> _Grid:
    height, width = frames.shape[-2:]
    row = torch.arange(height, device=frames.device) - shift[:, :1]  # (N, height)
    column = torch.arange(width, device=frames.device) - shift[:, 1:]
    y = ((2 * row + 1) / height - 1)[:, :, None].expand(-1, -1, width)
    x = ((2 * column + 1) / width - 1)[:, None, :].expand(-1, height, -1)
    row_outside = (row < 0) | (row > height - 1)
    column_outside = (column < 0) | (column > width - 1)
    outside = row_outside[:, :, None] | column_outside[:, None, :]
    return _Grid(torch.stack([x, y], -1).to(frames.dtype), outside)


def _sampled(frames: Tensor, grid: _Grid) -> Tensor:
    """Sample images without NaN; places outside take the value of the nearest edge."""
    return F.grid_sample(frames, grid.places, align_corners=False, padding_mode="border")
