"""Command output: one JSON object or a human-readable rendering on stdout, progress on stderr."""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dear.text import CONTROLS, printable

JSON_ESCAPES = {code: f"\\u{code:04x}" for code in CONTROLS if code > 0x7E}
"""Characters that JSON does not escape by itself."""


class PrintableConsole(Console):
    """A console on which printed text cannot control the terminal; our own colors and bars still work."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_safe = segment.control or segment.text.isprintable()
            yield segment if is_safe else segment._replace(text=printable(segment.text, lines=True))

    def say(self, *lines: object) -> None:
        """Print lines as they are: nothing in them is markup, none is broken, and no name makes a line."""
        text = "\n".join(printable(str(line)) for line in lines)
        self.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Let the error through: rich would exit with code 1."""
        raise


def json_text(value: Any, indent: int | None = None) -> str:
    """A result as JSON, in ASCII if stdout cannot encode every character (JSON can escape them)."""
    ascii_only = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    text = json.dumps(to_jsonable(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    return text.translate(JSON_ESCAPES)


def stdout_console(width: int) -> PrintableConsole:
    """The console for results and help; where stdout is no terminal it has this width."""
    return PrintableConsole(highlight=False, emoji=False, width=None if sys.stdout.isatty() else width)


def progress_console() -> PrintableConsole:
    """The console for progress and notices, on stderr; plain lines if stderr is not a terminal."""
    return PrintableConsole(stderr=True, highlight=False)


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A human-readable table. Columns of numbers are right-aligned.

    Floats are shown with two decimals; None and values that are not finite as a dash; a tuple is the lines of
    its cell. Everything else is shown literally: [red] in a folder name is not a color.
    """
    heading = None if title is None else Text(title, style="table.title")
    grid = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    filled = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numeric = all(row[index] is None or isinstance(row[index], int | float) for row in filled)
        grid.add_column(Text(column), justify="right" if numeric else "left")
    for row in filled:
        grid.add_row(*(Text(_cell(value)) for value in row))
    return grid


def to_jsonable(value: Any) -> Any:
    """A result as JSON's own values. It may contain dataclasses, mappings, lists, tuples, sets (sorted),
    paths, enums (by value), strings, numbers and None. A float that is not finite becomes null.

    Raises:
        TypeError: for anything else, such as a tensor or an array: results contain plain numbers.
    """
    return json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)


def _plain(value: Any) -> Any:
    """What stands for a value that JSON does not know."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    match value:
        case Mapping():
            return dict(value)
        case Set():
            return sorted(value)
        case PurePath():
            return str(value)
        case Enum():
            return value.value
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON; put plain numbers into results")


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, tuple):
        return "\n".join(map(_cell, value))
    return f"{value:.2f}" if isinstance(value, float) else printable(str(value))
