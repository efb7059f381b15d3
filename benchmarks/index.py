"""Searching an index at scale: time of a query by one feature and by all of them, and disk.

    python benchmarks/index.py                                  # a trial: 2,000 vectors
    python benchmarks/index.py --rows 200000 1000000 --embed 512 --features 6 --threads 2

The vectors are random unit vectors: a search compares all of them, so its time does not depend on what they
are. Each size runs in a process of its own, where waiting threads sleep, as in the command and the server.
The first query by a feature also checks the lengths of its vectors; it is among those timed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dear.cli.main import prepare
from dear.retrieval.build import Entry, append, finish, open_to_write
from dear.retrieval.index import open_index

CHUNK = 16_384  # rows written at a time
FOUND = 10


def fill(folder: Path, rows: int, embed: int, features: int) -> None:
    """An index of vectors without images."""
    facts = {"identity": "", "features": names(features), "embed": embed, "folder": "", "model": ""}
    generator = torch.Generator().manual_seed(0)
    with open_to_write(folder, facts) as store:
        for start in range(0, rows, CHUNK):
            numbers = range(start, min(start + CHUNK, rows))
            files = [Entry(f"{row}.jpg", 0, 0, f"{row:064x}", row) for row in numbers]
            append(store, files, unit(torch.randn(len(files), features, embed, generator=generator)))
        finish(store)


def measure(folder: Path, rows: int, embed: int, features: int, queries: int) -> dict[str, Any]:
    """Run the queries one after the other."""
    index = open_index(folder)
    vectors = unit(torch.randn(queries, embed, generator=torch.Generator().manual_seed(1)))
    row: dict[str, Any] = {"rows": rows, "embed": embed, "features": features}
    row["vectors MB"] = round(sum(path.stat().st_size for path in folder.glob("*/*.f16")) / 1e6)
    for what, asked in (("one", names(1)), ("all", names(features))):
        seconds = []
        for vector in vectors:
            start = time.perf_counter()
            hits = index.query(dict.fromkeys(asked, vector), count=FOUND)
            seconds.append(time.perf_counter() - start)
            assert len(hits) == FOUND
        for name, share in (("best", 0), ("median", 0.5), ("95% below", 0.95)):
            row[f"{what}: {name} ms"] = round(1000 * float(np.quantile(seconds, share)), 1)
    return row


def names(features: int) -> list[str]:
    return ["class", *(f"attribute {number}" for number in range(1, features))]


def unit(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows, dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[2000])
    parser.add_argument("--embed", type=int, default=64)
    parser.add_argument("--features", type=int, default=6)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.folder:
        (rows,) = options.rows
        print(json.dumps(measure(options.folder, rows, options.embed, options.features, options.queries)))
        return
    for number, rows in enumerate(options.rows):
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), rows, options.embed, options.features)
            command = [sys.executable, __file__, "--folder", folder, "--rows", str(rows)]
            for name in ("embed", "features", "queries", "threads"):
                command += [f"--{name}", str(getattr(options, name))]
            environment = dict(os.environ)
            prepare(environment)
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        row = json.loads(done.stdout)
        if not number:
            print("| " + " | ".join(row) + " |\n|" + " --- |" * len(row))
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


if __name__ == "__main__":
    main()
