"""Benchmarks of speed, memory and quality: `python -m experiments.bench`.

Each of `PARTS` is a module that yields rows (`rows`) and formats them (`line`). Competing methods
are always measured side by side in one run.
"""

PARTS = ("layers", "growth", "peers", "video")
