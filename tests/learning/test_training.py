"""Training: the best trial continues, any step can be the last one, and the result is useful."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.films import as_footage, ball, still, turning
from ullayers.files import from_json
from ullayers.learning.codes import solve_readout
from ullayers.learning.config import Config
from ullayers.learning.footage import Footage
from ullayers.learning.networks import Encoder
from ullayers.learning.training import Learner, LearnerState
from ullayers.video.sources import VideoError

TASKS = ["locate", "orient", "features"]


@pytest.fixture(scope="module")
def footage() -> Footage:
    return as_footage(ball(60, 16, 24)[0])


def short(**how: Any) -> Config:
    return Config(**{"steps": 5, "trial_steps": 3, "restarts": 2, "batch": 2, "clip": 12, **how})


def run(footage: Footage, config: Config) -> Learner:
    learner = Learner(footage, config)
    for _ in learner:
        pass
    return learner


def same(a: Learner, b: Learner) -> bool:
    """Whether two learners hold the same numbers, bit for bit."""
    ours, theirs = a.state(), b.state()
    equal = all(torch.equal(ours[0][key], theirs[0][key]) for key in ours[0])
    return ours[0].keys() == theirs[0].keys() and equal and ours[1] == theirs[1]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_any_step_can_be_the_last_before_a_pause(
    footage: Footage, task: Any, optimizer: Any
) -> None:
    """Inside a trial, between two trials, after the race: it goes on to the same weights."""
    trials = {"restarts": 1} if task == "locate" else {"long_mean": "clip"}  # two of them each
    config = short(task=task, optimizer=optimizer, trial_steps=2, steps=4, **trials)
    whole = run(footage, config)
    for stop in range(1, whole.total + 1):
        before = Learner(footage, config)
        for _, record in zip(range(stop), before, strict=False):
            assert record.trial == len(before.trials) - 1 or len(before.scores) == len(before.plan)
        tensors, rest = before.state()
        saved = {key: value.clone() for key, value in tensors.items()}
        after = Learner(footage, config).load(
            saved, from_json(LearnerState, json.loads(json.dumps(rest)))
        )
        records = list(after)
        assert len(records) == whole.total - stop
        assert same(after, whole)
        assert after.winner == whole.winner
        kept = [learner.best.net.state_dict() for learner in (after, whole)]
        assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[0])


def test_the_same_seed_gives_the_same_weights_and_another_one_others(footage: Footage) -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = run(footage, short())
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's numbers are drawn"
    torch.manual_seed(2)
    assert same(run(footage, short()), first)
    assert not same(run(footage, short(seed=1)), first)


def test_the_race_is_won_by_the_lowest_objective(footage: Footage) -> None:
    learner = Learner(footage, short())
    records = list(learner)
    plan = [("clip", 0), ("stream", 0), ("clip", 1), ("stream", 1)]
    assert learner.plan == plan
    assert [(r.kind, r.seed) for r in records[:12:3]] == plan
    assert [r.trial for r in records] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [
        int(np.argmin(learner.scores))
    ] * 2
    assert [r.step for r in records] == [1, 2, 3] * 4 + [4, 5]
    assert learner.winner == int(np.argmin(learner.scores))
    assert [len(trial.history) for trial in learner.trials].count(5) == 1
    assert len(records) == learner.total
    assert all(r.features == 2 and 0 <= r.rank <= 2 for r in records)


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([3.0, 1.0, 2.0], 1),
        ([float("nan"), 5.0, float("nan")], 1),
        ([1.0, 1.0], 0),
        ([float("inf"), float("nan"), -1.0], 2),
        ([float("nan")], 0),
    ],
)
def test_nan_scores_never_win(footage: Footage, scores: list[float], winner: int) -> None:
    learner = Learner(footage, short())
    learner.scores = scores
    assert learner.winner == winner


def test_learning_stops_when_nothing_is_gained(footage: Footage) -> None:
    config = short(steps=60, trial_steps=2, restarts=1, long_mean="clip")
    assert len(run(footage, config).best.history) == 60
    settled = Learner(footage, short(**{**vars(config), "tolerance": 1e6}))
    assert settled.total == 60
    assert len(list(settled)) == 40, "as soon as there are two windows to compare"
    assert (settled.done, settled.total) == (40, 40), "none are to come"


def test_more_steps_than_the_race_are_for_the_winner_alone(footage: Footage) -> None:
    learner = run(footage, short(steps=2, trial_steps=20))
    assert [len(trial.history) for trial in learner.trials] == [2] * 4


def test_codes_have_one_kind_that_follows_from_the_footage(footage: Footage) -> None:
    assert {kind for kind, _ in Learner(footage, short(task="orient")).plan} == {"stream"}
    many = as_footage(ball(60, 16, 24)[0])
    pieces = many.pieces + as_footage(ball(60, 16, 24, seed=1)[0]).pieces
    pieces = [type(p)(number, p.clip, p.path, p.behind) for number, p in enumerate(pieces)]
    two = Footage(["a", "b"], pieces, {}, 120)
    assert {kind for kind, _ in Learner(two, short(task="orient")).plan} == {"clip"}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"steps": 0}, "steps of at least 1"),
        ({"restarts": 0}, "restarts of at least 1"),
        ({"clip": 2}, "clip of at least 3"),
        ({"mu": 1.0}, "eps <= mu < 1"),
        ({"eps": 0.9}, "eps <= mu < 1"),
        ({"task": "dance"}, "expected task"),
    ],
)
def test_configurations_that_cannot_be(how: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**how)


def refused(frames: np.ndarray[Any, np.dtype[np.uint8]], task: Any = "locate") -> str:
    try:
        Learner(as_footage(frames), Config(task=task))
    except VideoError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("task", TASKS)
def test_a_still_picture_is_refused_however_it_is_encoded(task: str) -> None:
    frames = still(100)
    assert "nothing moves" in refused(frames, task)
    encoded = frames.astype(int)
    encoded[50:] += np.random.default_rng(0).integers(-12, 13, encoded.shape[1:])  # a key frame
    encoded[1:5] += np.random.default_rng(0).integers(-2, 3, (4, *encoded.shape[1:]))
    assert "nothing moves" in refused(encoded.clip(0, 255).astype(np.uint8), task)


def test_what_moves_faintly_slowly_or_on_twos_is_not_refused() -> None:
    frames = still(60).astype(int)
    faint, slow, halting = frames.copy(), frames.copy(), frames.copy()
    for t in range(60):
        faint[t, 10:16, t : t + 6] += 12
        slow[t, 10:16, 10 : 20 + t // 4] = 20 + t % 4
        halting[t, 10:16, 2 * (t // 2) : 2 * (t // 2) + 6] += 12
    for moving in (faint, slow, halting):
        assert refused(moving.clip(0, 255).astype(np.uint8)) == ""


@pytest.mark.parametrize(("count", "message"), [(1, "1 frame in all"), (2, "2 frames in all")])
def test_a_moment_is_too_short(count: int, message: str) -> None:
    footage = as_footage(ball(count)[0])
    footage.pieces = []
    with pytest.raises(VideoError, match=message):
        Learner(footage, Config())


def test_the_shortest_footage_that_can_be_learned_from() -> None:
    for task in ("locate", "orient"):
        learner = run(as_footage(ball(3, 16, 24)[0]), short(task=task))
        assert np.isfinite(learner.scores).any()


def test_the_readout_is_white_and_slowest_first() -> None:
    frames, _ = turning(200)
    footage = as_footage(frames)
    learner = run(footage, short(task="features", outputs=3, restarts=1))
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        code = cast(Encoder, learner.best.net).code(pixels).double().numpy()
    assert np.allclose(code.mean(0), 0, atol=1e-3)
    assert np.allclose(np.cov(code.T, bias=True), np.eye(3), atol=0.02)
    speed = np.square(np.diff(code, axis=0)).mean(0)
    assert (np.diff(speed) > 0).all()


def test_more_features_than_there_are_cannot_be_read_out() -> None:
    footage = as_footage(ball(30, 16, 24)[0])
    net = Encoder((16, 24), 3, outputs=4, codes=4).eval()
    torch.nn.init.zeros_(net.full.weight)
    with pytest.raises(VideoError, match="fewer than 4 features"):
        solve_readout(net, footage, "cpu")


def test_a_code_tells_which_way_a_thing_is_turned() -> None:
    """A linear map from the code, fitted on some frames, gives the angle in others."""
    frames, angle = turning(400)
    learner = run(as_footage(frames), Config(task="orient", steps=200, restarts=1))
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        code = cast(Encoder, learner.best.net).code(pixels).double().numpy()
    inputs = np.c_[code, np.ones(400)]
    circle = np.c_[np.cos(angle), np.sin(angle)]
    readout = np.linalg.lstsq(inputs[:280], circle[:280], rcond=None)[0]
    found = np.arctan2(*(inputs[280:] @ readout).T[::-1])
    error = np.abs((found - angle[280:] + np.pi) % (2 * np.pi) - np.pi)
    assert np.degrees(error.mean()) < 8, "a guess is 90 degrees off"
