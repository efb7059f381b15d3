"""Write the tables, numbers and figures of the study from the rows in docs/measured:

python -m benchmarks.study [FOLDER ...]   first adds the records of these folders, a row for each run
python -m benchmarks.study --check        only says whether pages and figures are up to date

A table is between the lines <!-- NAME: begin --> and <!-- NAME: end -->, a number of a sentence between
<!-- study: TEXT --> and <!-- end --> (values.py says what TEXT can be). What has no rows stays as it is.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.study.figures import FIGURES
from benchmarks.study.pages import PAGES, written
from benchmarks.study.runs import ROOT, NoRuns, collect
from benchmarks.study.versions import add_versions
from dear.errors import DataError
from dear.report.records import read_folder

IMAGES = ROOT / "docs/images"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="of run records")
    parser.add_argument("--check", action="store_true", help="only check whether pages are up to date")
    options = parser.parse_args()
    try:
        write(options.folders, check=options.check)
    except (DataError, ValueError) as error:
        raise SystemExit(str(error)) from None


def write(folders: Sequence[Path], *, check: bool) -> None:
    """Add the records of folders, and write all pages and figures; or raise SystemExit for one that is out of
    date.
    """
    records = [record for folder in folders for record in read_folder(folder)]
    for name, count in collect(records).items():
        print(f"{count} rows of docs/measured/{name}.csv")
    add_versions(record["environment"]["code"] for record in records)
    pages, missing = dict[Path, str](), set[str]()
    for page in PAGES:
        pages[page], without_rows = written(page.read_text(encoding="utf-8"))
        missing |= {*without_rows}
    for name, draw in FIGURES.items():
        try:
            pages[IMAGES / f"{name}.svg"] = draw().svg
        except NoRuns:
            missing.add(f"figure {name}")
    for page, text in pages.items():
        if not check:
            page.write_text(text, encoding="utf-8")
        elif text != page.read_text(encoding="utf-8"):
            raise SystemExit(f"{page.relative_to(ROOT)} is out of date: run python -m benchmarks.study")
    if missing:
        print(f"As they were, because there are no rows: {'; '.join(sorted(missing))}.")


if __name__ == "__main__":
    main()
