"""Runs a command and writes its time and peak memory: `python measure.py COSTS LOG COMMAND...`.

This is a process of its own, and a small one: the peak memory that the system reports for a child
is never less than the memory of the process that started it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss


def main(costs: str, log: str, command: list[str]) -> int:
    begin = time.perf_counter()
    with open(log, "w", encoding="utf-8") as output:
        code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT)
    seconds = time.perf_counter() - begin
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(costs, "w", encoding="utf-8") as file:
        values = {
            "seconds": seconds,
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_mib": usage.ru_maxrss * RSS_UNIT / 2**20,
        }
        json.dump(values, file)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
