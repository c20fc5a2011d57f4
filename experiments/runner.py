"""Run experiments and write their results: tables, figures and one page."""

from __future__ import annotations

import importlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import torch
from tqdm import tqdm

import experiments.datasets as datasets
from experiments.common import Claim, Outcome, Picture, Setting, Table
from experiments.paper import NAMES
from ullayers import __version__
from ullayers.errors import Error
from ullayers.files import replacing, write_json
from ullayers.video.sources import VideoError

DATA_SOURCES = """Data: walking people and pillow, github.com/Russell91/labelfree; head poses,
Pointing'04 (Gourier 2004); objects, COIL-20 (Columbia University); rendered heads, the
LeePerrySmith scan of three.js (CC BY 3.0) and ICT-FaceKit (MIT)."""
REQUIRED_DATA: dict[str, tuple[Callable[[Path], list[datasets.Sequence]], ...]] = {
    "inplane": (datasets.turning_head, datasets.turntable),
    "pan": (datasets.head_poses, datasets.panning_heads),
    "pillow": (datasets.thrown_pillow,),
    "walk": (datasets.walking,),
    "semi": (datasets.head_poses,),
    "parts": (datasets.walking, datasets.head_poses),
    "recognise": (datasets.turntable,),
    "layerwise": (datasets.turntable,),
}
SEEDS = 5  # per row, unless the user asks for another number
MAX_SEED = 1000
PAGE = "results.md"
RESULTS_FOLDER = "results"
OUTCOME_FILE = "outcome.json"
LOG_PERIOD = 15.0  # seconds between two lines of progress in a log


@dataclass(frozen=True)
class Result:
    """An outcome, and how it was obtained.

    Attributes:
        name: Name of the experiment.
        outcome: Tables, figures and claims.
        seeds: Seeds of its runs.
        quick: Whether it was the small version.
        seconds: Wall-clock time.
        commit: Commit of the source; empty without a repository.
    """

    name: str
    outcome: Outcome
    seeds: tuple[int, ...]
    quick: bool
    seconds: float
    commit: str

    @property
    def failed(self) -> list[Claim]:
        """Claims that must hold but do not."""
        return [claim for claim in self.outcome.claims if not (claim.met or claim.aim)]


def reproduce_all(
    names: Iterable[str],
    data: str | Path | None,
    out: str | Path,
    *,
    first_seed: int = 0,
    seed_count: int | None = None,
    quick: bool = False,
    resume: bool = False,
    force: bool = False,
    quiet: bool = True,
) -> Iterator[Result]:
    """Run experiments one after the other, yield their results, and write the page.

    All arguments and the data are checked before the first experiment starts.

    Args:
        names: Some of `NAMES`, or "all".
        data: Folder of the data sets; may be None if no experiment needs it.
        out: Folder of the page and the figures.
        first_seed: Seed of the first run of each row.
        seed_count: Number of runs of each row (default: 5, or 1 if `quick`).
        quick: Run the small versions.
        resume: Keep results in `out` with the same seeds, size and source.
        force: Replace results in `out`.
        quiet: Show no progress.

    Raises:
        Error: The arguments contradict each other, or data is missing.
    """
    chosen = select_experiments(names)
    seeds = seeds_from(first_seed, seed_count or (1 if quick else SEEDS))
    if resume and force:
        raise Error("--resume keeps what --force replaces; give only one of them")
    if data is None and any(name in REQUIRED_DATA for name in chosen):
        raise Error("give --data, the folder of the data sets")
    folder = Path(data or "")
    check_data(chosen, folder)
    place = Path(out)
    page = place / PAGE
    if page.exists() and not (resume or force):
        raise Error(f"{page}: exists; --resume keeps it, --force replaces it")
    period = 0.1 if sys.stderr.isatty() else LOG_PERIOD
    for name in chosen:
        result = load_result(place, name) if resume else None
        if result is None or not is_done(result, seeds, quick):
            with tqdm(desc=name, unit=" runs", disable=quiet, mininterval=period) as bar:

                def progress(what: str, bar: tqdm[NoReturn] = bar) -> None:
                    bar.set_postfix_str(what, refresh=False)
                    bar.update()

                result = reproduce(name, folder, place, seeds, quick=quick, progress=progress)
        yield result
    write_page(place)


def reproduce(
    name: str,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    *,
    quick: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> Result:
    """Run one experiment, store its outcome under `out` and rewrite the page.

    Args:
        name: One of `NAMES`.
        data: Folder of the data sets.
        out: Folder of the page and the figures.
        seeds: Seeds of the runs that each row averages.
        quick: Run the small version.
        progress: Called with a description of each finished job.
    """
    experiment = importlib.import_module(f"experiments.paper.{name}")
    begin = time.perf_counter()
    commit = _commit()
    folder = out / RESULTS_FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOME_FILE).unlink(missing_ok=True)  # from an earlier run
    outcome = experiment.run(Setting(data, folder, tuple(seeds), quick, progress))
    seconds = round(time.perf_counter() - begin, 1)
    result = Result(name, outcome, tuple(seeds), quick, seconds, commit)
    write_json(folder / OUTCOME_FILE, asdict(result))
    write_page(out)
    return result


def select_experiments(names: Iterable[str]) -> tuple[str, ...]:
    """Return the experiments to run, each once.

    >>> select_experiments(["walk", "pan", "walk"])
    ('walk', 'pan')
    >>> select_experiments(["pan", "all"]) == NAMES
    True
    """
    chosen = tuple(dict.fromkeys(names))
    return NAMES if "all" in chosen else chosen


def seeds_from(first: int, count: int) -> range:
    """Return the seeds of every row."""
    if first < 0 or first + count > MAX_SEED:
        raise Error(f"expected seeds from 0 to {MAX_SEED}, got {count} from {first} on")
    return range(first, first + count)


def check_data(names: Iterable[str], data: Path) -> None:
    """Check that the data of these experiments exists."""
    readers = [reader for name in names for reader in REQUIRED_DATA.get(name, ())]
    for reader in dict.fromkeys(readers):
        if not reader(data):
            raise VideoError(
                f"{data}: contains no images for {reader.__name__}; download the data again"
            )


def load_result(out: Path, name: str) -> Result | None:
    """Load the stored result of an experiment; None if there is none that can be read."""
    try:
        text = (out / RESULTS_FOLDER / name / OUTCOME_FILE).read_text(encoding="utf-8")
        stored: dict[str, Any] = json.loads(text)
        parts = {"tables": Table, "pictures": Picture, "claims": Claim}
        for key, kind in parts.items():
            stored["outcome"][key] = [kind(**values) for values in stored["outcome"][key]]
        stored["outcome"] = Outcome(**stored["outcome"])
        stored["seeds"] = tuple(stored["seeds"])
        return Result(**{field.name: stored[field.name] for field in fields(Result)})
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None  # damaged, or from another version: the experiment is run again


def is_done(result: Result, seeds: Sequence[int], quick: bool) -> bool:
    """Return whether a stored result has these seeds and this size, and is of this source."""
    wanted = (tuple(seeds), quick, _commit())
    return (result.seeds, result.quick, result.commit) == wanted


def write_page(out: Path) -> None:
    """Write one page with all results under `out`."""
    results = [result for name in NAMES if (result := load_result(out, name))]
    total = sum(result.seconds for result in results)
    head = [
        "# Results",
        "",
        "Written by `python -m experiments`. Labels are used for scores only, unless a row or its "
        "text says otherwise. With several seeds, numbers are mean and standard deviation. Bold "
        "marks the best value of a column. Pictures of the data and tables of positions are "
        "written next to the figures and are not kept here.",
        "",
        DATA_SOURCES,
        "",
        f"ullayers {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}; total time: {total / 60:.0f} min.",
        "",
    ]
    with replacing(out / PAGE) as file:
        file.write("\n".join(head + [_section(result) for result in results]).rstrip() + "\n")


def _section(result: Result) -> str:
    outcome = result.outcome
    place = f"{RESULTS_FOLDER}/{result.name}"
    lines = [f"## {outcome.title}", ""]
    if result.quick:
        lines += ["**Quick check of a small version; the text describes the full one.**", ""]
    lines += [outcome.text.strip(), ""]
    for table in outcome.tables:
        lines += [table.markdown(), ""]
    if outcome.claims:
        lines += ["| goal | result | target | |", "|---|---|---|---|"]
        lines += [_goal(claim) for claim in outcome.claims] + [""]
    for picture in outcome.pictures:
        lines += _figure(picture, place)
    lines += [f"`{place}/{file}`: {what}\n" for file, what in outcome.files.items()]
    return "\n".join([*lines, _provenance(result), ""])


def _figure(picture: Picture, place: str) -> list[str]:
    if picture.of_data:  # frames of the data sets are not published
        return [f"`{place}/{picture.file}`: {picture.caption}", ""]
    return [f"![{picture.caption}]({place}/{picture.file})", "", picture.caption, ""]


def _provenance(result: Result) -> str:
    quick = " --quick" if result.quick else ""
    seeds = ", ".join(map(str, result.seeds))
    commit = result.commit or "unknown"
    return (
        f"*`python -m experiments {result.name}{quick}`, seeds {seeds}, {result.seconds:.0f} s, "
        f"commit {commit}.*"
    )


def _goal(claim: Claim) -> str:
    limits = {"at least": claim.at_least, "at most": claim.at_most}
    target = " and ".join(f"{word} {v:g}" for word, v in limits.items() if abs(v) < 1e300)
    if claim.aim:
        target += " (aim)"
    met = "met" if claim.met else "**not met**"
    return f"| {claim.what} | {claim.value:.4g} | {target} | {met} |"


def _commit() -> str:
    """Return the commit of this source, with a + if the working tree has changes."""
    try:
        changed = "+" if _git("status", "--porcelain", ".") else ""
        return _git("rev-parse", "--short", "HEAD") + changed
    except OSError:  # git is not installed
        return ""


def _git(*arguments: str) -> str:
    """Return the output of a git command; empty if it fails."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
