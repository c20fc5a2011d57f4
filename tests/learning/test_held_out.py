"""Frames that are held out, and clips drawn from the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.films import as_footage, still, turning
from ullayers.learning.codes import CodeClips, CodeTrial, closes
from ullayers.learning.config import Config, Task
from ullayers.learning.footage import Footage
from ullayers.learning.networks import code_steps
from ullayers.learning.trials import (
    CHECK_STEPS,
    PATIENCE,
    Check,
    ClipTrial,
    Trial,
    held_out_correlation,
    held_out_frames,
)


@pytest.mark.parametrize("lengths", [[32], [40, 13, 500], [13] * 60, [3000], [1] * 100])
def test_about_a_quarter_of_the_frames_is_held_out_in_blocks(lengths: list[int]) -> None:
    held_out = held_out_frames(lengths)
    assert [len(apart) for apart in held_out] == lengths
    share = float(torch.cat(held_out).float().mean())
    assert 0.1 <= share <= 0.35
    for apart in held_out:
        runs = torch.diff(torch.nonzero(apart.diff())[:, 0])
        assert (runs > 1).all(), "a single frame is no step of a code"


@pytest.mark.parametrize("lengths", [[5], [31], [1, 1]])
def test_too_few_frames_are_all_learned_from(lengths: list[int]) -> None:
    assert not torch.cat(held_out_frames(lengths)).any()


def test_training_never_sees_a_held_out_frame() -> None:
    frames = (
        np.zeros((120, 8, 8, 3), np.uint8) + np.arange(120, dtype=np.uint8)[:, None, None, None]
    )
    clips = CodeClips(as_footage(frames), Config(task="orient").resolved(many=False))
    apart = set(torch.nonzero(clips.held_out[0])[:, 0].tolist())
    drawn = clips.draw(torch.Generator().manual_seed(0), 200)
    seen = set(drawn.frames[:, 0, 0, 0].tolist())
    assert apart
    assert seen == set(range(120)) - apart
    assert set(clips.check_held_out().frames[:, 0, 0, 0].tolist()) == apart
    assert not set(clips.check_training().frames[:, 0, 0, 0].tolist()) & apart


def test_a_loop_is_learned_across_its_seam() -> None:
    turn = torch.arange(72) * 2 * torch.pi / 72
    values = (127 + 99 * torch.stack([turn.cos(), turn.sin()], 1)).byte().numpy()
    frames = np.repeat(values.reshape(72, 1, 2, 1), 3, axis=3).repeat(8, 1).repeat(4, 2)
    clips = CodeClips(as_footage(frames), Config(task="orient").resolved(many=False))
    drawn = clips.draw(torch.Generator().manual_seed(0), 50)
    steps = [rows.diff() for rows in drawn.rows.split(drawn.lengths)]
    assert all((step > 0).all() for step in steps), "rows count on beyond the seam"
    assert any((rows >= 72).any() for rows in drawn.rows.split(drawn.lengths))
    assert not closes(as_footage(frames[:50]).pieces[0].clip.frames)
    assert not closes(as_footage(still(40)).pieces[0].clip.frames[:4])


def test_steps_across_gaps_are_as_long_as_those_of_a_random_walk() -> None:
    walk = torch.randn(4000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    walk = walk.cumsum(0)
    rows = torch.arange(4000)
    rows = rows[rows % 16 < 8]
    steps = code_steps(walk[rows], [len(rows)], rows, by_clip=False).diff(dim=1).flatten()
    gaps = (rows.diff() > 1).repeat(2)
    across, within = steps[gaps].square().mean(), steps[~gaps].square().mean()
    assert 0.7 < float(across / within) < 1.4


def test_correlation_tells_content_from_order() -> None:
    held_out = held_out_frames([400, 400])
    wave = [torch.arange(400.0).div(15).sin(), torch.arange(400.0).div(25).cos()]
    noise = torch.randn(2, 400, generator=torch.Generator().manual_seed(0))
    memorised = [torch.where(held_out[i], noise[i], wave[i]) for i in range(2)]
    constant = [torch.zeros(400)] * 2
    codes = [torch.stack(each, 1) for each in zip(wave, memorised, constant, strict=True)]
    content, order, nothing = held_out_correlation(codes, held_out)
    assert content > 0.95
    assert abs(order) < 0.3
    assert nothing == 0


def test_training_ends_with_the_weights_that_were_best_on_held_out_frames() -> None:
    config = Config(task="orient", batch=2, clip=12).resolved(many=False)
    trial = CodeTrial(as_footage(turning(64, 16)[0]), config, "stream", 0)
    seen = []
    for _ in range(3):
        for _ in range(CHECK_STEPS):
            trial.step()
        seen.append(
            {name: weight.detach().clone() for name, weight in trial.net.named_parameters()}
        )
    objectives = [check.held_out for check in trial.checks]
    assert len(objectives) == 3
    trial.finish()
    best = seen[objectives.index(min(objectives, key=lambda value: value or 0.0))]
    for name, weight in trial.net.named_parameters():
        torch.testing.assert_close(weight.detach(), best[name], rtol=0, atol=0)


def test_a_trial_continues_from_its_state() -> None:
    config = Config(task="orient", batch=2, clip=12).resolved(many=False)
    footage = as_footage(turning(64, 16)[0])
    first, second = (CodeTrial(footage, config, "stream", 0) for _ in range(2))
    for _ in range(CHECK_STEPS + 3):
        first.step()
    tensors = {name: value.clone() for name, value in first.state("0.").items()}
    second.load(tensors, list(first.history), first.checks, "0.")
    for _ in range(CHECK_STEPS):
        first.step()
        second.step()
    assert list(first.history) == list(second.history)
    assert first.checks == second.checks
    with pytest.raises(ValueError, match="expected 2 checks"):
        second.load(first.state("0."), list(first.history), first.checks[:1], "0.")


def test_clips_to_locate_from_leave_out_the_held_out_stretch() -> None:
    frames = np.random.default_rng(0).integers(0, 255, (100, 16, 16, 3), dtype=np.uint8)
    config = Config(clip=20, batch=4).resolved(many=False)
    trial = ClipTrial(as_footage(frames), config, "clip", 0)
    assert trial.held_out == [range(40, 60)]
    starts = []
    trial.read = lambda piece, rows: starts.append(rows.start) or torch.zeros(1)  # type: ignore
    trial.draw(2000, torch.Generator().manual_seed(0))
    assert set(starts) == set(range(21)) | set(range(60, 81))


@pytest.mark.parametrize(("sequences", "comparable"), [(7, False), (8, True)])
def test_a_few_clips_are_not_compared_with_training_clips(sequences: int, comparable: bool) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (20, 16, 16, 3), dtype=np.uint8)
    [piece] = as_footage(frames).pieces
    pieces = [replace(piece, source=number) for number in range(sequences)]
    footage = Footage([str(number) for number in range(sequences)], pieces)
    config = Config(clip=5, batch=4).resolved(many=True)
    trial = ClipTrial(footage, config, "clip", 0)
    assert trial.held_out_count == 5 * sequences
    assert trial.comparable == comparable


@pytest.mark.parametrize("task", ["locate", "orient"])
def test_training_stops_when_held_out_frames_gain_nothing(task: Task) -> None:
    trial = make_trial(task)
    falling = [-1.0 - 0.1 * i for i in range(40)]
    trial.checks = [Check(value, value) for value in falling]
    assert not trial.settled()
    trial.checks += [Check(-9.0, falling[-1])] * (PATIENCE[task] // CHECK_STEPS)
    assert trial.settled(), "however much J falls on training frames"


def make_trial(task: Task) -> Trial:
    kind = ClipTrial if task == "locate" else CodeTrial
    config = Config(task=task, clip=12).resolved(many=False)
    return kind(as_footage(turning(64, 16)[0]), config, "stream", 0)
