"""Write the tables, numbers and figures of the study from the rows in docs/measured:

python -m benchmarks.study [FOLDER ...]   first adds the records of these folders, a row for each run
python -m benchmarks.study --check        only says whether pages and figures are up to date

A table is between the lines <!-- NAME: begin --> and <!-- NAME: end -->, a number of a sentence between
<!-- study: TEXT --> and <!-- end --> (values.py says what TEXT can be). What has no rows stays as it is.
"""

import argparse
import re
from pathlib import Path

from benchmarks.study.figures import FIGURES
from benchmarks.study.runs import ROOT, NoRuns, collect
from benchmarks.study.tables import MERGED, TABLES, merge
from benchmarks.study.values import value
from benchmarks.study.versions import add_versions
from dear.report.records import read_folder

PAGES = [ROOT / name for name in ("docs/study.md", "docs/choose.md", "recipes/study/TABLES.md")]
IMAGES = ROOT / "docs/images"
TABLE = re.compile(r"(<!-- ([\w-]+): begin -->)\n(.*?)\n?(<!-- \2: end -->)", re.DOTALL)
NUMBER = re.compile(r"(<!-- study: ([^>]+) -->)(.*?)(<!-- end -->)")


def written(page: str, missing: set[str]) -> str:
    """A page with its tables and numbers; adds to ``missing`` what there are no rows for."""

    def write_table(found: re.Match[str]) -> str:
        begin, name, old, end = found.groups()
        try:
            lines = TABLES[name]()
        except NoRuns:
            missing.add(f"table {name}")
            return found[0]
        return "\n".join([begin, *(merge(old.splitlines(), lines) if name in MERGED else lines), end])

    def write_number(found: re.Match[str]) -> str:
        try:
            return f"{found[1]}{value(found[2])}{found[4]}"
        except NoRuns:
            missing.add(found[2])
            return found[0]

    return NUMBER.sub(write_number, TABLE.sub(write_table, page))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="of run records")
    parser.add_argument("--check", action="store_true", help="only check whether pages are up to date")
    options = parser.parse_args()
    records = [record for folder in options.folders for record in read_folder(folder)]
    for name, count in collect(records).items():
        print(f"{count} rows of docs/measured/{name}.csv")
    add_versions(record["environment"]["code"] for record in records)
    missing = set[str]()
    pages = {page: written(page.read_text(encoding="utf-8"), missing) for page in PAGES}
    for name, draw in FIGURES.items():
        try:
            pages[IMAGES / f"{name}.svg"] = draw().svg
        except NoRuns:
            missing.add(f"figure {name}")
    for page, text in pages.items():
        if not options.check:
            page.write_text(text, encoding="utf-8")
        elif text != page.read_text(encoding="utf-8"):
            raise SystemExit(f"{page.relative_to(ROOT)} is out of date: run python -m benchmarks.study")
    if missing:
        print(f"As they were, because there are no rows: {'; '.join(sorted(missing))}.")


if __name__ == "__main__":
    main()
