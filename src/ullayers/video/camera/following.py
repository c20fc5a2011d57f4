"""Square crops that follow the moving object."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ullayers.nn.spatial import blurred
from ullayers.video.camera.motion import backdrop, find_path, foreground, shows_motion
from ullayers.video.clips import Clip

SIDE = 48  # side of the crops, the input of a network, in pixels
BLUR = 5  # width of the average over the foreground's energy, in pixels
MASK_BLUR = 3  # the same for the mask of the object, whose edge must be sharper
MASK_FROM = 0.2  # of the usual energy of the object: pixels with less show the background
HOLE = 7  # largest hole of the mask that is closed, in pixels of the crop
GREY = 128.0  # replaces the background
NOISE = 2.0  # energy below this many times the median of the frame is noise
PATH_SIDE = 64  # longer side of the frames in which the camera's path is estimated, in pixels
SAMPLES_PER_PIXEL = 2  # in each direction, against aliasing


def follow(clip: Clip, side: int = SIDE) -> Clip:
    """Crop each frame to a square around the moving object.

    The crop is centred on the foreground of each frame. Its size is that of the foreground in most
    frames of the clip, so that an object keeps its size while it turns. If the object travels, the
    background is replaced by grey; otherwise a code could tell where the crop is from what is
    behind the object. If nothing moves, all crops are the same.

    Args:
        clip: Consecutive frames.
        side: Side of the crops in pixels.

    Example:
        >>> frames = torch.zeros(9, 1, 60, 80, dtype=torch.uint8)
        >>> for t in range(9):
        ...     frames[t, :, 20:30, 5 * t : 5 * t + 10] = 200
        >>> small = follow(Clip(frames, torch.arange(9.0), torch.arange(9)), 16)
        >>> small.frames.shape, bool((small.frames[:, 0, 8, 8] > 150).all())
        (torch.Size([9, 1, 16, 16]), True)
    """
    difference = _squared_difference(clip.frames)
    centre, variance = _moments(_energy(difference, BLUR))
    # The variance of a bar is a third of its squared half length; rounder objects get a margin. All
    # squares have the same size, or the object would appear to grow and shrink.
    radius = (3 * variance.sum(1)).sqrt().median().clamp(min=side / 8)  # if hardly anything moves
    height, width = clip.frames.shape[-2:]
    corners = torch.cat([centre - radius, centre + radius], 1)
    radii = radius.expand(len(centre))
    squares = cut_squares(clip.frames, centre, radii, side)
    # Where an object does not leave its place, the background is unknown, but it is also constant.
    if len(centre) > 1 and centre.std(0).norm() > radius:
        mask = _mask(difference)
        squares = _without_background(squares, cut_squares(mask, centre, radii, side))
    return replace(
        clip,
        frames=squares,
        crops=corners / torch.tensor([width, height, width, height]),
    )


def moving_share(frames: Tensor) -> float:
    """Return the share of the frame that moves: 1 if the whole frame does.

    It is the variance of the foreground's position within a frame, relative to that of a foreground
    that covers the whole frame.

    Args:
        frames: (time, channels, height, width) uint8, consecutive.

    Example:
        >>> frames = torch.zeros(9, 1, 60, 80, dtype=torch.uint8)
        >>> for t in range(9):
        ...     frames[t, :, 20:30, 5 * t : 5 * t + 10] = 200
        >>> moving_share(frames) < 0.1
        True
    """
    energy = _energy(_squared_difference(frames), BLUR)
    _, variance = _moments(energy)
    strength = energy.sum((1, 2))
    height, width = frames.shape[-2:]
    covered = (height**2 + width**2) / 12
    mean = (strength * variance.sum(1)).sum() / (strength.sum() + 1e-12)
    return float(mean) / covered if float(strength.sum()) > 0 else 1.0


def _squared_difference(frames: Tensor) -> Tensor:
    """Return (time, 1, height, width) squared differences from the background; 0 if only noise."""
    pixels = frames.float() / 255
    factor = max(1.0, max(frames.shape[-2:]) / PATH_SIDE)
    small = F.interpolate(pixels, scale_factor=1 / factor, mode="area")
    small_path = find_path(small)
    if not shows_motion(foreground(small, backdrop(small, small_path), small_path)):
        return torch.zeros_like(pixels[:, :1])
    path = None if small_path is None else small_path * factor
    return foreground(pixels, backdrop(pixels, path), path).square().sum(1, keepdim=True)


def _energy(difference: Tensor, blur: int) -> Tensor:
    """Return (time, height, width): how much the surroundings of each pixel differ.

    Values below twice the median of the frame count as noise and are removed.
    """
    energy = blurred(difference, blur)[:, 0]
    noise = NOISE * energy.flatten(1).median(1).values
    return (energy - noise[:, None, None]).clamp(min=0)


def _mask(difference: Tensor) -> Tensor:
    """Return the (time, 1, height, width) uint8 mask of the object, 255 inside, with soft edges."""
    energy = _energy(difference, MASK_BLUR)
    usual = energy.square().sum((1, 2)) / (energy.sum((1, 2)) + 1e-12)
    share = energy / (MASK_FROM * usual + 1e-12)[:, None, None]
    return (255 * share.clamp(max=1)).byte()[:, None]


def _without_background(squares: Tensor, mask: Tensor) -> Tensor:
    """Replace everything outside the mask by grey, after closing small holes of the mask."""
    wide = F.max_pool2d(mask.float() / 255, HOLE, 1, HOLE // 2)
    closed = -F.max_pool2d(-wide, HOLE, 1, HOLE // 2)
    return (GREY + closed * (squares.float() - GREY)).round().byte()


def cut_squares(frames: Tensor, centre: Tensor, radius: Tensor, side: int) -> Tensor:
    """Crop and resize squares; pixels outside a frame take the value of its nearest edge.

    Args:
        frames: (time, channels, height, width) uint8.
        centre: (time, 2) x and y of the centres of the squares, in pixels.
        radius: (time,) half the sides of the squares, in pixels.
        side: Side of the result in pixels.

    Returns:
        (time, channels, side, side) uint8.
    """
    height, width = frames.shape[-2:]
    fine = side * SAMPLES_PER_PIXEL
    steps = ((torch.arange(fine) + 0.5) / fine - 0.5) * 2 * radius[:, None]
    x = (centre[:, :1] + steps) * 2 / width - 1
    y = (centre[:, 1:] + steps) * 2 / height - 1
    shape = (len(frames), fine, fine)
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], -1)
    squares = F.grid_sample(frames.float(), grid, padding_mode="border", align_corners=False)
    return F.avg_pool2d(squares, SAMPLES_PER_PIXEL).round().clamp(0, 255).byte()


def _moments(energy: Tensor) -> tuple[Tensor, Tensor]:
    """Return (time, 2) mean and variance of x and y in pixels; the centre if energy is zero."""
    height, width = energy.shape[-2:]
    x = torch.arange(width) + 0.5
    y = torch.arange(height) + 0.5
    share = energy + 1e-12
    share = share / share.sum((1, 2), keepdim=True)
    columns = share.sum(1)
    rows = share.sum(2)
    mean = torch.stack([columns @ x, rows @ y], 1)
    variance_x = (columns * (x - mean[:, :1]).square()).sum(1)
    variance_y = (rows * (y - mean[:, 1:]).square()).sum(1)
    return mean, torch.stack([variance_x, variance_y], 1)
