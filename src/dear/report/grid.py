"""A table of numbers, mostly percentages, with labelled rows and columns; as Markdown, LaTeX or CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev
from typing import Literal, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dear.errors import printable

DECIMALS = 2
"""Of the numbers in tables; numbers that are the same as shown are ties."""
SEEDS, INTERVAL = "sd over seeds", "half of 95% interval"
"""What stands after ± in a table."""
FORMULA = re.compile(r"(^|[;\t\n])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=\t)")
"""Where a cell begins that a spreadsheet takes for a formula; it takes full-width signs too."""
EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Underscores that Markdown may take for emphasis: not those within a word."""
WITH_NEIGHBOURS = re.compile(r":(?=//)|(?<=www)\.|&(?=[#a-z])", re.IGNORECASE)
"""Signs that Markdown may take for those of an address or of an entity, such as &lt;."""
MISSING = "–"
Mark = Literal["best", "second"]
Rows = Sequence[Sequence[object]]
"""The rows of a file, the names of its columns first."""


@dataclass(frozen=True)
class Cell:
    """A number; ``spread`` is a standard deviation or the half-width of an interval, as stated in the table.
    ``decimals`` is how many decimals of the number are shown.
    """

    mean: float
    spread: float | None = None
    seeds: int = 1
    mark: Mark | None = None
    decimals: int = DECIMALS

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Mean and sample standard deviation (n - 1) of one value per seed."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    @property
    def value(self) -> str:
        """The number as shown."""
        return f"{self.mean:,.{self.decimals}f}"

    @property
    def margin(self) -> str | None:
        """The spread as shown."""
        return None if self.spread is None else f"{self.spread:.{DECIMALS}f}"

    def __str__(self) -> str:
        return self.value if self.margin is None else f"{self.value} ± {self.margin}"


@dataclass(frozen=True)
class GridRow:
    """A row; published numbers are never marked as best."""

    label: str
    cells: tuple[Cell | None, ...]
    published: bool = False


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        name: Base name of its files.
        corner: Heading of the row labels.
        notes: Notes printed below it.
        spread: What stands after ± in its cells.
    """

    name: str
    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]
    notes: tuple[str, ...] = ()
    spread: str = SEEDS

    def to_markdown(self) -> str:
        """Title, table and notes; the best in bold, the second in italics."""
        head = [[*map(markdown_text, (self.corner, *self.columns))], ["---", *("---:" for _ in self.columns)]]
        body = [
            [markdown_text(_label(row)), *(_marked(cell, "**", "*") for cell in row.cells)]
            for row in self.rows
        ]
        lines = [f"| {' | '.join(line)} |" for line in head + body]
        notes = [f"\n{markdown_text(note)}" for note in self.notes]
        return "\n".join([f"### {markdown_text(self.title)}\n", *lines, *notes]) + "\n"

    def to_latex(self) -> str:
        """A booktabs tabular in a table environment; the best in bold, the second underlined."""
        body = [
            " & ".join(
                [latex_text(_label(row)), *(_latex_cell(cell) for cell in row.cells)],
            )
            + r" \\"
            for row in self.rows
        ]
        columns = " & ".join(latex_text(name) for name in (self.corner, *self.columns)) + r" \\"
        align = "l" + "r" * len(self.columns)
        caption = latex_text(" ".join([f"{self.title}.", *self.notes]))
        return "\n".join(
            [
                r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{self.name}}}",
                rf"\begin{{tabular}}{{{align}}}",
                r"\toprule", columns, r"\midrule", *body, r"\bottomrule",
                r"\end{tabular}", r"\end{table}", "",
            ]
        )  # fmt: skip

    def to_csv(self) -> str:
        """One line per row, with a column of spreads and one of seeds after each column of numbers. The
        header says what the spreads are.
        """
        names = [f"{name}{part}" for name in self.columns for part in ("", f", {self.spread}", " seeds")]
        rows: list[Sequence[object]] = [[*map(csv_text, [self.corner, "published", *names])]]
        for row in self.rows:
            numbers: list[object] = []
            for cell in row.cells:
                spread = "" if cell is None or cell.spread is None else f"{cell.spread:.4f}"
                numbers += ["", "", ""] if cell is None else [f"{cell.mean:.4f}", spread, cell.seeds]
            rows.append([csv_text(row.label), "yes" if row.published else "no", *numbers])
        return _csv(rows)

    def files(self) -> dict[str, bytes]:
        """The table as Markdown, LaTeX and CSV, by file name."""
        texts = {"md": self.to_markdown(), "tex": self.to_latex(), "csv": self.to_csv()}
        return {f"{self.name}.{suffix}": text.encode() for suffix, text in texts.items()}

    def render(self, console: Console) -> None:
        """Print the table for people."""
        printed = RichTable(title=_escaped(self.title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        printed.add_column(_escaped(self.corner))
        for name in self.columns:
            printed.add_column(_escaped(name), justify="right")
        for row in self.rows:
            printed.add_row(_escaped(_label(row)), *map(rich_cell, row.cells))
        console.print(printed)
        for note in self.notes:
            console.print(printable(note), markup=False)


def _escaped(text: str) -> str:
    """Text on one line in the markup of a terminal."""
    return escape(printable(text))


def rich_cell(cell: Cell | None) -> str:
    """A cell in the markup of a terminal: the best in bold."""
    if cell is None:
        return MISSING
    return f"[bold]{cell}[/bold]" if cell.mark == "best" else str(cell)


def marked(rows: Sequence[GridRow]) -> tuple[GridRow, ...]:
    """The rows with the best and second of each column marked among our own; equal as shown is a tie."""
    ours = [row for row in rows if not row.published]
    marks: list[dict[float, Mark]] = []
    for column in range(len(rows[0].cells) if rows else 0):
        cells = [cell for row in ours if (cell := row.cells[column])]
        values = sorted({round(cell.mean, DECIMALS) for cell in cells}, reverse=True)
        names: tuple[Mark, ...] = ("best", "second")
        # The lowest is not marked second if there is nothing below it.
        marks.append(dict(zip(values, names[: max(len(cells) - 1, 0)], strict=False)))

    def with_marks(cells: Sequence[Cell | None]) -> tuple[Cell | None, ...]:
        return tuple(
            cell and replace(cell, mark=by_value.get(round(cell.mean, DECIMALS)))
            for cell, by_value in zip(cells, marks, strict=True)
        )

    return tuple(row if row.published else replace(row, cells=with_marks(row.cells)) for row in rows)


def _label(row: GridRow) -> str:
    return f"{row.label} (published)" if row.published else row.label


def _marked(cell: Cell | None, best: str, second: str) -> str:
    if cell is None:
        return MISSING
    sign = {"best": best, "second": second, None: ""}[cell.mark]
    return f"{sign}{cell}{sign}"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    value = rf"\textbf{{{cell.value}}}" if cell.mark == "best" else cell.value
    value = rf"\underline{{{cell.value}}}" if cell.mark == "second" else value
    return value if cell.margin is None else rf"{value} {{\footnotesize$\pm${cell.margin}}}"


LATEX = {sign: "\\" + sign for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "–": "--", "±": r"$\pm$", "−": "$-$",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Text escaped for LaTeX, on one line. At the beginning of a row a bracket or an asterisk would belong to
    the command before it.
    """
    line = "".join(LATEX.get(sign, sign) for sign in printable(" ".join(text.split())))
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def markdown_text(text: str) -> str:
    """Text escaped for one line of Markdown, shown literally: no link, image, HTML, formula, emphasis or
    column.
    """
    signs = {ord(sign): f"\\{sign}" for sign in "\\`*[]|~$@"}
    line = printable(" ".join(text.split())).translate(signs)
    return WITH_NEIGHBOURS.sub(r"\\\g<0>", EMPHASIS.sub(r"\\_", line)).replace("<", "&lt;")


def csv_text(text: str) -> str:
    """Text that no spreadsheet takes for a formula: prefixed with an apostrophe if it looks like one, also
    after a semicolon, which separates cells in some languages. Control characters are escaped.
    """
    return FORMULA.sub(lambda start: f"{start[0]}'", printable(text, lines=True))


def csv_file(rows: Rows) -> bytes:
    """Rows as CSV; fractions with six digits, no text that a spreadsheet takes for a formula."""
    escaped = cache(csv_text)  # a name stands in many rows

    def cell(value: object) -> object:
        if isinstance(value, float):
            return f"{value:.6g}"
        return escaped(value) if isinstance(value, str) else value

    return _csv_bytes([*map(cell, row)] for row in rows)


def _csv(rows: Rows) -> str:
    return _csv_bytes(rows).decode()


def _csv_bytes(rows: Iterable[Sequence[object]]) -> bytes:
    content = io.BytesIO()
    with io.TextIOWrapper(content, encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)
        stream.flush()
        return content.getvalue()
