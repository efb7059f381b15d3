"""No file of code and no page of docs is longer than CONTRIBUTING.md allows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 400
WORDS, WORDS_IN_ALL, WORDS_OF_README = 2_000, 20_000, 500
GENERATED_PAGES = {"cli.md", "models.md"}
GENERATED = re.compile(
    r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->|<!-- (?:table: [\w-]+|speed) -->.*?<!-- end -->", re.DOTALL
)


def count_words(page: Path) -> int:
    """Words with a letter or digit (so no bars of tables), without generated tables."""
    text = GENERATED.sub("", page.read_text(encoding="utf-8"))
    return sum(any(map(str.isalnum, word)) for word in text.split())


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
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED_PAGES]
    words = {page.name: count_words(page) for page in pages}
    assert len(words) > 15
    assert not {name: count for name, count in words.items() if count > WORDS}
    assert sum(words.values()) <= WORDS_IN_ALL
    assert count_words(ROOT / "README.md") <= WORDS_OF_README
