"""Write the measured table of docs/methods.md from run records:
`python -m dear.cli.document_methods FOLDER --alone FOLDER`.

To be run in the root of the repository. The rest of the page is written by hand. Runs that share a process
share its memory, so the peaks come from other records: of runs each in a process of its own.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.errors import DataError
from dear.evaluation.records import read_record
from dear.methods.settings import METHODS
from dear.report.reading import Record, accuracy, data_set, grouped, method_label

PAGE = Path("docs/methods.md")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEADER = """\
| method | base | novel | HM | trainable parameters | seconds a run | peak memory, MiB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


def measured_table(records: Sequence[Record], alone: Sequence[Record] = ()) -> str:
    """Means over data sets of the means over seeds, percent; HM is that of the averages; seconds are the
    median. ``alone`` are the records whose peak memory is shown. Raises DataError if the methods were not run
    on the same data sets and seeds.
    """
    by_method = grouped(records, method_label)
    runs = {method: sorted((data_set(r), r["seed"]) for r in own) for method, own in by_method.items()}
    first = next(iter(runs), "")
    for method, own in runs.items():
        if own != runs[first]:
            raise DataError(f"{method} and {first} were not run on the same data sets and seeds.")
    order = {name: place for place, name in enumerate(METHODS)}
    peaks = grouped(alone, method_label)
    rows = [
        _row(method, own, peaks.get(method, ()))
        for method, own in sorted(by_method.items(), key=lambda one: order.get(one[0], len(order)))
    ]
    facts = records[0] if records else {}
    sets = len({data_set(record) for record in records})
    seeds = sorted({record["seed"] for record in records})
    about = (
        f"{sets} data set{'s' * (sets > 1)}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, "
        f"{facts.get('shots')} shots, percent."
    )
    return "\n".join([about, "", HEADER, *rows])


def _row(method: str, records: Sequence[Record], alone: Sequence[Record]) -> str:
    base, novel = (
        statistics.mean(
            statistics.mean(100 * accuracy(record, half) for record in own)
            for own in grouped(records, data_set).values()
        )
        for half in ("base", "novel")
    )
    hm = 2 * base * novel / (base + novel) if base * novel else 0.0
    parameters = max(record["trainable_parameters"] for record in records)
    seconds = statistics.median(record["seconds"]["train"] + record["seconds"]["test"] for record in records)
    peaks = [peak for record in alone if (peak := _peak(record)) is not None]
    most = f"{max(peaks):.0f}" if peaks else "not measured"
    return f"| {method} | {base:.2f} | {novel:.2f} | {hm:.2f} | {parameters:,} | {seconds:.1f} | {most} |"


def _peak(record: Record) -> float | None:
    """Peak of the GPU, or without one the resident peak of the process, in MiB."""
    peaks: Any = record.get("peak_memory", {})
    found = peaks.get("gpu") or peaks.get("resident")
    return None if found is None else float(found)


def with_table(page: str, table: str) -> str:
    """The page with the part between the marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(description="Write the measured table of docs/methods.md.")
    parser.add_argument("records", type=Path, help="folder of run records")
    parser.add_argument("--alone", type=Path, help="folder of records of runs in processes of their own")
    given = parser.parse_args()
    records, alone = _records(given.records), _records(given.alone) if given.alone else []
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(page, measured_table(records, alone)), encoding="utf-8")
    return 0


def _records(folder: Path) -> list[Record]:
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


if __name__ == "__main__":
    sys.exit(main())
