"""`ul demo`: learn from a synthetic video and compare with its true positions."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ullayers.cli.learn import learn
from ullayers.learning.config import Config
from ullayers.run.folder import check_free, locked
from ullayers.video.demo_films import write_scene

VIDEO = "scene.mp4"
TRUTH = "truth.csv"
RUN = "run"


def run(arguments: Namespace) -> None:
    """Render the video unless it exists, then learn from it."""
    out = Path(arguments.out)
    folder = out / RUN
    with locked(folder):  # `ul learn` could write to it at the same time
        has_scene = (out / VIDEO).exists() and (out / TRUTH).exists()
        if not (arguments.resume and has_scene):
            check_free(out, arguments.force, (VIDEO, TRUTH))
            check_free(folder, arguments.force)
            seed = Config().seed if arguments.seed is None else arguments.seed
            write_scene(out, seed=seed)
        learn(_learn_arguments(arguments, out), truth=out / TRUTH)


def _learn_arguments(arguments: Namespace, out: Path) -> Namespace:
    """Return the command line of `ul learn` that learns from the rendered video."""
    values = vars(arguments) | {
        "inputs": [str(out / VIDEO)],
        "out": str(out / RUN),
        "skip_bad": False,
        "masks": False,
        "zones": None,
        "mm_per_pixel": None,
        "corrections": None,
        "resume": arguments.resume and (out / RUN / "config.json").exists(),
    }
    return Namespace(**values)
