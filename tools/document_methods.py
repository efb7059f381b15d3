"""Write a measured table of recipes/study/TABLES.md from run records:
`python -m tools.document_methods TABLE FOLDER [--alone FOLDER]`.

Run it in the root of the repository. TABLE is the name in the markers around the table; the rest of the
page is written by hand. Runs that share a process share its memory, so the peaks come from other records:
of runs that each had their own process.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dear.errors import DataError
from dear.evaluation.records import read_record
from dear.report.base_to_novel import base_to_novel_table
from dear.report.comparison import methods_grid
from dear.report.records import Record, data_set, grouped, method_label, readable
from tools.document import with_table

PAGE = Path("recipes/study/TABLES.md")
TABLES = ("all", "seeds")
"""Each method trained as its authors do (`recipes/methods/all.yaml`), with one seed and with three."""


def measured_table(records: Sequence[Record], alone: Sequence[Record] | None = None) -> str:
    """The methods side by side, as in a report, with the peak memory of the records ``alone``. Raises
    DataError if the methods were not run on the same data sets and seeds.
    """
    found = readable(records)
    by_method = grouped(found, method_label)
    runs = {method: sorted((data_set(r), r["seed"]) for r in own) for method, own in by_method.items()}
    first = next(iter(runs))
    for method, own in runs.items():
        if own != runs[first]:
            raise DataError(f"{method} and {first} were not run on the same data sets and seeds.")
    grid = methods_grid(base_to_novel_table(found), found, alone)
    if grid is None:
        raise DataError(f"there is only one method: {first}.")
    sets = len({data_set(record) for record in found})
    seeds = sorted({record["seed"] for record in found})
    about = (
        f"{sets} data set{'s' * (sets > 1)}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, "
        f"{found[0]['shots']} shots, percent{', ± standard deviation over seeds' * (len(seeds) > 1)}."
    )
    rows = [line for line in grid.to_markdown().splitlines() if line.startswith("|")]
    return "\n".join([about, "", *rows])


def main() -> int:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(description="Write a measured table of recipes/study/TABLES.md.")
    parser.add_argument("table", choices=TABLES, help="its name in the page")
    parser.add_argument("records", type=Path, help="folder of run records")
    parser.add_argument("--alone", type=Path, help="folder of records of runs that had a process each")
    given = parser.parse_args()
    records, alone = _records(given.records), _records(given.alone) if given.alone else None
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(page, given.table, measured_table(records, alone)), encoding="utf-8")
    return 0


def _records(folder: Path) -> list[Record]:
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


if __name__ == "__main__":
    sys.exit(main())
