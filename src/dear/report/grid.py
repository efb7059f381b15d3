"""A table of numbers, mostly percentages, with labeled rows and columns: for the console, as Markdown, LaTeX
and CSV. Light to import: pandas is loaded when a file is written.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dear.text import printable
from dear.writing import csv_text

if TYPE_CHECKING:
    from pandas import DataFrame

    from dear.report.drawing import Drawing

DECIMALS = 2
"""Of the numbers in tables; numbers that are the same as shown are ties."""
SEEDS, INTERVAL = "sd over seeds", "half of 95% interval"
"""What stands after ± in a table."""
MISSING = "–"
Mark = Literal["best", "second"]


@dataclass(frozen=True)
class Cell:
    """A number; ``spread`` is a standard deviation or the half-width of an interval, as stated in the table.
    ``seeds`` is 0 for a published number, of which it is not known. ``decimals`` is how many decimals of the
    number are shown.
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
class PValue(Cell):
    """A p-value; none is shown as 0."""

    decimals: int = 3

    @property
    def value(self) -> str:
        return "<0.001" if self.mean < 0.001 else super().value


@dataclass(frozen=True)
class GridRow:
    """A row; published numbers are never marked as best. ``group`` is what the label begins with if rows
    belong together: the data set.
    """

    label: str
    cells: tuple[Cell | None, ...]
    published: bool = False
    group: str = ""

    @property
    def title(self) -> str:
        """The label as shown."""
        return f"{self.label} (published)" if self.published else self.label

    @property
    def name(self) -> str:
        """The title without the group."""
        return self.title.removeprefix(f"{self.group}: ")


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        name: Base name of its file.
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

    @property
    def groups(self) -> dict[str, dict[str, GridRow]]:
        """The rows by group and name; {} if they do not belong together."""
        groups: dict[str, dict[str, GridRow]] = {}
        for row in self.rows:
            groups.setdefault(row.group, {})[row.name] = row
        return {} if "" in groups else groups

    @property
    def is_marked(self) -> bool:
        """True if a cell is marked as best."""
        return any(cell and cell.mark for row in self.rows for cell in row.cells)

    @property
    def names(self) -> list[str]:
        """The names of the rows, of several groups each once."""
        return list(dict.fromkeys(row.name for row in self.rows))

    def to_markdown(self) -> str:
        """Title, table and notes; the best in bold, the second in italics."""
        signs = {"best": "**", "second": "*", None: ""}
        lines = [[*map(markdown_text, (self.corner, *self.columns))], ["---", *["---:"] * len(self.columns)]]
        for row in self.rows:
            cells = [
                MISSING if c is None else f"{signs[c.mark]}{markdown_text(str(c))}{signs[c.mark]}"
                for c in row.cells
            ]
            lines.append([markdown_text(row.title), *cells])
        table = [f"| {' | '.join(line)} |" for line in lines]
        notes = [f"\n{markdown_text(note)}" for note in self.notes]
        return "\n".join([f"### {markdown_text(self.title)}\n", *table, *notes]) + "\n"

    def across(self) -> list["Grid"]:
        """For each column a table of its own, of the names of the rows by their groups, if these are several:
        methods down, data sets across.
        """
        groups = self.groups
        if len(groups) < 2:
            return [self]
        return [
            replace(
                self,
                name=f"{self.name}-{column.lower()}",
                title=f"{self.title}: {column}",
                corner="Method",
                columns=tuple(groups),
                rows=tuple(
                    GridRow(
                        name,
                        tuple(rows[name].cells[at] if name in rows else None for rows in groups.values()),
                    )
                    for name in self.names
                ),
            )
            for at, column in enumerate(self.columns)
        ]

    def to_latex(self) -> str:
        """A booktabs tabular in a table environment, of groups of rows one for each column; the best in bold,
        the second underlined.
        """
        return "\n".join(grid._to_latex() for grid in self.across())

    def _to_latex(self) -> str:
        from pandas import DataFrame, Index

        table = DataFrame(
            [[_latex_cell(cell) for cell in row.cells] for row in self.rows],
            index=[latex_text(row.title) for row in self.rows],
            columns=Index([*map(latex_text, self.columns)], name=latex_text(self.corner)),
        )
        marks = ["Bold: best; underlined: second."] if self.is_marked else []
        text: str = table.style.to_latex(
            hrules=True,
            position_float="centering",
            column_format="l" + "r" * len(self.columns),
            caption=latex_text(" ".join([f"{self.title}.", *self.notes, *marks])),
            label=f"tab:{self.name}",
        )
        return text

    def to_csv(self) -> bytes:
        """One line per row, with a column of spreads and one of seeds after each column of numbers, and one
        that says which rows are published if some are. The header says what the spreads are.
        """
        from pandas import DataFrame, Series

        columns: dict[str, Any] = {self.corner: [row.label for row in self.rows]}
        if any(row.published for row in self.rows):
            columns["published"] = ["yes" if row.published else "no" for row in self.rows]
        for at, name in enumerate(self.columns):
            cells = [row.cells[at] for row in self.rows]
            columns[name] = [
                f"{cell.mean:.6g}" if isinstance(cell, PValue) else cell and cell.mean for cell in cells
            ]
            columns[f"{name}, {self.spread}"] = [cell and cell.spread for cell in cells]
            seeds = [cell.seeds or None if cell else None for cell in cells]
            columns[f"{name} seeds"] = Series(seeds, dtype="Int64")
        return csv_file(DataFrame(columns), "%.4f")

    def render(self, console: Console) -> None:
        """Print the table for people."""
        title, corner, *columns = (escape(printable(t)) for t in (self.title, self.corner, *self.columns))
        printed = RichTable(corner, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            printed.add_column(name, justify="right")
        for row in self.rows:
            cells = [MISSING if cell is None else str(cell) for cell in row.cells]
            best = [cell is not None and cell.mark == "best" for cell in row.cells]
            bold = [f"[bold]{text}[/bold]" if b else text for text, b in zip(cells, best, strict=True)]
            printed.add_row(escape(printable(row.title)), *bold)
        console.print(printed)
        for note in self.notes:
            console.print(printable(note), markup=False)


def marked(rows: Sequence[GridRow]) -> tuple[GridRow, ...]:
    """The rows with the best and second of each column marked; numbers equal as shown are a tie."""
    marks: list[dict[float, Mark]] = []
    for cells in zip(*(row.cells for row in rows), strict=True):
        values = [round(cell.mean, DECIMALS) for cell in cells if cell]
        names: tuple[Mark, ...] = ("best", "second")
        # The lowest is not marked second if there is nothing below it.
        best = sorted({*values}, reverse=True)
        marks.append(dict(zip(best, names[: max(len(values) - 1, 0)], strict=False)))

    def mark(cell: Cell | None, of_column: dict[float, Mark]) -> Cell | None:
        return cell and replace(cell, mark=of_column.get(round(cell.mean, DECIMALS)))

    return tuple(replace(row, cells=tuple(map(mark, row.cells, marks))) for row in rows)


def spread_over(seeds: int) -> str:
    """What the numbers of a table are over, for its note."""
    return "1 seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    shown = latex_text(cell.value)
    value = {"best": rf"\textbf{{{shown}}}", "second": rf"\underline{{{shown}}}", None: shown}
    margin = "" if cell.margin is None else rf" {{\footnotesize$\pm${cell.margin}}}"
    return f"{value[cell.mark]}{margin}"


def figure_latex(drawing: "Drawing") -> str:
    """A figure environment that includes the PDF of a drawing, which lies beside the file."""
    return (
        "\\begin{figure}\n\\centering\n"
        rf"\includegraphics[width=\linewidth]{{figure-{drawing.name}.pdf}}"
        f"\n\\caption{{{latex_text(drawing.description)}}}\n\\label{{fig:{drawing.name}}}\n\\end{{figure}}\n"
    )


LATEX = {ord(sign): "\\" + sign for sign in "&%$#_{}"} | {
    ord("\\"): r"\textbackslash{}", ord("~"): r"\textasciitilde{}", ord("^"): r"\textasciicircum{}",
    ord("<"): "$<$", ord(">"): "$>$", ord("–"): "--", ord("±"): r"$\pm$",
    ord("−"): "$-$",
}  # fmt: skip


def latex_text(text: str) -> str:
    """Text escaped for LaTeX, on one line. At the beginning of a row a bracket or an asterisk would belong to
    the command before it.
    """
    line = printable(" ".join(text.split())).translate(LATEX)
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def markdown_text(text: str) -> str:
    """Text escaped for one line of Markdown, shown literally."""
    return re.sub(r"([\\`*\[\]|~$<]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", printable(" ".join(text.split())))


def csv_file(table: "DataFrame", decimals: str = "%.6g") -> bytes:
    """A table as CSV, its text by `csv_text`."""
    safe = table.map(lambda value: csv_text(value) if isinstance(value, str) else value)
    safe.columns = [csv_text(name) for name in table.columns]
    text: str = safe.to_csv(index=False, float_format=decimals, lineterminator="\n")
    return text.encode()
