"""What TEXTSPAN costs by size: measured as far as it goes, and computed beyond by the law of the arithmetic.

    python benchmarks/sizes.py --out benchmarks/results/sizes_textspan.json

A row's seconds are of the CPU, on one thread, so that other load on the machine counts little. Computed rows
take the slowest measured rate, operations over seconds. Sizes: h heads, p phrases, i images, rank 80, 60
phrases a head, embedding 512.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch

from dear.roles.textspan import Moments, textspan

EMBED = 512
RANK, TOP = 80, 60
BATCH = 500  # images whose contributions are added at a time
SIZES = ((12, 1000, 1000), (12, 4000, 1000), (48, 1000, 1000), (12, 1000, 4000))
BEYOND = ((144, 3500, 10_000), (384, 3500, 10_000), (144, 100_000, 10_000))


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


def textspan_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in (*SIZES, *BEYOND):
        heads, phrases, images = size
        row: dict[str, Any] = {"heads": heads, "phrases": phrases, "images": images, "how": "measured"}
        row |= {"GFLOP": projecting(*size), "memory MB": kept(heads, phrases)}
        if size in SIZES:
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
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = made.parse_args()
    torch.set_num_threads(1)
    settings = {"embed": EMBED, "threads": 1, "rank": RANK, "top": TOP}
    result = {"benchmark": "sizes_textspan", "machine": measure.machine()}
    measure.show(result | {"settings": settings, "rows": textspan_rows()}, options)


if __name__ == "__main__":
    main()
