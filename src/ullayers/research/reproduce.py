"""Runs the paper's experiments and writes what they found: tables, figures and one page."""

from __future__ import annotations

import importlib
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

import ullayers.research.datasets as datasets
from ullayers import __version__
from ullayers.errors import UserError
from ullayers.research.experiments.common import Claim, Outcome, Picture, Setting, Table
from ullayers.research.experiments.names import NAMES
from ullayers.video.atomic_files import replacing, write_json
from ullayers.video.reader import VideoError

SOURCES = """Data: walking people and pillow, github.com/Russell91/labelfree; head poses,
Pointing'04 (Gourier 2004); objects, COIL-20 (Columbia University); rendered heads, the
LeePerrySmith scan of three.js (CC BY 3.0) and ICT-FaceKit (MIT)."""
NEEDED: dict[str, tuple[Callable[[Path], list[datasets.Sequence]], ...]] = {
    "inplane": (datasets.turning_head, datasets.turntable),
    "pan": (datasets.head_poses, datasets.panning_heads),
    "pillow": (datasets.thrown_pillow,),
    "walk": (datasets.walking,),
    "semi": (datasets.head_poses,),
    "parts": (datasets.walking, datasets.head_poses),
    "recognise": (datasets.turntable,),
    "layerwise": (datasets.turntable,),
}
MOST = 1000  # seeds
PAGE, FOLDER, KEPT = "results.md", "results", "outcome.json"


@dataclass(frozen=True)
class Result:
    """An outcome with how it came about.

    Attributes:
        name: of the experiment.
        outcome: what it found.
        seeds: of its runs.
        quick: whether it was the small version.
        seconds: it took.
        commit: of the source it was run from; empty where there is no repository.
    """

    name: str
    outcome: Outcome
    seeds: tuple[int, ...]
    quick: bool
    seconds: float
    commit: str

    @property
    def failed(self) -> list[Claim]:
        """What must hold and does not."""
        return [claim for claim in self.outcome.claims if not (claim.met or claim.aim)]


def reproduce(
    name: str, data: Path, out: Path, seeds: Sequence[int], *,
    quick: bool = False, progress: Callable[[str], None] = lambda what: None,
) -> Result:  # fmt: skip
    """Run one experiment and keep its outcome under `out`.

    Args:
        name: one of `NAMES`.
        data: the folder of the data sets.
        out: where the page and the folder of figures go.
        seeds: of the runs that every row is the mean of.
        quick: the small version.
        progress: called with what has just been done.
    """
    experiment = importlib.import_module(f"ullayers.research.experiments.{name}")
    begin, commit = time.perf_counter(), _commit()
    folder = out / FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KEPT).unlink(missing_ok=True)  # what is there is of another run
    outcome = experiment.run(Setting(data, folder, tuple(seeds), quick, progress))
    seconds = round(time.perf_counter() - begin, 1)
    result = Result(name, outcome, tuple(seeds), quick, seconds, commit)
    write_json(folder / KEPT, asdict(result))
    write_page(out)
    return result


def seeds_from(first: int, count: int) -> range:
    """The seeds of every row."""
    if first < 0 or first + count > MOST:
        raise UserError(f"expected seeds from 0 to {MOST}, got {count} from {first} on")
    return range(first, first + count)


def check_data(names: Iterable[str], data: Path) -> None:
    """Look for everything that these experiments need, before the first of them begins."""
    for reader in {reader: None for name in names for reader in NEEDED.get(name, ())}:
        if not reader(data):
            raise VideoError(f"{data}: holds no pictures for {reader.__name__}; get the data again")


def load_result(out: Path, name: str) -> Result | None:
    """What an experiment found earlier, if it was run to its end and can be read."""
    try:
        kept: dict[str, Any] = json.loads((out / FOLDER / name / KEPT).read_text(encoding="utf-8"))
        parts = {"tables": Table, "pictures": Picture, "claims": Claim}
        for key, kind in parts.items():
            kept["outcome"][key] = [kind(**values) for values in kept["outcome"][key]]
        kept["outcome"] = Outcome(**kept["outcome"])
        kept["seeds"] = tuple(kept["seeds"])
        return Result(**{field.name: kept[field.name] for field in fields(Result)})
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None  # of another version, or damaged: it is run again


def is_done(result: Result | None, seeds: Sequence[int], quick: bool) -> bool:
    """Whether an experiment need not be run again: same seeds, same size, same source."""
    return result is not None and (
        (result.seeds, result.quick, result.commit) == (tuple(seeds), quick, _commit())
    )


def write_page(out: Path) -> None:
    """One page of all outcomes under `out`."""
    results = [result for name in NAMES if (result := load_result(out, name))]
    total = sum(result.seconds for result in results)
    head = [
        "# Results",
        "",
        "Written by `ul reproduce`. Labels score; they train or choose nothing but where a row or "
        "its text says so. Where there are several seeds, numbers are their mean and standard "
        "deviation. Bold is the best of a column, whoever it is. Pictures of the data and tables "
        "of places are written beside the figures and not kept here.",
        "",
        SOURCES,
        "",
        f"ullayers {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}; {total / 60:.0f} minutes in all.",
        "",
    ]
    with replacing(out / PAGE) as file:
        file.write("\n".join(head + [_section(result) for result in results]).rstrip() + "\n")


def _section(result: Result) -> str:
    outcome, place = result.outcome, f"{FOLDER}/{result.name}"
    lines = [f"## {outcome.title}", ""]
    if result.quick:
        lines += ["**A quick check of a small version; the text is that of the whole.**", ""]
    lines += [outcome.text.strip(), ""]
    for table in outcome.tables:
        lines += [table.markdown(), ""]
    if outcome.claims:
        lines += ["| goal | found | wanted | |", "|---|---|---|---|"]
        lines += [_goal(claim) for claim in outcome.claims] + [""]
    for picture in outcome.pictures:
        if picture.of_data:  # frames of the data stay where the experiment was run
            lines += [f"`{place}/{picture.file}`: {picture.caption}", ""]
        else:
            lines += [f"![{picture.caption}]({place}/{picture.file})", "", picture.caption, ""]
    lines += [f"`{place}/{file}`: {what}\n" for file, what in outcome.files.items()]
    quick = " --quick" if result.quick else ""
    seeds = ", ".join(map(str, result.seeds))
    lines += [f"*`ul reproduce {result.name}{quick}`, seeds {seeds}, {result.seconds:.0f} s, "
              f"commit {result.commit or 'unknown'}.*", ""]  # fmt: skip
    return "\n".join(lines)


def _goal(claim: Claim) -> str:
    limits = {"at least": claim.at_least, "at most": claim.at_most}
    wanted = " and ".join(f"{word} {v:g}" for word, v in limits.items() if abs(v) < 1e300)
    kind, met = " (aim)" * claim.aim, "met" if claim.met else "**not met**"
    return f"| {claim.what} | {claim.value:.4g} | {wanted}{kind} | {met} |"


def _commit() -> str:
    """The commit of this source, with a + if something has been changed since."""
    here = Path(__file__).parent

    def ask(*words: str) -> str:
        asked = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        return asked.stdout.strip() if asked.returncode == 0 else ""

    try:
        return ask("rev-parse", "--short", "HEAD") + "+" * bool(ask("status", "--porcelain", "."))
    except OSError:  # no git on this machine
        return ""
