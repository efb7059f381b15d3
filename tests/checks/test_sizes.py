"""No file of code is longer than CONTRIBUTING.md allows."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 400


@pytest.mark.parametrize("folder", ["src", "tests", "tools", "benchmarks", "examples"])
def test_no_file_has_more_than_400_lines(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".js", ".css", ".html")
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT
    }
    assert not long, f"split these by subject: {long}"
