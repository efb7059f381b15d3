"""Base-to-novel in the report: the result table, side-by-side comparison of methods, differences, DeAR's
ablations, and the top of the page.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from dear.evaluation.ablations import METHOD, Ablation, AblationRow, ablations
from dear.evaluation.schema import part_of
from dear.report import published
from dear.report.base_to_novel import (
    MEASURE_TITLES,
    MEASURES,
    Measure,
    Pairs,
    Table,
    average,
    base_to_novel_grid,
    base_to_novel_table,
    chance_pairs,
)
from dear.report.comparison import costs_of, joint_grid, methods_grid, paired_grid, published_grid, slip_notes
from dear.report.grid import MISSING, Cell, Grid, GridRow, marked
from dear.report.method_plots import accuracy_bars, averages_down, cost_plot, costs_compared, gain_bars
from dear.report.protocols import ProtocolReport
from dear.report.records import (
    CHANCE,
    Record,
    accuracy,
    benchmarks_only,
    checked,
    data_set,
    data_set_title,
    distinct,
    grouped,
    public_data_only,
)

ACROSS = 3
"""Methods up to which they stand across, as in the paper: a page has room for no more."""
FEWEST = 2  # rows of an ablation that make a table
PUBLISHED_DATA = {"average of 11": "11 data sets", "ImageNet": "ImageNet"}


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
        return [record for record in records if record.get("variant") not in _labels()] or list(records)

    def page(self, records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
        runs = self.headline(records)
        table = base_to_novel_table(runs) if runs else None
        many = table is not None and len(table.methods) > ACROSS
        bars = averages_down if many else accuracy_bars
        costs = costs_of(table, runs) if table else []
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
            "bars": bars(table) if table and any(table.average.entries) else None,
            "gains": gain_bars(table, reference) if table and reference in table.methods else None,
            "costs": cost_plot(costs, reference),
            "costs_compared": [*costs_compared(costs)],
            "has_second": table is not None
            and any(
                entry[measure].mark == "second"
                for row in table.with_average
                for entry in filter(None, row.entries)
                for measure in (MEASURES if not many else ("hm",))
            ),
            "down": many,
        }


REPORT = BaseToNovelReport()


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


def ablation_grids(records: Iterable[Record]) -> list[Grid]:
    """A table for each ablation that has at least two rows.

    Both rows of the inference ablation are in every run of DeAR. Beside other methods on the user's data or
    on drawings nobody asked for it: it has a table for benchmarks, and for public data where DeAR alone was
    run or another ablation was. Published numbers, which are of benchmarks, stand beside these alone.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    records = list(records)
    of_method = [record for record in records if record.get("method") == METHOD]
    if not of_method:
        return []
    of_method = checked(of_method)
    with_published = benchmarks_only(of_method)
    by_variant = grouped(of_method, lambda record: str(record.get("variant") or ""))
    asked = len(of_method) == len(records) or not by_variant.keys().isdisjoint(_labels())
    inference = with_published or (asked and public_data_only(of_method))
    grids = [
        _grid(ablation, by_variant, with_published=with_published)
        for ablation in ablations().values()
        if inference or ablation.name != "inference"
    ]
    return [grid for grid in grids if grid is not None]


def _labels() -> set[str]:
    """The variants that are rows of ablations."""
    return {row.label for ablation in ablations().values() for row in ablation.rows if row.label}


def _grid(
    ablation: Ablation, by_variant: Mapping[str, Sequence[Record]], *, with_published: bool
) -> Grid | None:
    """The table of an ablation; None if nothing was varied."""
    has_runs = [row for row in ablation.rows if by_variant.get(row.label or "")]
    varied = ablation.name == "inference" or any(row.label for row in has_runs)
    if len(has_runs) < FEWEST or not varied:
        return None
    pairs = {row.shown: _pairs(row, by_variant[row.label or ""]) for row in has_runs}
    shared = [name for name in pairs[has_runs[0].shown] if all(name in by_data for by_data in pairs.values())]
    if not shared:
        return None
    printed = published.ablation(ablation.name) if with_published else {}
    rows = []
    for row in ablation.rows:
        entry = average([pairs[row.shown][name] for name in shared]) if row.shown in pairs else None
        cells: list[Cell | None] = [None if entry is None else entry[m] for m in MEASURES]
        rows.append(GridRow(row.shown, tuple(cells)))
    complete = {*shared}
    chances = [chance_pairs(run) for run in by_variant[has_runs[0].label or ""] if data_set(run) in complete]
    rows = [*marked(rows)]
    if (chance := average(chances)) is not None:
        rows.insert(0, GridRow(CHANCE, tuple(chance[m] for m in MEASURES)))
    rows = [GridRow(row.label, (*row.cells, *_printed(printed, row.label))) for row in rows]
    columns = [MEASURE_TITLES[m] for m in MEASURES]
    columns += [
        f"{MEASURE_TITLES[m]}, published ({PUBLISHED_DATA[data]})"
        for data, by_row in printed.items()
        for m in _measures(by_row)
    ]
    titles = dict((data_set(run), data_set_title(run)) for run in by_variant[has_runs[0].label or ""])
    names = ", ".join(titles[name] for name in shared)
    several = any(cell and cell.spread is not None for row in rows for cell in row.cells)
    notes = [
        f"Ours: percent, average of {len(shared)} data set{'s' if len(shared) > 1 else ''} ({names})"
        f"{', mean ± standard deviation over seeds' if several else ''}."
    ]
    if with_published:
        notes.append(
            "Published: DeAR (CVPR 2026); data and weights may be others than ours: compare the order alone."
            if printed
            else "No published numbers are known for this ablation."
        )
    notes += slip_notes("ablations", _unmodified(ablation, printed))
    return Grid(
        f"ablation-{ablation.name}",
        f"Ablation: {ablation.title}",
        "Variant",
        tuple(columns),
        tuple(rows),
        tuple(notes),
    )


def _pairs(row: AblationRow, runs: Sequence[Record]) -> dict[str, Pairs]:
    by_data: dict[str, dict[Any, tuple[float, float]]] = {}
    for run in runs:
        if part_of(run, "results", "base", row.read) is None:  # a method with a single feature
            continue
        pair = accuracy(run, "base", read=row.read), accuracy(run, "novel", read=row.read)
        by_data.setdefault(data_set(run), {})[run.get("seed")] = pair
    return dict(by_data)


def _measures(by_row: Mapping[str, Mapping[str, float]]) -> list[Any]:
    return [m for m in MEASURES if any(m in numbers for numbers in by_row.values())]


def _unmodified(
    ablation: Ablation, printed: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[tuple[str, str]]:
    """The data for which an ablation prints the unmodified method, by the paper's name of the method."""
    unmodified = {row.shown for row in ablation.rows if row.label is None}
    method = str(published.paper_method(METHOD))
    return [(method, data) for data, rows in printed.items() if unmodified & rows.keys()]


def _printed(printed: Mapping[str, Mapping[str, Mapping[str, float]]], label: str) -> list[Cell | None]:
    cells: list[Cell | None] = []
    for by_row in printed.values():
        numbers = by_row.get(label, {})
        cells += [Cell(numbers[m]) if m in numbers else None for m in _measures(by_row)]
    return cells
