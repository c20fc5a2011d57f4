"""What UL layers cost beside batch norm, layer norm and a convolution: a table and a JSON file.

python benchmarks/layers.py [--device cuda] [--threads 2] [--quick] [--json results.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ullayers.bench import bench, line, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="without the large shapes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for row in bench(given.device, given.quick):
        print(line(row), flush=True)
        rows.append(row)
    if given.json:
        write(rows, given.device, given.json)


if __name__ == "__main__":
    main()
