"""Codes: their training clips, closed loops, folds, and a last layer in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ullayers.exact.slow_moments import RankError, slowest_components
from ullayers.learning.config import Config
from ullayers.learning.footage import Footage, LongMean, Piece
from ullayers.learning.networks import Encoder, code_objective
from ullayers.learning.trials import (
    Check,
    Trial,
    held_out_correlation,
    held_out_frames,
    spare_outputs,
)
from ullayers.video.sources import VideoError

MIN_LOOP = 8  # least number of frames of a turn
TYPICAL_STEPS = 0.9  # quantile of the steps from frame to frame that larger ones are compared with
MAX_LOOP_STEP = 1.5  # squared distance from the last to the first frame, in typical steps
MAX_LOOP_SHARE = 0.5  # the same, in mean squared distances between two frames
SAME_VIEW = 0.75  # squared distance between frames of the same view, in steps from frame to frame
MAX_SHIFT = 3  # pixels by which frames are shifted at random, so that a code ignores the position
SHIFT_SHARE = 16  # small frames are shifted by at most the shorter side divided by this
CHECKED_FRAMES = 512  # frames on which J is checked during training
APART = 8  # frames are apart if more than this fraction (1 / APART) of the loop lies between them
DIFFERENT = 1.1  # steps from frame to frame: frames that differ more are different
PICTURE_SIDE = 32  # pixels of the longer side at which frames are compared
FRAMES_PER_CALL = 64  # frames per forward pass outside training
RING_STEPS = 100  # steps in which the code of a closed loop is guided by its closed form
RING_WEIGHT = 10.0  # of the squared distance from it; with a weight of 1, codes may still fold


def closes(frames: Tensor) -> bool:
    """Return whether the last frame is as close to the first one as consecutive frames are.

    Args:
        frames: (time, channels, height, width) uint8.

    Example:
        >>> turn = torch.arange(24) * 2 * torch.pi / 24
        >>> frames = (127 + 99 * torch.stack([turn.cos(), turn.sin()], 1)).byte()[..., None, None]
        >>> closes(frames), closes(frames[:18])
        (True, False)
    """
    if len(frames) < MIN_LOOP:
        return False
    pixels = frames.flatten(1).float()
    seam = float((pixels[-1] - pixels[0]).square().mean())
    distance = 2 * float((pixels - pixels.mean(0)).square().mean())
    return seam <= MAX_LOOP_STEP * _typical_step(pixels) and seam <= MAX_LOOP_SHARE * distance


def turns(frames: Tensor) -> int:
    """Return how often a closed loop repeats itself: its number of turns.

    A frame must be closer to the same view in the next turn than to the next frame. Opposite sides
    of an object that look nearly the same are not that close.

    Args:
        frames: (time, channels, height, width) uint8 of a closed loop.

    Example:
        >>> turn = torch.arange(48) * 2 * torch.pi / 48
        >>> once, twice = (torch.stack([(k * turn).cos(), (k * turn).sin()], 1) for k in (1, 2))
        >>> [turns((127 + 99 * code).byte()[..., None, None]) for code in (once, twice)]
        [1, 2]
    """
    pixels = frames.flatten(1).float()
    distances = torch.cdist(pixels, pixels).square()
    places = torch.arange(len(pixels))

    def distance(lag: int) -> float:
        return float(distances[places, (places + lag) % len(places)].median())

    for count in range(len(pixels) // MIN_LOOP, 1, -1):
        if distance(round(len(pixels) / count)) <= SAME_VIEW * distance(1):
            return count
    return 1


def _typical_step(pixels: Tensor) -> float:
    return float(pixels.diff(dim=0).square().mean(1).quantile(TYPICAL_STEPS))


def ring_code(rows: Tensor, frames_per_turn: float) -> Tensor:
    """Return the slowest code of a closed loop: a circle.

    Frames that are visited one after the other, and the first one after the last, are a Markov
    chain on a ring. Its two slowest eigenfunctions are cosine and sine.

    Args:
        rows: (frames,) frame numbers.
        frames_per_turn: Number of frames of a turn.

    Example:
        >>> ring_code(torch.arange(4), 4).round().abs().tolist()
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
    """
    angle = 2 * torch.pi * rows / frames_per_turn
    return torch.stack([angle.cos(), angle.sin()], 1)


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
        >>> from ullayers.learning.footage import make_piece
        >>> from ullayers.video.clips import Clip
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


def folded_share(code: Tensor, frames: Tensor) -> float:
    """Return the share of frames whose code also belongs to a different frame.

    A code that goes around once differs between frames that are apart in the loop. A code that goes
    around twice, or back and forth, does not. This is correct for an object that looks the same
    from two sides. Otherwise the code is folded: of the frames with the same code, even the most
    similar one differs more than the next frame does.

    Args:
        code: (frames, outputs) of all frames of a closed loop.
        frames: (frames, channels, height, width) uint8.

    Example:
        >>> turn = torch.arange(48) * 2 * torch.pi / 48
        >>> once, twice = (torch.stack([(k * turn).cos(), (k * turn).sin()], 1) for k in (1, 2))
        >>> frames = (127 + 99 * once).byte()[..., None, None]
        >>> folded_share(once, frames), folded_share(twice, frames)
        (0.0, 1.0)
        >>> symmetric = (127 + 99 * twice).byte()[..., None, None]
        >>> folded_share(twice, symmetric)
        0.0
    """
    codes = torch.cdist(code.double(), code.double())
    pictures = _picture_distances(frames)
    length = len(code)
    places = torch.arange(length)
    lag = (places[:, None] - places).abs()
    apart = torch.minimum(lag, length - lag) > length // APART
    after, before = (places + 1) % length, places - 1
    same = apart & (codes <= torch.maximum(codes[places, after], codes[places, before])[:, None])
    step = torch.minimum(pictures[places, after], pictures[places, before])
    most_similar = torch.where(same, pictures, torch.inf).amin(1)
    folded = same.any(1) & (most_similar > DIFFERENT * step)
    return float(folded.double().mean())


def _picture_distances(frames: Tensor) -> Tensor:
    """Return (frames, frames) distances between frames, at a small size that hides noise."""
    factor = max(1.0, max(frames.shape[-2:]) / PICTURE_SIDE)
    size = [max(1, round(side / factor)) for side in frames.shape[-2:]]
    small = F.interpolate(frames.float(), size, mode="area").flatten(1).double()
    return torch.cdist(small, small)


@torch.no_grad()
def outputs_of(net: Encoder, frames: Tensor, device: str) -> Tensor:
    """Return (time, outputs) of uint8 frames (time, channels, height, width), on the CPU."""
    was_training = net.training
    net.eval()  # UL layers after hidden layers must not count these frames
    parts = frames.split(FRAMES_PER_CALL)
    outputs = torch.cat([net.embed((part.float() / 255).to(device)).cpu() for part in parts])
    net.train(was_training)
    return outputs


def slow_directions(parts: Sequence[Tensor], codes: int) -> Tensor:
    """Return (codes, outputs): the slowest directions, slowest first.

    Args:
        parts: (time, outputs) of consecutive frames, from `consecutive_parts`.
        codes: Number of directions.

    Raises:
        VideoError: Too few outputs vary.
    """
    try:
        components = slowest_components([part.double().numpy() for part in parts], codes)
    except RankError as error:
        raise VideoError(
            f"fewer than {codes} features vary in this footage: ask for fewer"
        ) from error
    return torch.from_numpy(components)


def consecutive_parts(
    outputs: Iterable[Tensor], rows: Iterable[Tensor], *, by_clip: bool
) -> list[Tensor]:
    """Split outputs where frames are left out; parts of a single frame are dropped.

    Args:
        outputs: (time, outputs) of each sequence.
        rows: (time,) number of each frame in its sequence.
        by_clip: Subtract the mean of each sequence; otherwise the slowest direction would identify
            the sequence.

    Example:
        >>> rows = torch.tensor([0, 1, 2, 5, 7, 8])
        >>> parts = consecutive_parts([rows[:, None].float()], [rows], by_clip=False)
        >>> [part.flatten().tolist() for part in parts]
        [[0.0, 1.0, 2.0], [7.0, 8.0]]
    """
    parts: list[Tensor] = []
    for y, numbers in zip(outputs, rows, strict=True):
        centred = y - y.mean(0) if by_clip else y
        parts += centred.tensor_split(torch.nonzero(numbers.diff() != 1)[:, 0] + 1)
    return [part for part in parts if len(part) > 1]


def solve_readout(net: Encoder, footage: Footage, device: str) -> None:
    """Solve the last layer: slowest first, uncorrelated, unit variance.

    Raises:
        VideoError: Fewer features vary than the code has numbers.
    """
    outputs = [outputs_of(net, piece.clip.frames, device) for piece in footage.pieces]
    rows = [torch.arange(len(y)) for y in outputs]
    parts = consecutive_parts(outputs, rows, by_clip=net.by_clip)
    directions = slow_directions(parts, len(net.readout))
    joined = torch.cat(outputs).double()
    middle = joined.mean(0)
    scale = ((joined - middle) @ directions.T).square().mean(0).sqrt()
    net.mean.copy_(middle)
    net.readout.copy_(directions / scale[:, None])


def trained_outputs(config: Config, kind: LongMean, clips: CodeClips) -> int:
    """Return the number of outputs to train, of which the slowest combinations become the code.

    If only as many outputs as the code has numbers are trained, they may settle on faster ones,
    such as twice the angle of a long object, whose two ends look similar. With more of them, the
    network also contains the slower ones. The clips of many sequences are too short to estimate
    more, and the code of a closed loop is known (`ring_code`).
    """
    few = kind == "clip" or clips.frames_per_turn is not None
    return config.outputs if config.task == "orient" and few else spare_outputs(config)


class CodeTrial(Trial):
    """Training of an encoder: blocks of frames are held out."""

    def __init__(self, footage: Footage, config: Config, kind: LongMean, seed: int) -> None:
        self.clips = CodeClips(footage, config)
        super().__init__(footage, config, kind, seed, trained_outputs(config, kind, self.clips))
        self._training = self.clips.check_training()
        self._held_out = self.clips.check_held_out() if self.clips.checked else None

    @property
    def net(self) -> Encoder:
        """The network."""
        net = self.trainer.net
        assert isinstance(net, Encoder)
        return net

    @property
    def held_out_count(self) -> int:
        """Number of held-out frames."""
        return sum(int(apart.sum()) for apart in self.clips.held_out)

    def learn(self) -> None:
        """Learn from one batch of clips."""
        batch = self.clips.draw(self.generator)
        frames = batch.frames.float() / 255
        if self.config.task == "orient":
            frames = shifted(frames, self.generator)
        frames = frames.to(self.config.device)
        loss = None
        if self.clips.frames_per_turn is not None and self._is_guided():
            target = ring_code(batch.rows, self.clips.frames_per_turn).to(frames)
            loss = partial(self._distance_from, frames, target)
        self.trainer.step(frames, batch.lengths, batch.rows, loss)

    def _is_guided(self) -> bool:
        """Return whether the closed form of a loop guides this step.

        From random weights, a code may settle where it goes around a turn twice, or back and forth.
        """
        started = len(self.history) >= RING_STEPS
        return not started and self.config.task == "orient" and len(self.net.readout) >= 2

    def _distance_from(self, frames: Tensor, target: Tensor) -> Tensor:
        """Return the weighted mean squared distance of the first outputs from a target."""
        outputs = self.net.embed(frames)[:, : target.shape[1]]
        return RING_WEIGHT * (outputs - target).square().mean()

    def check(self) -> Check:
        """Return J of the code."""
        net = self.net
        batch = self._training
        training = outputs_of(net, batch.frames, self.config.device)
        slow = torch.eye(net.full.out_features)
        if len(net.readout) < len(slow):
            clips = training.split(batch.lengths), batch.rows.split(batch.lengths)
            parts = consecutive_parts(*clips, by_clip=net.by_clip)
            slow = slow_directions(parts, len(net.readout)).float()
        objective = code_objective(net, training @ slow.T, batch.lengths, batch.rows)
        if self._held_out is None:
            return Check(objective, None)
        batch = self._held_out
        held_out = outputs_of(net, batch.frames, self.config.device) @ slow.T
        return Check(objective, code_objective(net, held_out, batch.lengths, batch.rows))

    def score(self) -> float:
        """Return the J used to compare trials: on held-out frames, if there are any."""
        check = self.check()
        return check.training if check.held_out is None else check.held_out

    def finish(self) -> None:
        """Restore the weights with the lowest held-out J, and solve the read-out."""
        super().finish()
        solve_readout(self.net, self.footage, self.config.device)

    def folded(self) -> float | None:
        """Return `folded_share` of the sequences that are closed loops; None if there are none."""
        pairs = zip(self.footage.pieces, self.clips.is_loop, strict=True)
        loops = [piece.clip.frames for piece, is_loop in pairs if is_loop]
        if not loops or self.config.task != "orient" or len(self.net.readout) < 2:
            return None  # a code of one number goes back and forth in a loop, and features may, too
        shares = [
            len(frames) * folded_share(_code(self.net, frames, self.config.device), frames)
            for frames in loops
        ]
        return sum(shares) / sum(map(len, loops))

    def correlation(self) -> list[float] | None:
        """Return `held_out_correlation` of the code; None if nothing is held out."""
        if not self.clips.checked:
            return None
        net = self.net
        outputs = [
            outputs_of(net, piece.clip.frames, self.config.device) for piece in self.footage.pieces
        ]
        learned = [torch.nonzero(~apart)[:, 0] for apart in self.clips.held_out]
        known = [(y[rows], rows) for y, rows in zip(outputs, learned, strict=True) if len(rows)]
        parts = consecutive_parts(*zip(*known, strict=True), by_clip=net.by_clip)
        slow = slow_directions(parts, len(net.readout))
        codes = [y.double() @ slow.T for y in outputs]
        if net.by_clip:
            codes = [code - code.mean(0) for code in codes]
        return held_out_correlation(codes, self.clips.held_out)


def _code(net: Encoder, frames: Tensor, device: str) -> Tensor:
    """Return (time, codes) of uint8 frames, after the read-out was solved."""
    outputs = outputs_of(net, frames, device).to(net.mean)
    return ((outputs - net.mean) @ net.readout.T).detach().cpu()
