"""Frames by number: the interface used by `FrameAccess`, and folders of images."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ullayers.video.frames import VideoError
from ullayers.video.images import list_images, render_image
from ullayers.video.remote import without_password


class NumberedFrames(Protocol):
    """Frames by number: of a folder, or of a video."""

    def wait(self, number: int) -> None:
        """Wait until it is known how to find a frame; called by any thread."""

    def quick(self, number: int) -> int:
        """Return the number of a frame that can be decoded quickly; called by any thread."""

    def stop(self) -> None:
        """Make `wait` return; called by any thread."""

    def render(self, number: int, size: tuple[int, int]) -> Tensor:
        """Return a frame as (3, height, width)."""

    def close(self) -> None:
        """Close open files."""


class ImageFrames:
    """Images of a folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files = list_images(path)

    def wait(self, number: int) -> None:
        """Do nothing, as all files are known."""

    def quick(self, number: int) -> int:
        """Return the same number."""
        return number

    def stop(self) -> None:
        """Do nothing, as nothing waits."""

    def render(self, number: int, size: tuple[int, int]) -> Tensor:
        """Return an image as (3, height, width)."""
        if number >= len(self.files):
            raise no_frame(self.path, number, len(self.files))
        return render_image(self.files[number], size)

    def close(self) -> None:
        """Do nothing, as no file stays open."""


def no_frame(path: str, number: int, count: int) -> VideoError:
    """Return the error for a frame after the last one."""
    return VideoError(
        f"{without_password(path)}: there is no frame {number}; the last of {count} is {count - 1}"
    )
