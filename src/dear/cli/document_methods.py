"""Write a measured table of docs/methods.md from run records:
`python -m dear.cli.document_methods TABLE FOLDER [--alone FOLDER]`.

To be run in the root of the repository. TABLE is the name in the marks around the table; the rest of the
page is written by hand. Runs that share a process share its memory, so the peaks come from other records:
of runs each in a process of its own.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.errors import DataError
from dear.evaluation.harmonic import harmonic_mean
from dear.evaluation.records import read_record
from dear.methods.settings import METHODS
from dear.report.reading import Record, accuracy, data_set, grouped, method_label

PAGE = Path("docs/methods.md")
TABLES = ("all", "uniform")  # as the recipes are called
COLUMNS = ("method", "base", "novel", "HM", "HM of single seeds", "trainable parameters", "seconds a run")
PEAK = "peak memory, MiB"


def measured_table(records: Sequence[Record], alone: Sequence[Record] = ()) -> str:
    """Means over data sets of the means over seeds, percent; HM is that of the averages, and from the lowest
    to the highest seed; seconds are the median. ``alone`` are the records whose peak memory is shown. Raises
    DataError if the methods were not run on the same data sets and seeds.
    """
    by_method = grouped(records, method_label)
    runs = {method: sorted((data_set(r), r["seed"]) for r in own) for method, own in by_method.items()}
    first = next(iter(runs), "")
    for method, own in runs.items():
        if own != runs[first]:
            raise DataError(f"{method} and {first} were not run on the same data sets and seeds.")
    order = {name: place for place, name in enumerate(METHODS)}
    peaks = grouped(alone, method_label)
    cells = [
        [label, *_cells(own), *([_peak(peaks.get(label, ()))] if alone else [])]
        for label, own in sorted(by_method.items(), key=lambda one: order[one[1][0]["method"]])
    ]
    head = [*COLUMNS, *([PEAK] if alone else [])]
    rows = ["| " + " | ".join(row) + " |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *cells)]
    facts = records[0] if records else {}
    sets = len({data_set(record) for record in records})
    seeds = sorted({record["seed"] for record in records})
    about = (
        f"{sets} data set{'s' * (sets > 1)}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, "
        f"{facts.get('shots')} shots, percent."
    )
    return "\n".join([about, "", *rows])


def _cells(records: Sequence[Record]) -> list[str]:
    """The cells of a method after its name, but for the peak."""
    by_seed = [_means(own) for own in grouped(records, lambda record: str(record["seed"])).values()]
    singles = [hm for _, _, hm in by_seed]
    parameters = max(record["trainable_parameters"] for record in records)
    seconds = statistics.median(record["seconds"]["train"] + record["seconds"]["test"] for record in records)
    return [
        *(f"{value:.2f}" for value in _means(records)),
        f"{min(singles):.2f} to {max(singles):.2f}",
        f"{parameters:,}",
        f"{seconds:.1f}",
    ]


def _means(records: Sequence[Record]) -> tuple[float, float, float]:
    """Base, novel and their harmonic mean, percent: means over data sets of the means over seeds."""
    base, novel = (
        statistics.mean(
            statistics.mean(100 * accuracy(record, half) for record in own)
            for own in grouped(records, data_set).values()
        )
        for half in ("base", "novel")
    )
    return base, novel, harmonic_mean(base, novel)


def _peak(records: Sequence[Record]) -> str:
    """The highest peak of the GPU, or without one of the process's resident memory, in MiB."""
    memory: list[Any] = [record.get("peak_memory", {}) for record in records]
    found = [peak for one in memory if (peak := one.get("gpu") or one.get("resident")) is not None]
    return f"{max(found):.0f}" if found else "not measured"


def with_table(page: str, name: str, table: str) -> str:
    """The page with the part between the table's marks replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> int:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(description="Write a measured table of docs/methods.md.")
    parser.add_argument("table", choices=TABLES, help="whose training: each method's own, or one for all")
    parser.add_argument("records", type=Path, help="folder of run records")
    parser.add_argument("--alone", type=Path, help="folder of records of runs in processes of their own")
    given = parser.parse_args()
    records, alone = _records(given.records), _records(given.alone) if given.alone else []
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(page, given.table, measured_table(records, alone)), encoding="utf-8")
    return 0


def _records(folder: Path) -> list[Record]:
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


if __name__ == "__main__":
    sys.exit(main())
