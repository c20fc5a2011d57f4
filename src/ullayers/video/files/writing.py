"""Writing video files."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor

from ullayers.files import partial_path
from ullayers.video.clips import DEFAULT_FPS, VideoError
from ullayers.video.files.opening import load_av

CODEC_OPTIONS = {
    "libx264": {"crf": "20", "preset": "veryfast"},
    "mpeg4": {"flags": "+qscale", "global_quality": "354"},
}


class VideoWriter:
    """Context manager that writes an mp4, which appears under its name only when complete.

    Args:
        path: The file to write; replaced if it exists.
        fps: Frames per second.

    Example:
        >>> import tempfile, torch
        >>> from ullayers.video.sources import find_sources
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with VideoWriter(f"{folder}/a.mp4", fps=25) as video:
        ...         video.write(torch.zeros(3, 47, 63, dtype=torch.uint8))
        ...     find_sources([f"{folder}/a.mp4"])[0].probe()
        Info(width=64, height=48, rate=25.0, frames=1)
    """

    def __init__(self, path: str | os.PathLike[str], fps: float = DEFAULT_FPS) -> None:
        if not 0 < fps < 1000:
            raise ValueError(f"expected between 0 and 1000 frames per second, got {fps}")
        self.path = Path(path)
        self.rate = Fraction(fps).limit_denominator(1001)
        if not self.path.parent.is_dir():
            raise VideoError(f"{path}: its folder does not exist; create it first")
        self._partial = partial_path(self.path)
        self._shape: tuple[int, ...] | None = None

    def __enter__(self) -> VideoWriter:
        self._container = load_av().open(str(self._partial), "w", format="mp4")
        return self

    def write(self, frame: np.ndarray[Any, Any] | Tensor) -> None:
        """Add one uint8 RGB frame: a (height, width, 3) array or a (3, height, width) tensor."""
        pixels = frame.permute(1, 2, 0).cpu().numpy() if isinstance(frame, Tensor) else frame
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise ValueError(f"expected a uint8 RGB frame, got {frame.dtype} {tuple(frame.shape)}")
        if self._shape is None:
            self._add_stream(pixels.shape)
        if pixels.shape != self._shape:
            raise ValueError(f"expected frames of shape {self._shape}, got {pixels.shape}")
        height, width = pixels.shape[:2]
        # The colour planes of yuv420p have half the height and width, so both must be even.
        padding = [(0, height % 2), (0, width % 2), (0, 0)]
        is_even = height % 2 == width % 2 == 0
        padded = np.ascontiguousarray(pixels if is_even else np.pad(pixels, padding, mode="edge"))
        self._container.mux(self._stream.encode(load_av().VideoFrame.from_ndarray(padded)))

    def _add_stream(self, shape: tuple[int, ...]) -> None:
        codec = "libx264" if "libx264" in load_av().codecs_available else "mpeg4"
        height, width = shape[:2]
        self._shape = shape
        self._stream = self._container.add_stream(codec, rate=self.rate)
        self._stream.height = height + height % 2
        self._stream.width = width + width % 2
        self._stream.pix_fmt = "yuv420p"  # the format that every browser plays
        self._stream.options = CODEC_OPTIONS[codec]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._shape is None:
                raise VideoError(f"{self.path}: no frame was written")
            if kind is None:
                self._container.mux(self._stream.encode())
            with nullcontext() if kind is None else suppress(Exception):
                self._container.close()
            if kind is None:
                os.replace(self._partial, self.path)
        finally:
            self._partial.unlink(missing_ok=True)
