"""Searching an index at scale: time of a query by one feature and by all of them, and disk.

    python benchmarks/index.py                                  # a trial: 2,000 vectors
    python benchmarks/index.py --rows 200000 1000000 --embed 512 --features 6 --threads 2

The vectors are random unit vectors: a search compares all of them, so its time does not depend on what they
are. The first query by a feature also checks the lengths of its vectors; it is among those timed.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import describe_machine
from table import table
from torch.nn.functional import normalize

from dear.retrieval.build import Entry, append, finish, open_to_write
from dear.retrieval.index import open_index

CHUNK = 16_384  # rows written at a time
FOUND = 10


def fill(folder: Path, rows: int, embed: int, features: list[str]) -> None:
    """Write an index of vectors without images."""
    facts = {"identity": "", "features": features, "embed": embed, "folder": "", "model": ""}
    generator = torch.Generator().manual_seed(0)
    with open_to_write(folder, facts) as store:
        for start in range(0, rows, CHUNK):
            numbers = range(start, min(start + CHUNK, rows))
            files = [Entry(f"{row}.jpg", 0, 0, f"{row:064x}", row) for row in numbers]
            vectors = torch.randn(len(files), len(features), embed, generator=generator)
            append(store, files, normalize(vectors, dim=-1))
        finish(store)


def search(folder: Path, embed: int, features: list[str], queries: int) -> dict[str, Any]:
    """Time queries, one after the other."""
    index = open_index(folder)
    vectors = normalize(torch.randn(queries, embed, generator=torch.Generator().manual_seed(1)), dim=-1)
    size = sum(p.stat().st_size for p in folder.glob("*/*.f16")) / len(features)
    row: dict[str, Any] = {"vectors of a feature, GB": round(size / 1e9, 1)}
    for title, names in (("one feature", features[:1]), ("all features", features)):
        seconds = []
        for vector in vectors:
            start = time.perf_counter()
            hits = index.query(dict.fromkeys(names, vector), count=FOUND)
            seconds.append(time.perf_counter() - start)
            assert len(hits) == FOUND
        for name, share in (("best", 0), ("median", 0.5)):
            row[f"{title}: {name} ms"] = round(1000 * float(np.quantile(seconds, share)), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[2000])
    parser.add_argument("--embed", type=int, default=64)
    parser.add_argument("--features", type=int, default=6)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file of the result: benchmarks/results/index.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    features = ["class", *(f"attribute {number}" for number in range(1, options.features))]
    lines = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), rows, options.embed, features)
            lines.append({"images": rows} | search(Path(folder), options.embed, features, options.queries))
    print("\n".join(table(lines)))
    if options.out is not None:
        names = ("embed", "features", "threads", "queries")
        settings = {name: getattr(options, name) for name in names}
        result = {"settings": settings, "machine": describe_machine(), "rows": lines}
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
