"""UL layers with running statistics, for tests of properties that only these have."""

from __future__ import annotations

from functools import partial

import ullayers as ul

UL1d = partial(ul.UL1d, statistics="running")
UL2d = partial(ul.UL2d, statistics="running")
