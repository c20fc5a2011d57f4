"""README.md of a run: a model card in the format of the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ullayers import __version__
from ullayers.learn.folders import CARD, CARD_START, is_own_card
from ullayers.learn.results import SURE
from ullayers.learn.runs import Run, csv_name
from ullayers.output.exported import Exported
from ullayers.output.summary import distrust_reasons, found_share, run_title, trained_frames
from ullayers.output.track_table import open_table
from ullayers.video.atomic_files import replacing
from ullayers.video.follow import SIDE

SHOWN_SEQUENCES = 20
TASKS = {
    "locate": "the position and the mask of the moving object in each frame",
    "orient": "a code of each frame that follows the orientation of the object",
    "features": "the slowest features of each frame, slowest first",
}
# Characters that Markdown and the Hub interpret within a line: links (even without brackets), HTML,
# emphasis, code, formulas, :emoji:, cell borders. Other characters are plain text.
SPECIAL = r"[\\`*_\[\]<>#!|&~$@]|:(?! )|(?<=[wW]{3})\."
# Task names of the Hub.
PIPELINES = {
    "locate": "image-segmentation",
    "orient": "image-feature-extraction",
    "features": "image-feature-extraction",
}
USES = {
    "locate": """\
# foreground: frames minus the scene without the object, (time, {shape}), frames in 0..1
found = net(foreground)
found.centroid, net.confidence(found), net.picture(found)  # positions in 0..1, masks""",
    "orient": "code = net.code(frames)  # frames: (time, {shape}) in 0..1",
    "features": "code = net.code(frames)  # frames: (time, {shape}) in 0..1",
}


def write_card(run: Run, exported: Exported) -> None:
    """Write README.md into the run folder.

    Args:
        run: A finished run.
        exported: Results of `export`.
    """
    results = [_table(["", ""], _figures(run, exported)), *_trust(run, exported)]
    _write(run, f"trained {_supervision(run)} by `ul learn`", results, _sequences(exported))


def write_watch_card(run: Run) -> None:
    """Write README.md into the folder of `watch`, unless the user has put one there."""
    if not is_own_card(run.folder):
        return
    result = run.outcome
    rows = [("Task", run.config.task), *_watched_figures(run)]
    names = [(escaped(name), _number(result.frames, ",")) for name in result.sources]
    _write(
        run,
        "trained without labels, while frames arrived, by `ul watch`",
        [_table(["", ""], rows)],
        _table(["Source", "Frames"], names),
    )


def _watched_figures(run: Run) -> list[Sequence[str]]:
    result = run.outcome
    rows = [
        ("Frames", _number(result.frames, ",")),
        ("J of the last training step, lower is better", _number(result.objective, ".2f")),
        ("Seed", _number(result.seed, "d")),
    ]
    if run.config.task == "locate" and result.frames:
        share = f"{sure_frames(run) / result.frames:.1%} of the frames"
        rows.insert(1, ("Object found (confidence of at least 0.5)", share))
    return list(rows)


def sure_frames(run: Run) -> int:
    """Return the number of frames in which an object was found with sufficient confidence."""
    _, parts = open_table(run.folder / csv_name(run), ["confidence"], ["confidence"])
    sure = [rows[rows[:, 1] >= SURE, 0] for part in parts for rows in part.values()]
    return len(np.unique(np.concatenate(sure))) if sure else 0


def _write(run: Run, how: str, results: Sequence[str], data: str) -> None:
    parts = [
        _front_matter(run),
        f"# {escaped(run_title(run))}",
        f"A network for video, {how} of ullayers {__version__}. "
        f"Its result is {TASKS[run.config.task]}.",
        "## Results",
        *results,
        "## Data",
        data,
        "## How to use it",
        _usage(run),
    ]
    with replacing(run.folder / CARD) as file:
        file.write("\n\n".join(parts) + "\n")


def _supervision(run: Run) -> str:
    if run.teaching is None:
        return "without labels"
    count = run.teaching.corrections
    return f"with the UL layers and {count} user correction{'s' * (count != 1)}"


def escaped(text: str) -> str:
    r"""Escape text, such as a file name, so that Markdown shows it unchanged.

    >>> print(escaped("day 1: a_[b](c)|<d>.mp4"))
    day 1: a\_\[b\](c)\|\<d\>.mp4
    """
    printable = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(SPECIAL, r"\\\g<0>", " ".join(printable.split()))


def _front_matter(run: Run) -> str:
    task = run.config.task
    tags = ["unsupervised-learning", "slow-feature-analysis", "video", task]
    lines = [f"pipeline_tag: {PIPELINES[task]}", "tags:", *(f"- {tag}" for tag in tags), "---"]
    return CARD_START.decode() + "\n".join(lines)


def _figures(run: Run, exported: Exported) -> list[Sequence[str]]:
    result, share = run.outcome, found_share(run, exported)
    rows = [
        ("Task", run.config.task),
        ("Frames", f"{exported.totals.frames:,}"),
        ("Trained on", trained_frames(run)),
        ("J of the evaluation, lower is better", _number(result.objective, ".2f")),
        ("J before training", _number(result.start, ".2f")),
        ("Trusted", "no" if distrust_reasons(run, exported) else "yes"),
        ("Training steps", _number(result.steps, ",")),
        ("Seed", _number(result.seed, "d")),
    ]
    if share is not None:
        rows.insert(3, ("Object found (confidence of at least 0.5)", f"{share:.1%} of the frames"))
    return list(rows)


def _trust(run: Run, exported: Exported) -> list[str]:
    reasons = distrust_reasons(run, exported)
    if not reasons:
        return []
    return [
        "Check these results before you use them:",
        "\n".join(f"- {r}" for r in reasons),
    ]


def _sequences(exported: Exported) -> str:
    pairs = list(zip(exported.answers, exported.infos, strict=True))
    rows = [
        (
            escaped(answer.sequence),
            f"{len(answer.index):,}",
            f"{info.width} x {info.height}",
            _number(info.rate, ".3g"),
        )
        for answer, info in pairs[:SHOWN_SEQUENCES]
    ]
    table = _table(["Sequence", "Frames", "Size", "Frames per second"], rows)
    more = len(pairs) - len(rows)
    return f"{table}\n\n{more} more are in summary.json." if more > 0 else table


def _usage(run: Run) -> str:
    size = (SIDE, SIDE) if run.reading.follow else run.reading.size or ()
    shape = ", ".join(map(str, (run.reading.channels, *size)))
    use = USES[run.config.task].format(shape=shape)
    if run.reading.follow:
        use += ", square crops around the object"
    return f"""\
Apply it to another video (`RUN` is this folder):

    ul apply RUN video.mp4 --out found

The network alone, without reading video:

```python
import ullayers as ul

net = ul.from_pretrained("RUN")
{use}
```

`ul export RUN --onnx FILE` writes it for other programs."""


def _number(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
