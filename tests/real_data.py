"""The folder of the real data sets, for tests with the mark `data`."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("ULLAYERS_DATA") or "/nonexistent")
