"""Base-to-novel in the report: the result table, side-by-side comparison of methods, differences, DeAR's
ablations, and the top of the page.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dear.evaluation.ablations import ablations
from dear.report.ablation_tables import ablation_grids
from dear.report.base_to_novel import (
    MEASURE_TITLES,
    MEASURES,
    Measure,
    Table,
    base_to_novel_grid,
    base_to_novel_table,
)
from dear.report.comparison import costs_of, joint_grid, methods_grid, paired_grid, published_grid
from dear.report.grid import MISSING, Grid
from dear.report.method_plots import accuracy_bars, averages_down, cost_plot, gain_bars
from dear.report.protocols import ProtocolReport
from dear.report.records import Record, distinct
from dear.report.svg import Drawing

ACROSS = 3
"""Methods up to which they stand across, as in the paper: a page has room for no more."""


class BaseToNovelReport(ProtocolReport):
    """The main table has a special position on the page and follows the paper's layout."""

    head: ClassVar[str | None] = "protocols/base_to_novel_head.html.j2"
    section: ClassVar[str | None] = "protocols/base_to_novel.html.j2"
    tables_in_section: ClassVar[frozenset[str]] = frozenset({"base-to-novel"})

    def tables(self, records: Sequence[Record]) -> list[Grid]:
        runs = self.headline(records)
        table = base_to_novel_table(runs)
        comparisons = (
            methods_grid(table, runs, runs),
            joint_grid(runs),
            paired_grid(runs),
            published_grid(runs),
        )
        return [base_to_novel_grid(table), *(grid for grid in comparisons if grid)]

    def appendix(self, records: Sequence[Record]) -> list[Grid]:
        return ablation_grids(records)

    def headline(self, records: Sequence[Record]) -> list[Record]:
        """The runs of the main table. Rows of the ablations have their own tables, unless there are no other
        runs.
        """
        labels = {row.label for ablation in ablations().values() for row in ablation.rows if row.label}
        return [record for record in records if record.get("variant") not in labels] or list(records)

    def page(self, records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
        runs = self.headline(records)
        table = base_to_novel_table(runs) if runs else None
        return {
            "table": table,
            "measures": [(measure, MEASURE_TITLES[measure]) for measure in MEASURES],
            "missing": MISSING,
            "has_deviations": table is not None
            and any(
                cell and cell["base"].spread is not None for row in table.with_average for cell in row.entries
            ),
            "setting": _setting(runs, table) if table else "",
            "tiles": _tiles(table, main, reference) if table else [],
            "highest": _highest(table, main) if table else None,
            "bars": _bars(table) if table and any(table.average.entries) else None,
            "gains": gain_bars(table, reference) if table and reference in table.methods else None,
            "costs": cost_plot(costs_of(table, runs), reference) if table else None,
            "down": table is not None and len(table.methods) > ACROSS,
        }


REPORT = BaseToNovelReport()


def _bars(table: Table) -> Drawing | None:
    return averages_down(table) if len(table.methods) > ACROSS else accuracy_bars(table)


def _setting(records: Sequence[Record], table: Table) -> str:
    shots = [shots for shots in distinct(record.get("shots") for record in records) if shots]
    seeds = distinct(record.get("seed") for record in records)
    words = f"{_count(len(table.rows), 'data set')}"
    if shots:
        words += f", {' or '.join(map(str, shots))} training images per class"
    return f"{words}, {_count(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _tiles(table: Table, main: str, reference: str | None) -> list[dict[str, str]]:
    """The headline: the main method's averages, each with the reference's and the difference in points."""
    ours = table.entry(main)
    if ours is None:
        return []
    theirs = table.entry(reference) if reference and reference != main else None
    names: Mapping[Measure, str] = {"base": "base classes", "novel": "novel classes", "hm": "harmonic mean"}
    tiles = []
    for measure in MEASURES:
        tile = {"name": names[measure], "value": f"{ours[measure].mean:.1f}", "reference": "", "points": ""}
        if theirs:
            tile["reference"] = f"{theirs[measure].mean:.1f}"
            tile["points"] = f"{ours[measure].mean - theirs[measure].mean:+.1f}".replace("-", "−")
        tiles.append(tile)
    return tiles


def _highest(table: Table, main: str) -> str | None:
    """A sentence to add if another method has a higher average HM."""
    means = {
        m: entry["hm"].mean for m, entry in zip(table.methods, table.average.entries, strict=True) if entry
    }
    if main not in means or (best := max(means, key=means.__getitem__)) == main:
        return None
    return f"The highest harmonic mean here is that of {best}, {means[best]:.1f}."
