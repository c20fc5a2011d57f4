"""What can be said to the command `ul`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ABOUT = """Learn from video without labels: where the moving thing is, which way it is turned, or
what changes slowly. Start with: ul demo"""
INPUTS = """video files, folders of pictures (one sequence each, in order of their names, 2 before
10), folders of such folders or of videos, or quoted patterns like 'day*/*.mp4'"""

FIRST = "the first N frames of each input, those that --stride leaves out counted"

MANY = 10**9

Do = Callable[[argparse.Namespace], int | None]


class Parser(argparse.ArgumentParser):
    """Errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Leave with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser(
    demo: Do, learn: Do, apply: Do, watch: Do, reproduce: Do, bench: Do
) -> Parser:  # fmt: skip
    """The parser; what was chosen is in `do`."""
    parser = Parser(prog="ul", description=ABOUT)
    from ullayers import __version__

    parser.add_argument("--version", action="version", version=f"ullayers {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands, demo)
    _add_learn(commands, learn)
    _add_apply(commands, apply)
    _add_watch(commands, watch)
    _add_reproduce(commands, reproduce)
    _add_bench(commands, bench)
    return parser


def _add_demo(commands: Any, do: Do) -> None:
    parser = commands.add_parser(
        "demo",
        help="make a small video, learn from it, compare with the truth",
        description="""Renders a video of a toy beetle that crawls and turns on a cluttered table
        with noise and a flickering lamp, learns where it is from the pixels alone, exactly as
        `ul learn` does, and scores itself against the truth. Under two minutes.""",
    )
    _out(parser, "demo", "DIR", "where to write")
    _common(parser, do, resume="go on with a demo that was stopped")


def _add_learn(commands: Any, do: Do) -> None:
    parser = commands.add_parser(
        "learn",
        help="learn from video, then write a table, a video to look at and a report",
        description="""Learns from the inputs and applies what it learned to them. In the run folder
        you find report.html, overlay.mp4, tracks.csv (places in 0..1 from the top left) or
        codes.csv, and the network for `ul apply`.""",
        epilog="""examples:
  ul learn mouse.mp4 --out run
  ul learn heads/ --task orient --out turn
  ul learn --resume --out run""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("inputs", nargs="*", type=_path, metavar="INPUT", help=INPUTS)
    _out(parser, "run", "RUN", "the run folder")
    _learning(parser, ["locate", "orient", "features"])
    _reading(
        parser,
        "learn from every Nth frame (default: about six a second, all if there are few); the table "
        "has every frame in any case",
        FIRST,
    )
    parser.add_argument(
        "--steps", type=_whole, metavar="N", help="steps of learning (120 for locate, else 300)"
    )
    parser.add_argument("--follow", action="store_true", default=None,
                        help="orient, features: look at a square around what moves and not at the "
                        "whole frame (frames are then read at --size 128)")  # fmt: skip
    parser.add_argument("--long-mean", choices=["clip", "stream"],
                        help="what to be rich around: the mean of each clip, or of all (locate: "
                        "chosen by J; codes: clip if there are many inputs)")  # fmt: skip
    parser.add_argument("--restarts", type=_whole, metavar="N", help="seeds to try (2)")
    parser.add_argument("--masks", action="store_true", help="also write every mask as a PNG")
    _skip_bad(parser)
    _common(parser, do, resume="go on with a run that was stopped; inputs and options are its own")


def _add_apply(commands: Any, do: Do) -> None:
    parser = commands.add_parser(
        "apply",
        help="use a finished run on other video",
        description="Writes tracks.csv or codes.csv for new video with what a run has learned.",
    )
    parser.add_argument("run", type=_path, metavar="RUN", help="a folder that `ul learn` made")
    parser.add_argument("inputs", nargs="+", type=_path, metavar="INPUT", help=INPUTS)
    _out(parser, "applied", "DIR", "where to write")
    parser.add_argument(
        "--stride", type=_whole, default=1, metavar="N", help="look at every Nth frame only"
    )
    parser.add_argument("--max-frames", type=_whole, metavar="N", help=FIRST)
    parser.add_argument("--masks", action="store_true", help="also write every mask as a PNG")
    parser.add_argument("--overlay", action="store_true", help="also write overlay.mp4")
    _skip_bad(parser)
    _common(parser, do, resume="keep the sequences that are finished, do the others")


def _add_watch(commands: Any, do: Do) -> None:
    parser = commands.add_parser(
        "watch",
        help="learn while frames arrive, from a camera, a stream or a file",
        description="""One frame in, one step of learning, one line out: for as long as frames come,
        in constant memory. On a terminal it shows a live view, else it prints CSV lines.""",
        epilog="""examples:
  ul watch 0
  ul watch rtsp://door/hall --out hall
  ul watch day.mp4 > day.csv""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=_path, metavar="VIDEO|CAMERA|URL",
                        help="a file, a folder of pictures, 0, /dev/video1, a URL")  # fmt: skip
    parser.add_argument("--out", type=_path, metavar="RUN",
                        help="keep a table and the network in this folder")  # fmt: skip
    parser.add_argument("--every", type=_seconds, default=60.0, metavar="S",
                        help="seconds between checkpoints (%(default)s)")  # fmt: skip
    parser.add_argument("--lines", action="store_true", help="print lines on a terminal too")
    _learning(parser, ["locate", "orient"])
    _reading(
        parser,
        "learn from every Nth frame (default: every frame)",
        "stop after N frames, those that --stride leaves out counted; --resume goes on for N more",
    )
    _common(parser, do, resume="go on from the last checkpoint in --out; a file or folder goes on "
            "after the last frame that was learned from")  # fmt: skip


def _add_reproduce(commands: Any, do: Do) -> None:
    from ullayers.research.experiments.names import NAMES

    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments on the real data",
        description="""Runs experiments of the paper and more, beside what others use, and writes
        results.md with tables and figures. Labels score; they train only the rows that say so.""",
        epilog="""The exit code is 1 if something that must hold does not.
examples:
  ul reproduce synthetic
  ul reproduce walk pan --data data --out found
  ul reproduce all --data data --quick""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=[*NAMES, "all"], metavar="NAME",
                        help=", ".join(NAMES) + ", or all")  # fmt: skip
    parser.add_argument("--data", type=_path, default=os.environ.get("ULLAYERS_DATA") or None,
                        metavar="DIR",
                        help="the folder of the data sets (default: $ULLAYERS_DATA)")  # fmt: skip
    parser.add_argument("--out", type=_path, default="reproduced", metavar="DIR",
                        help="where to write (%(default)s)")  # fmt: skip
    parser.add_argument("--quick", action="store_true",
                        help="small versions that only check that learning works")  # fmt: skip
    parser.add_argument("--seeds", type=_whole, metavar="N",
                        help="runs of each row (5; 1 with --quick)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument("--force", action="store_true", help="replace what is in --out")
    parser.add_argument("--resume", action="store_true", help="keep experiments that are finished")
    parser.set_defaults(do=do)


def _add_bench(commands: Any, do: Do) -> None:
    from ullayers.research.bench.names import PARTS

    parser = commands.add_parser(
        "bench",
        help="measure speed, memory and quality beside others",
        description="""Measures side by side in one run; all take turns and the fastest round
        counts. Ratios travel between machines, times do not.
  layers  forward and backward beside batch norm, layer norm and a convolution (the default)
  growth  time and memory against the size of everything, with fitted exponents
  peers   SlowFeatures and learning beside deeptime, sklearn-sfa, scikit-learn and CEBRA
  video   decoding and locating beside OpenCV; where `ul learn` spends its time
  all     everything""",
        epilog="""Peers come with: pip install 'ullayers[peers]'
examples:
  ul bench --device cuda
  ul bench growth --plots charts
  ul bench all --quick --json bench.json""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=[*PARTS, "all"], default=PARTS[0],
                        metavar="PART", help=", ".join(PARTS) + ", or all")  # fmt: skip
    parser.add_argument("--device", default="cpu", help="of the layers: cpu (the default), cuda")
    parser.add_argument("--threads", type=_whole, default=1, metavar="N",
                        help="of the CPU (%(default)s)")  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="a trial of a few small steps; its numbers mean little"
    )
    parser.add_argument("--json", type=_path, metavar="FILE",
                        help="also write everything to this file")  # fmt: skip
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw growth into this folder")
    parser.add_argument("--video", type=_path, metavar="FILE",
                        help="to measure on (default: the mouse of $ULLAYERS_DATA, or else the "
                        "scene of ul demo)")  # fmt: skip
    parser.add_argument("--mdp", type=_path, metavar="PYTHON",
                        help="a Python that has MDP, which needs an old numpy")  # fmt: skip
    parser.set_defaults(do=do, out=None, resume=False)


def _learning(parser: argparse.ArgumentParser, tasks: list[str]) -> None:
    parser.add_argument("--task", choices=tasks, default=None,
                        help="locate (the default): masks and places of what moves; orient: a code "
                        "of which way it is turned" + "; features: the slowest features" *
                        ("features" in tasks))  # fmt: skip
    more = parser.add_argument_group("learning")
    more.add_argument(
        "--outputs", type=_whole, metavar="D", help="numbers in a code (2); locate has x and y"
    )
    more.add_argument(
        "--mu", type=float, help="short-term rate, nearer 0 for a longer moment (0.5)"
    )
    more.add_argument(
        "--eps", type=float, help="long-term rate, nearer 0 for a longer past (0.001)"
    )
    more.add_argument("--optimizer", choices=["adamw", "sgd"], help="adamw is the default; sgd has "
                      "the paper's rate 1e-5, momentum 0.9 and weight decay 0.01")  # fmt: skip
    more.add_argument(
        "--lr", type=float, help="learning rate (3e-3 for locate, 1e-3 for codes, 3e-4 for watch)"
    )
    more.add_argument("--momentum", type=float, help="momentum of sgd (0.9)")
    more.add_argument("--weight-decay", type=float, help="weight decay (0.01)")
    more.add_argument("--tolerance", type=float,
                      help="stop when J falls by less over 20 steps (0: never)")  # fmt: skip


def _reading(parser: argparse.ArgumentParser, stride: str, most: str) -> None:
    more = parser.add_argument_group("reading")
    more.add_argument("--size", type=_size, metavar="N|HxW",
                      help="of frames to learn from: the longer side (64), or 48x64")  # fmt: skip
    more.add_argument("--stride", type=_whole, metavar="N", help=stride)
    more.add_argument("--max-frames", type=_whole, metavar="N", help=most)
    more.add_argument("--grey", action="store_true", default=None, help="without colour")


def _out(parser: argparse.ArgumentParser, name: str, metavar: str, what: str) -> None:
    parser.add_argument(
        "--out", type=_path, default=name, metavar=metavar, help=f"{what} (%(default)s)"
    )


def _skip_bad(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skip-bad", action="store_true",
                        help="leave out inputs that cannot be read, and list them")  # fmt: skip


def _common(parser: argparse.ArgumentParser, do: Do, resume: str) -> None:
    parser.add_argument("--seed", type=int, help="seed of everything that is random (0)")
    parser.add_argument("--device", help="cpu (the default), cuda, ...")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument("--force", action="store_true", help="replace what is in --out")
    parser.add_argument("--resume", action="store_true", help=resume)
    parser.set_defaults(do=do)


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= MANY:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 1e9, got {text!r}")
    return value


def _path(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got an empty one; is a variable unset?")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds of at least 0, got {text!r}")
    return value


def _size(text: str) -> int | tuple[int, int]:
    parts = text.lower().split("x")
    try:
        sides = [int(part) for part in parts]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 8:
        raise argparse.ArgumentTypeError(f"expected 64 or 48x64, sides of 8 or more, got {text!r}")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])
