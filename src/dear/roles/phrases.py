"""Phrase pools: the package's own, the Attribute World's, or a user's file with one phrase per line."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dear.data.world.factors import FACTORS, STYLES, bulk
from dear.data.world.render import GLYPHS
from dear.errors import DataError
from dear.reading.files import ReadingError, read_lines

GENERAL, WORLD = "general", "world"


@dataclass(frozen=True)
class Pool:
    """Distinct phrases.

    Attributes:
        name: "general", "world" or the file.
        phrases: The phrases, in order.
        concepts: The concept of each phrase; empty for a user's file.
        notice: A description of what was left out of a file, or "".
    """

    name: str
    phrases: tuple[str, ...]
    concepts: tuple[str, ...] = ()
    notice: str = ""

    def __len__(self) -> int:
        return len(self.phrases)


def load_pool(name_or_path: str) -> Pool:
    """A pool by its name ("general", "world") or file. Raises DataError for an invalid file."""
    if name_or_path == GENERAL:
        return general_pool()
    if name_or_path == WORLD:
        return world_pool()
    try:
        return read_pool(Path(name_or_path).expanduser())
    except ReadingError as error:
        raise ReadingError(f"phrases {name_or_path}", error.reason, missing=error.missing) from error


@cache
def general_pool() -> Pool:
    """The package's pool: word lists of everyday concepts, each word in each template of its list."""
    rows = json.loads(files("dear.roles").joinpath("pool.json").read_text(encoding="utf-8"))["categories"]
    return _pool(GENERAL, ((row["concept"], row["words"], row["templates"]) for row in rows))


@cache
def world_pool() -> Pool:
    """Every word of the Attribute World's factors, styles, counts and letters, in its captions' templates."""
    return _pool(WORLD, _world_rows())


def _world_rows() -> Iterable[tuple[str, Sequence[str], Sequence[str]]]:
    grammar: dict[str, Any] = bulk("grammar")
    style = STYLES.words[0][0]
    for factor, patterns in grammar["single"].items():
        words = [word for words in FACTORS[factor].words for word in words]
        templates = [
            pattern.replace("{style}", style).replace("{noun}", noun)
            for pattern in [grammar["plain_prompts"][factor], *patterns]
            for noun in grammar["nouns"][: 2 if "{noun}" in pattern else 1]
        ]
        yield factor, words, list(dict.fromkeys(templates))
    manners = [word for words in STYLES.words for word in words]
    yield "style", manners, ["a {}", "a {} of a thing", "this is a {}", "a {} showing something"]
    counts = list(grammar["counts"].values())
    yield "number", counts, ["{} of them", "with {} copies", "{}", "something with {} copies"]
    for kind, glyphs in (("letter", GLYPHS[:26]), ("digit", GLYPHS[26:])):
        yield (
            "text",
            list(glyphs),
            [f"the {kind} {{}}", f"with the {kind} {{}}", f"a thing and the {kind} {{}}"],
        )


def _pool(name: str, rows: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> Pool:
    """Words filled into templates; a duplicate phrase keeps its first concept."""
    found: dict[str, str] = {}
    for concept, words, templates in rows:
        for word in words:
            for template in templates:
                found.setdefault(with_articles(template.format(word)), concept)
    return Pool(name, tuple(found), tuple(found.values()))


def read_pool(path: Path) -> Pool:
    """A user's phrases: a text file in UTF-8 with one phrase per line; surrounding spaces are removed.

    Blank lines and duplicates are left out and reported in the pool's notice. Raises DataError for a file
    that is missing, empty or in another encoding.
    """
    lines = [line.strip() for line in read_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    first: dict[str, int] = {}
    blank = [number for number, line in enumerate(lines, start=1) if not line]
    repeated = [
        (number, line)
        for number, line in enumerate(lines, start=1)
        if line and first.setdefault(line, number) != number
    ]
    if not first:
        raise DataError(f"{path} contains no phrase: write one per line.")
    notes = []
    if blank:
        notes.append(f"{len(blank)} blank lines (the first is line {blank[0]})")
    if repeated:
        number, line = repeated[0]
        notes.append(
            f"{len(repeated)} repeats (the first is line {number}, {line!r}, as in line {first[line]})"
        )
    return Pool(str(path), tuple(first), notice=f"{path}: left out {' and '.join(notes)}." if notes else "")


def with_articles(text: str) -> str:
    """Replace `a` by `an` before a vowel."""
    return re.sub(r"\ba (?=[aeiou])", "an ", text)
