"""TEXTSPAN results in the public text format: a header for each head, then its phrases, one per line.

    ------------------
    Layer 8, Head 0
    ------------------
    Photo taken in Okavango Delta

The format counts layers from 0; here they are counted from 1, so layer 8 in the file is layer 9.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dear.errors import DataError, SettingsError
from dear.reading.files import read_lines
from dear.reading.typed import shown
from dear.text import plural
from dear.writing import output_file

HeadPhrases = Mapping[tuple[int, int], tuple[str, ...]]
"""The phrases of each (layer, head), layers from 1 and heads from 0."""

HEADER = re.compile(r"Layer ([0-9]{1,9}), Head ([0-9]{1,9})")
RULE = "-" * 18
TRAILER = re.compile(r"Current accuracy:|Number of texts:")


def read_textspan(path: Path) -> dict[tuple[int, int], tuple[str, ...]]:
    """The phrases of every head in a file. Raises DataError for another format or a duplicate head."""
    heads: dict[tuple[int, int], list[str]] = {}
    current: list[str] | None = None
    for number, line in enumerate(read_lines(path), start=1):
        text = line.strip()
        if header := HEADER.fullmatch(text):
            head = (int(header[1]) + 1, int(header[2]))
            if head in heads:
                raise DataError(f"{path}, line {number}: {text} appears twice.")
            current = heads[head] = []
        elif text and not TRAILER.match(text) and text.strip("-"):
            if current is None:
                raise DataError(
                    f"{path}, line {number}: {shown(text)} comes before any head. A TEXTSPAN file has "
                    "'Layer 0, Head 0' above each head's phrases."
                )
            current.append(text)
    if not heads:
        raise DataError(
            f"{path} contains no head: a TEXTSPAN file has 'Layer 0, Head 0' above each head's phrases."
        )
    return {head: tuple(phrases) for head, phrases in heads.items()}


def write_textspan(path: Path, heads: HeadPhrases) -> None:
    """Write phrases in the public format, atomically. Raises OutputError."""
    lines: list[str] = []
    for (layer, head), phrases in heads.items():
        lines += [RULE, f"Layer {layer - 1}, Head {head}", RULE, *phrases]
    with output_file(path, "the phrases", "with --spans") as file:
        file.write(("\n".join(lines) + "\n").encode())


def layer_range(text: str) -> tuple[int, ...]:
    """Parse layers counted from 1: "9-12", "9,11" or "12". Raises SettingsError for any other form."""
    layers: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise SettingsError(
                f"layers {text!r}: write a range counted from 1, such as 9-12, or a list, 9,11."
            )
        layers += range(first, last + 1)
    if len(set(layers)) < len(layers):
        raise SettingsError(f"layers {text!r} contain a layer twice.")
    return tuple(layers)


def in_layers(heads: HeadPhrases, layers: Sequence[int]) -> dict[tuple[int, int], tuple[str, ...]]:
    """The heads of some layers. Raises DataError for layers without heads or with missing heads."""
    numbers = {head for _, head in heads}
    wanted = [(layer, head) for layer in layers for head in sorted(numbers)]
    if missing := [head for head in wanted if head not in heads]:
        available = sorted({layer for layer, _ in heads})
        raise DataError(
            f"no phrases for {plural(len(missing), 'head')} of layers {', '.join(map(str, layers))}; "
            f"the first is layer {missing[0][0]} head {missing[0][1]}. Available layers, counted from 1: "
            f"{available[0]} to {available[-1]}."
        )
    return {head: heads[head] for head in wanted}
