"""No file of code and no page of docs is longer than CONTRIBUTING.md allows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 400
WORDS, WORDS_IN_ALL = 2_500, 25_000
GENERATED_PAGES = {"cli.md", "models.md"}
GENERATED = re.compile(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->|<!-- table: .*?<!-- end -->", re.DOTALL)


@pytest.mark.parametrize("folder", ["src", "tests", "tools", "benchmarks", "examples"])
def test_no_file_has_more_than_400_lines(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".js", ".css", ".html")
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT
    }
    assert not long, f"split these by subject: {long}"


def test_pages_are_no_longer_than_people_read() -> None:
    """Words of the pages that are written by hand, without generated tables."""
    words = {
        path.name: len(GENERATED.sub("", path.read_text(encoding="utf-8")).split())
        for path in (ROOT / "docs").glob("*.md")
        if path.name not in GENERATED_PAGES
    }
    assert len(words) > 15
    assert not {name: count for name, count in words.items() if count > WORDS}
    assert sum(words.values()) <= WORDS_IN_ALL
