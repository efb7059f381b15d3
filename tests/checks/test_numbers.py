"""Numbers that look measured (with a decimal point, a percent sign, a ± or "points") are written by a script,
or numbers.yaml says what they are.
"""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LISTED = yaml.safe_load((Path(__file__).parent / "numbers.yaml").read_text(encoding="utf-8"))
GENERATED = re.compile(
    r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->|<!-- (?:table|value|study): .*?<!-- end -->", re.DOTALL
)
NOT_PROSE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(± |(?<![\w.)])[-+]|(?<![\w.]))(\d[\d,]*(?:\.\d+)*)(?![\d.]*e-?\d)(%| points?\b)?")


def measured_numbers(text: str) -> list[str]:
    """The numbers that look measured, each with what stands around it."""
    prose = NOT_PROSE.sub("``", GENERATED.sub("``", text))
    return [
        prose[max(0, found.start() - 40) : found.end() + 20]
        for found in NUMBER.finditer(prose)
        if found[1] or found[3] or "." in found[2]
    ]


@pytest.mark.parametrize("page", LISTED)
def test_each_number_is_written_by_a_script_or_listed(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for reason, quotes in LISTED[page].items():
        for quote in quotes:
            assert text.count(quote), f"{page} no longer has {quote!r}, listed as {reason!r}"
            text = text.replace(quote, "")
    assert not measured_numbers(text), f"{page}: take these from rows, or list them in numbers.yaml"


def test_what_counts_as_a_number() -> None:
    text = "<!-- study: HM dear -->80.1<!-- end -->; 16 shots, `lr 0.1`, Caltech-101, [a](b-0.5.md)"
    assert measured_numbers(text) == []
    counted = "80.1, 12%, 3 ± 2, +5 and 7 points"
    assert len(measured_numbers(counted)) == 5
