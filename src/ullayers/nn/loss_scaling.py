"""Warn if a GradScaler divides gradients that UL layers have added unscaled."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

SCALED = (
    "a GradScaler divides all gradients by its scale, but UL layers added theirs without it, so "
    "they hardly learn: use scaler.scale(loss + ul.loss(net)).backward()"
)


class _Watch:
    """Whether UL layers have added gradients since the last optimizer step or `loss`."""

    registered = False
    added = False


def note_added_gradient() -> None:
    """Record that a backward pass has added a gradient that no loss scale multiplies."""
    if not _Watch.registered:
        _Watch.registered = True
        register_optimizer_step_pre_hook(_warn_if_scaled)
    _Watch.added = True


def forget_added_gradients() -> None:
    """Record that `loss` is in use from here on."""
    _Watch.added = False


def _warn_if_scaled(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Warn if a GradScaler has called this optimizer step."""
    if torch.compiler.is_compiling() or not _Watch.added:
        return
    _Watch.added = False
    frame: FrameType | None = sys._getframe(1)
    depth = 2
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame, depth = frame.f_back, depth + 1
    if frame is not None and frame.f_locals["self"].is_enabled():
        warnings.warn(SCALED, stacklevel=depth + 1)
