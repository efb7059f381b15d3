"""What an image index and TEXTSPAN cost by size: measured as far as it goes, and computed beyond by the law
of the arithmetic.

    python benchmarks/sizes.py index --out benchmarks/results/sizes_index.json
    python benchmarks/sizes.py textspan --out benchmarks/results/sizes_textspan.json

A row's seconds are of the CPU, on one thread, so that other load on the machine counts little. Computed rows
take the rate of the largest measured one: operations over seconds for what is computed, bytes over seconds
for what is read. Nothing but size is computed without a law, and every law is in `INDEX` and `TEXTSPAN`.

index: an IVF index (float16) of one feature, clustered vectors of 512 numbers, n rows in L = 4 sqrt(n) lists.
Building trains on 64 points a list (at most all rows) in 10 rounds, then assigns all rows; a query compares
all list centres and the rows of L / 16 lists. textspan: h heads, p phrases, i images, rank 80, 60 phrases a
head, embedding 512.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from index import CENTRES_OF, draw

from dear.retrieval import approximate
from dear.roles.textspan import Moments, textspan

EMBED, QUERIES, FOUND = 512, 50, 10
RANK, TOP = 80, 60
BATCH = 500  # images whose contributions are added at a time
INDEX_SIZES = (5000, 10_000, 20_000, 40_000)
INDEX_BEYOND = (1_000_000, 10_000_000, 100_000_000, 5_850_000_000)
TEXTSPAN_SIZES = ((12, 1000, 1000), (12, 4000, 1000), (48, 1000, 1000), (12, 1000, 4000))
TEXTSPAN_BEYOND = ((144, 3500, 10_000), (384, 3500, 10_000), (144, 100_000, 10_000))


def lists(rows: int) -> int:
    return approximate.lists_for(rows)


def building(rows: int) -> float:
    """GFLOP: distances of points to centres in training, and of all rows to centres once."""
    points = min(rows, approximate.POINTS * lists(rows))
    return 2 * EMBED * lists(rows) * (points * approximate.ITERATIONS + rows) / 1e9


def scanned(rows: int) -> float:
    """MB that a query reads: all centres in float32, and its share of the rows' codes in float16."""
    probes = max(16, lists(rows) / 16)
    return (4 * EMBED * lists(rows) + 2 * EMBED * rows * min(1, probes / lists(rows))) / 1e6


def held(rows: int) -> float:
    """GB of the index, in memory and on disk: a row's code and its number, and the centres."""
    return (rows * (2 * EMBED + 8) + 4 * EMBED * lists(rows)) / 1e9


def projecting(heads: int, phrases: int, images: int) -> float:
    """GFLOP in float64: outer products of contributions, phrases into each head's coordinates, and for every
    phrase picked the variances of all phrases and what is taken away from them.
    """
    moments = 2 * images * EMBED**2
    greedy = TOP * phrases * (2 * RANK**2 + 8 * RANK)
    return heads * (moments + 2 * phrases * EMBED * RANK + greedy) / 1e9


def kept(heads: int, phrases: int) -> float:
    """MB: moments of all heads, and of eight heads at a time the phrases' coordinates, three times."""
    return 8 * (heads * EMBED**2 + 3 * min(heads, 8) * phrases * RANK) / 1e6


def seconds(work: Callable[[], object]) -> tuple[float, Any]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def an_index(rows: int) -> dict[str, Any]:
    vectors = draw("clustered", rows, EMBED, 1, max(1, rows // CENTRES_OF)).astype(np.float16)
    built, index = seconds(lambda: approximate.build(vectors, "ivf", "float16"))
    asked = draw("clustered", QUERIES, EMBED, 2, max(1, rows // CENTRES_OF))
    alive = np.ones(rows, dtype=bool)
    times = [seconds(lambda one=one: approximate.search(index, one, FOUND, alive))[0] for one in asked]
    return {"build s": built, "query ms": 1000 * float(np.median(times))}


def a_span(heads: int, phrases: int, images: int) -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(0)
    text = torch.nn.functional.normalize(torch.randn(phrases, EMBED, generator=numbers), dim=1)
    outputs = torch.randn(heads, 96, EMBED, generator=numbers)
    moments, spent = Moments(heads, embed=EMBED), 0.0
    for start in range(0, images, BATCH):
        inner = torch.randn(heads, min(BATCH, images - start), 96, generator=numbers)
        batch = (inner @ outputs).transpose(0, 1).contiguous()
        spent += seconds(lambda batch=batch: moments.add(batch))[0]
    return {"s": spent + seconds(lambda: textspan(moments, text, rank=RANK, top=TOP))[0]}


def index_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in (*INDEX_SIZES, *INDEX_BEYOND):
        row: dict[str, Any] = {"rows": f"{size:,}", "how": "measured", "lists": lists(size)}
        row |= {"build GFLOP": building(size), "query reads MB": scanned(size), "index GB": held(size)}
        if size in INDEX_SIZES:
            rows.append(row | an_index(size))
            continue
        last = next(one for one in reversed(rows) if one["how"] == "measured")
        row["build s"] = last["build s"] * row["build GFLOP"] / last["build GFLOP"]
        row["query ms"] = last["query ms"] * row["query reads MB"] / last["query reads MB"]
        rows.append(row | {"how": "computed"})
    return rows


def textspan_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in (*TEXTSPAN_SIZES, *TEXTSPAN_BEYOND):
        heads, phrases, images = size
        row: dict[str, Any] = {"heads": heads, "phrases": phrases, "images": images, "how": "measured"}
        row |= {"GFLOP": projecting(*size), "memory MB": kept(heads, phrases)}
        if size in TEXTSPAN_SIZES:
            rows.append(row | a_span(*size))
            continue
        slowest = max(
            (one for one in rows if one["how"] == "measured"), key=lambda one: one["s"] / one["GFLOP"]
        )
        row["s"] = slowest["s"] * row["GFLOP"] / slowest["GFLOP"]
        rows.append(row | {"how": "computed"})
    return rows


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("what", choices=("index", "textspan"))
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = made.parse_args()
    torch.set_num_threads(1)
    if options.what == "index":
        import faiss

        faiss.omp_set_num_threads(1)
    rows = index_rows() if options.what == "index" else textspan_rows()
    settings = {"embed": EMBED, "threads": 1} | (
        {"queries": QUERIES} if options.what == "index" else {"rank": RANK, "top": TOP}
    )
    result = {"benchmark": f"sizes_{options.what}", "machine": measure.machine()}
    measure.show(result | {"settings": settings, "rows": rows}, options)


if __name__ == "__main__":
    main()
