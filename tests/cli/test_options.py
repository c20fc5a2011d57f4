"""Options are generated from Config: one default, one range, one description."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields

import pytest

from ullayers.cli.options import given_options
from ullayers.cli.parser import make_parser
from ullayers.errors import Error
from ullayers.learning.config import OPTIONS, Config, default_of, kind_of, option_name, setting

COMMANDS = ("demo", "learn", "apply", "watch", "export", "score")
LEARN_OPTIONS = {name for name in OPTIONS if setting(name).group is not None}


def help_of(command: str) -> str:
    """The help of a command, with single spaces."""
    actions = make_parser()._subparsers
    assert actions is not None
    choices = actions._group_actions[0].choices
    assert isinstance(choices, dict)
    parser: argparse.ArgumentParser = choices[command]
    return " ".join(parser.format_help().split())


def test_every_setting_is_described() -> None:
    for name in OPTIONS:
        about = setting(name)
        assert re.fullmatch(r"[A-Z].*\.", about.help), name
    for name in (each.name for each in fields(Config)):
        assert (default_of(name) is None) == bool(setting(name).if_none), name


@pytest.mark.parametrize("name", sorted(LEARN_OPTIONS))
def test_help_shows_description_and_default(name: str) -> None:
    text = help_of("learn")
    default = default_of(name)
    shown = setting(name).if_none or (f"{default:g}" if isinstance(default, float) else default)
    assert option_name(name) in text
    if shown is None or kind_of(name)[0] is bool:
        assert setting(name).help in text
    else:
        assert f"{setting(name).help} (default: {shown})" in text


def test_defaults_that_depend_on_the_task_are_the_real_ones() -> None:
    locate, orient = (Config(task=task).resolved(many=False) for task in ("locate", "orient"))
    sgd = Config(optimizer="sgd").resolved(many=False)
    assert setting("steps").if_none == f"{locate.steps} for locate, {orient.steps} otherwise"
    rates = f"{locate.lr:g} for locate, {orient.lr:g} otherwise; {sgd.lr:g} with sgd"
    assert setting("lr").if_none == rates


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_examples_that_can_be_parsed(command: str) -> None:
    actions = make_parser()._subparsers
    assert actions is not None
    choices = actions._group_actions[0].choices
    assert isinstance(choices, dict)
    examples = re.findall(r"^  ul (.*?)(?:   .*| >.*)?$", choices[command].epilog, re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:
        arguments = make_parser().parse_args(example.replace("'", "").split())
        assert arguments.command == command


def test_only_given_options_are_set() -> None:
    line = ["learn", "a.mp4", "--mu", "0.25", "--size", "48x64", "--seed", "0", "--no-follow"]
    given = given_options(make_parser().parse_args([*line, "--objects", "auto"]))
    assert given == {"mu": 0.25, "size": (48, 64), "seed": 0, "follow": False, "out": "run"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "adam"}, "expected optimizer adamw or sgd, got 'adam'"),
        ({"long_mean": "year"}, "expected long_mean clip or stream"),
        ({"device": 0.5}, "expected device of type str, got 0.5"),
        ({"seed": "x"}, "expected seed of type int"),
        ({"seed": True}, "expected seed of type int"),
        ({"steps": 2.0}, "expected steps of type int"),
        ({"lr": float("nan")}, "expected lr above 0, got nan"),
        ({"lr": 1e6}, "expected lr below 1e6"),
        ({"momentum": 1.0}, "expected momentum below 1"),
        ({"weight_decay": -1}, "expected weight_decay of at least 0, got -1"),
        ({"tolerance": float("inf")}, "expected tolerance below 1e30"),
        ({"seed": 2**62}, "expected seed below"),
        ({"outputs": None}, "expected outputs of type int, got None"),
    ],
)
def test_config_refuses(settings: dict[str, object], words: str) -> None:
    with pytest.raises(Error, match=re.escape(words)):
        Config(**settings)  # type: ignore[arg-type]
