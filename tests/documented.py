"""The commands and the Python that the documentation shows."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = {"docs/cli.md"}
PAGES = [
    name
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(
            page
            for folder in ("docs", "recipes", "benchmarks")
            for page in sorted((ROOT / folder).rglob("*.md"))
        ),
    )
    if (name := path.relative_to(ROOT).as_posix()) not in GENERATED
]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`((?:dear|make|python|pip) [^`\n]+)`")
SETTING = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it: its words, without settings of the environment and the path of dear."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: str, *languages: str) -> list[str]:
    """The page's blocks in any of the languages ("" for none), without their indentation."""
    found = BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    return [
        "".join(line.removeprefix(block[1]) for line in block[3].splitlines(keepends=True))
        for block in found
        if block[2] in languages
    ]


def commands(page: str) -> list[Shown]:
    """The lines of the page's blocks for a shell, and lines that start with `dear` in unnamed blocks."""
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += [line for block in blocks(page, "") for line in block.splitlines() if line.startswith("dear ")]
    return [Shown(page, words) for line in lines if (words := _words(line))]


def mentions(page: str) -> list[Shown]:
    """Commands inside sentences, which may lack what they need to run."""
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return [Shown(page, _words(span)) for span in SPAN.findall(text)]


def _words(line: str) -> tuple[str, ...]:
    words = shlex.split(line, comments=True)
    while words and SETTING.match(words[0]):
        del words[0]
    if words and words[0] == ".venv/bin/dear":
        words[0] = "dear"
    return tuple(words)
