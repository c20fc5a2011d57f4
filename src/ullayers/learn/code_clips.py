"""Training clips for a code, and the frames held out to check it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ullayers.learn.config import Config
from ullayers.learn.footage import Footage, Piece
from ullayers.learn.held_out import held_out_frames
from ullayers.learn.loops import closes, turns

MAX_SHIFT = 3  # pixels by which frames are shifted at random, so that a code ignores the position
SHIFT_SHARE = 16  # small frames are shifted by at most the shorter side divided by this
CHECKED_FRAMES = 512  # frames on which J is checked during training


@dataclass(frozen=True)
class CodeBatch:
    """Concatenated clips.

    Attributes:
        frames: (frames, channels, height, width) uint8.
        lengths: Length of each clip.
        rows: (frames,) number of each frame in its sequence.
    """

    frames: Tensor
    lengths: list[int]
    rows: Tensor


class CodeClips:
    """Draws clips from the training frames.

    Clips extend across held-out gaps, and across the seam of a closed loop, such as one turn of an
    object on a turntable.

    Args:
        footage: From `gather`.
        config: Settings of the run, resolved.

    Attributes:
        held_out: For each piece, which of its frames are held out.
        is_loop: For each piece, whether it is a closed loop.

    Example:
        >>> from ullayers.learn.footage import make_piece
        >>> from ullayers.video.frames import Clip
        >>> frames = torch.arange(32, dtype=torch.uint8)[:, None, None, None].expand(32, 1, 8, 8)
        >>> clip = Clip(frames, torch.arange(32.0), torch.arange(32))
        >>> footage = Footage(["a"], [make_piece(0, clip)])
        >>> clips = CodeClips(footage, Config(task="features", clip=6))
        >>> batch = clips.draw(torch.Generator().manual_seed(0), 2)
        >>> batch.lengths, batch.rows.tolist()
        ([6, 6], [15, 16, 17, 20, 21, 22, 9, 12, 13, 14, 15, 16])
        >>> clips.check_held_out().rows.tolist()
        [2, 3, 10, 11, 18, 19, 26, 27]
    """

    def __init__(self, footage: Footage, config: Config) -> None:
        self.footage = footage
        self.config = config
        self.held_out = held_out_frames([len(piece) for piece in footage.pieces])
        self._rows = [torch.nonzero(~apart)[:, 0] for apart in self.held_out]
        self.is_loop = [self._closes(piece) for piece in footage.pieces]
        counts = torch.tensor([float(len(rows)) for rows in self._rows])
        self._shares = torch.where(counts > 1, counts, 0.0)
        lengths = counts.clamp(max=config.clip)
        self._mean_length = float((self._shares * lengths).sum() / self._shares.sum())
        # No more than the number of frames, to avoid copies.
        self._step_frames = min(config.batch * config.clip, float(self._shares.sum()))

    @property
    def checked(self) -> bool:
        """Whether frames are held out."""
        return any(bool(apart.any()) for apart in self.held_out)

    def _closes(self, piece: Piece) -> bool:
        """Return whether a piece is a whole source and a closed loop."""
        whole = len(self.footage.of_source(piece.source)) == 1
        return whole and closes(piece.clip.frames)

    @cached_property
    def frames_per_turn(self) -> float | None:
        """Frames per turn if the footage is one closed loop, otherwise None.

        Several loops start in different orientations, so they have no common code in closed form.
        """
        if self.is_loop != [True]:
            return None
        [piece] = self.footage.pieces
        return len(piece) / turns(piece.clip.frames)

    def draw(self, generator: torch.Generator, count: int | None = None) -> CodeBatch:
        """Draw clips; all training frames have equal probability.

        Args:
            generator: Source of random numbers.
            count: Number of clips; None for a training step. Short sequences give more, shorter
                clips.
        """
        count = count or max(1, round(self._step_frames / self._mean_length))
        numbers = torch.multinomial(self._shares, count, True, generator=generator).tolist()
        return self._batch((i, self._draw_rows(i, generator)) for i in numbers)

    def _draw_rows(self, number: int, generator: torch.Generator) -> Tensor:
        """Draw the rows of a clip; row numbers continue beyond the seam of a loop."""
        rows = self._rows[number]
        length = min(self.config.clip, len(rows))
        starts = len(rows) if self.is_loop[number] else len(rows) - length + 1
        places = int(torch.randint(starts, (), generator=generator)) + torch.arange(length)
        turn = len(self.footage.pieces[number]) * (places // len(rows))
        return rows[places % len(rows)] + turn

    def check_training(self) -> CodeBatch:
        """Return training frames on which J is checked, the same for all trials."""
        generator = torch.Generator().manual_seed(self.config.seed)
        return self.draw(generator, max(1, round(CHECKED_FRAMES / self._mean_length)))

    def check_held_out(self) -> CodeBatch:
        """Return held-out frames on which J is checked: evenly spaced blocks, joined by source."""
        blocks = [
            (i, block)
            for i, apart in enumerate(self.held_out)
            for block in _consecutive(torch.nonzero(apart)[:, 0])
        ]
        every = max(1, -(-sum(len(block) for _, block in blocks) // CHECKED_FRAMES))
        return self._joined_by_source(blocks[::every])

    def _joined_by_source(self, blocks: Sequence[tuple[int, Tensor]]) -> CodeBatch:
        batch = self._batch(blocks)
        pieces = self.footage.pieces
        room = 1 + max(map(len, pieces))  # so that there is no step from one piece to another
        lengths: dict[int, int] = {}
        for number, block in blocks:
            source = pieces[number].source
            lengths[source] = lengths.get(source, 0) + len(block)
        rows = torch.cat([number * room + block for number, block in blocks])
        return CodeBatch(batch.frames, list(lengths.values()), rows)

    def _batch(self, clips: Iterable[tuple[int, Tensor]]) -> CodeBatch:
        """Return the frames of clips, given as piece number and rows."""
        chosen = list(clips)
        pieces = self.footage.pieces
        frames = [pieces[i].clip.frames[rows % len(pieces[i])] for i, rows in chosen]
        lengths = [len(rows) for _, rows in chosen]
        return CodeBatch(torch.cat(frames), lengths, torch.cat([rows for _, rows in chosen]))


def shifted(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each frame randomly by up to three pixels, small ones by less; repeat its edge.

    Args:
        frames: (time, channels, height, width).
        generator: Source of random numbers.
    """
    count, channels, height, width = frames.shape
    most = min(MAX_SHIFT, min(height, width) // SHIFT_SHARE)
    padded = F.pad(frames, (most, most, most, most), mode="replicate")
    shift = torch.randint(2 * most + 1, (2, count, 1), generator=generator)
    y = (shift[0] + torch.arange(height))[:, None, :, None]
    x = (shift[1] + torch.arange(width))[:, None, None, :]
    frame = torch.arange(count)[:, None, None, None]
    channel = torch.arange(channels)[None, :, None, None]
    return padded[frame, channel, y, x]


def _consecutive(rows: Tensor) -> list[Tensor]:
    """Split sorted row numbers where one is missing."""
    ends = torch.nonzero(rows.diff() > 1)[:, 0] + 1
    return list(rows.tensor_split(ends)) if len(rows) else []
