"""Write the tables and numbers of pages from benchmarks/results: python benchmarks/table.py [--check]

Each table is between the lines <!-- table: NAME --> and <!-- end -->; without a result it reads "Not
measured." A number in a sentence is between <!-- value: NAME ROW COLUMN --> and <!-- end -->, rows from 0.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGES = [
    *(ROOT / "docs" / name for name in ("performance.md", "reproduce.md", "search.md")),
    *(ROOT / name for name in ("README.md", "benchmarks/README.md")),
]
PLACE = re.compile(r"(<!-- table: ([a-z_-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
VALUE = re.compile(r"(<!-- value: ([a-z_]+) (\d+) ([^>]+?) -->).*?(<!-- end -->)")
HIDDEN = ("all seconds", "gap to naive")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as lines of a Markdown table; the first row names the columns."""
    names = [name for name in rows[0] if name not in HIDDEN]
    lines = [names, ["---"] * len(names), *([_cell(row.get(name)) for name in names] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def written(name: str) -> str:
    """The table of a benchmark and the machine it was measured on."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return "Not measured.\n"
    result = json.loads(path.read_text(encoding="utf-8"))
    facts = [f"{key.replace('_', ' ')} {value}" for key, value in result.get("machine", {}).items()]
    if "matrix GFLOP/s" in result:
        facts.append(f"matrix product {result['matrix GFLOP/s']:.0f} GFLOP/s")
    settings = [f"{key} {value}" for key, value in result["settings"].items() if value not in (None, False)]
    on = f"Measured on: {', '.join(facts)}." if facts else "Counted by hand."
    lines = [*table(result["rows"]), "", f"{on} Settings: {', '.join(settings)}."]
    return "\n".join(lines) + "\n"


def value(name: str, row: int, column: str) -> str:
    """A number of a benchmark's result, as its table has it."""
    return _cell(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"][row][column])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check whether the pages are up to date")
    options = parser.parse_args()
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = PLACE.sub(lambda found: f"{found[1]}{written(found[2])}{found[3]}", before)
        after = VALUE.sub(
            lambda found: f"{found[1]}{value(found[2], int(found[3]), found[4])}{found[5]}", after
        )
        if not options.check:
            page.write_text(after, encoding="utf-8")
        elif before != after:
            raise SystemExit(f"{page.relative_to(ROOT)} is out of date: run python benchmarks/table.py")


if __name__ == "__main__":
    main()
