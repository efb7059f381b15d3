"""Base-to-novel in the report: its tables, DeAR's ablations, and what the top of the page says."""

from collections.abc import Sequence
from typing import Any

from dear.evaluation.ablations import METHOD, Ablation, ablations
from dear.report import published
from dear.report.base_to_novel import (
    MEASURE_TITLES,
    MEASURES,
    TITLES,
    Table,
    average,
    base_to_novel_grid,
    base_to_novel_table,
    cells_of,
    chance_pairs,
    costs_of,
    has_spread,
    joint_grid,
    methods_grid,
    paired_grid,
    pairs_of,
    published_grid,
)
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.method_plots import average_bars, cost_plot, costs_compared, gain_bars
from dear.report.records import (
    CHANCE,
    Record,
    checked,
    data_sets_of,
    distinct,
    is_benchmark,
    is_public,
    runs_frame,
)

NAME = "base-to-novel"
ACROSS = 3
"""Methods up to which they stand across, as in the paper: a page has room for no more."""
FEWEST = 2  # rows of an ablation that make a table
PUBLISHED_DATA = {"average of 11": "11 data sets", "ImageNet": "ImageNet"}


def tables(records: Sequence[Record]) -> list[Grid]:
    """The result table and comparisons of the methods."""
    runs = headline(records)
    table = base_to_novel_table(runs)
    grids = [methods_grid(table, runs), joint_grid(runs), paired_grid(runs), published_grid(runs)]
    return [base_to_novel_grid(table), *filter(None, grids)]


def headline(records: Sequence[Record]) -> list[Record]:
    """The runs of the main table. Rows of the ablations have their own tables, unless there are no other
    runs.
    """
    return [record for record in records if record.get("variant") not in _labels()] or list(records)


def page(records: Sequence[Record], main: str, reference: str | None) -> dict[str, Any]:
    """The variables of the templates, also if there are no records. ``main`` is the method that the page is
    about, ``reference`` the one it is compared with.
    """
    runs = headline(records)
    if not runs:
        return {"table": None, "tiles": [], "has_deviations": False}
    table = base_to_novel_table(runs)
    averages, costs = table.averages, costs_of(runs)
    shown = [entry for row in table.with_average for entry in row.entries if entry]
    down = len(table.methods) > ACROSS
    means = {method: entry["hm"].mean for method, entry in averages.items()}
    best = max(means, key=means.__getitem__, default=main)
    return {
        "table": table,
        "measures": [*MEASURE_TITLES.items()],
        "has_deviations": any(entry["base"].spread is not None for entry in shown),
        "has_second": any(e[m].mark == "second" for e in shown for m in (("hm",) if down else MEASURES)),
        "setting": _setting(runs, table),
        "tiles": _tiles(table, main, reference),
        "highest": None if best == main or main not in means
        else f"The highest harmonic mean here is that of {best}, {means[best]:.1f}.",
        "bars": average_bars(averages),
        "gains": gain_bars(table, reference) if reference in table.methods else None,
        "costs": cost_plot(averages, costs, reference),
        "costs_compared": [*costs_compared(averages, costs)],
        "down": down,
    }  # fmt: skip


def _setting(records: Sequence[Record], table: Table) -> str:
    shots = [shots for shots in distinct(record.get("shots") for record in records) if shots]
    seeds = distinct(record.get("seed") for record in records)
    words = _count(len(table.rows), "data set")
    if shots:
        words += f", {' or '.join(map(str, shots))} training images per class"
    return f"{words}, {_count(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _tiles(table: Table, main: str, reference: str | None) -> list[dict[str, str]]:
    """The headline: the main method's averages, each with the reference's and the difference in points."""
    ours = table.entry(main)
    theirs = table.entry(reference) if reference and reference != main else None
    tiles = []
    for measure, name in zip(MEASURES, ("base classes", "novel classes", "harmonic mean"), strict=True):
        if ours:
            tile = {"name": name, "value": f"{ours[measure].mean:.1f}", "reference": "", "points": ""}
            if theirs:
                points = f"{ours[measure].mean - theirs[measure].mean:+.1f}".replace("-", "−")
                tile |= {"reference": f"{theirs[measure].mean:.1f}", "points": points}
            tiles.append(tile)
    return tiles


def appendix(records: Sequence[Record]) -> list[Grid]:
    """A table for each ablation that has at least two rows.

    Both rows of the inference ablation are in every run of DeAR. Beside other methods on the user's data or
    on drawings nobody asked for it: it has a table for benchmarks, and for public data where DeAR alone was
    run or another ablation was. Published numbers, which are of benchmarks, stand beside these alone.
    """
    of_method = [record for record in records if record.get("method") == METHOD]
    if not of_method:
        return []
    of_method = checked(of_method)
    used = [dataset for record in of_method for dataset in data_sets_of(record)]
    with_published, public = all(map(is_benchmark, used)), all(map(is_public, used))
    asked = len(of_method) == len(records) or any(run.get("variant") in _labels() for run in of_method)
    inference = with_published or (asked and public)
    grids = [
        _grid(ablation, of_method, with_published=with_published)
        for ablation in ablations().values()
        if inference or ablation.name != "inference"
    ]
    return [grid for grid in grids if grid is not None]


def _labels() -> set[str]:
    """The variants that are rows of ablations."""
    return {row.label for ablation in ablations().values() for row in ablation.rows if row.label}


def _grid(ablation: Ablation, records: Sequence[Record], *, with_published: bool) -> Grid | None:
    """The table of an ablation, over the data sets that all its rows have; None if nothing was varied."""
    frame = runs_frame(records)
    frame = frame.assign(variant=frame.variant.astype(object).where(frame.variant.notna(), ""))
    has_runs = [row for row in ablation.rows if (frame.variant == (row.label or "")).any()]
    varied = ablation.name == "inference" or any(row.label for row in has_runs)
    if len(has_runs) < FEWEST or not varied:
        return None
    pairs = {row.shown: pairs_of(frame[frame.variant == (row.label or "")], "", row.read) for row in has_runs}
    first = frame[frame.variant == (has_runs[0].label or "")]
    shared = set.intersection(*(set(of_row.title) for of_row in pairs.values()))
    titles = [title for title in first.title.unique() if title in shared]
    if not titles:
        return None
    printed = published.ablation(ablation.name) if with_published else {}
    shown = [row.shown for row in ablation.rows]
    entries = [average(pairs[name], titles) if name in pairs else None for name in shown]
    rows = [*marked([GridRow(name, cells_of(entry)) for name, entry in zip(shown, entries, strict=True)])]
    if chance := average(chance_pairs(first), titles):
        rows.insert(0, GridRow(CHANCE, cells_of(chance)))
    # By data and measure, the published number of each row; not all are printed.
    columns = {
        f"{MEASURE_TITLES[measure]}, published ({PUBLISHED_DATA[data]})": {
            name: Cell(numbers[measure]) for name, numbers in by_row.items() if measure in numbers
        }
        for data, by_row in printed.items()
        for measure in MEASURES
        if any(measure in numbers for numbers in by_row.values())
    }
    rows = [GridRow(r.label, (*r.cells, *(of.get(r.label) for of in columns.values()))) for r in rows]
    notes = [
        f"Ours: percent, average of {_count(len(titles), 'data set')} ({', '.join(titles)})"
        f"{', mean ± standard deviation over seeds' * has_spread(rows)}."
    ]
    if with_published:
        notes.append(
            "Published: DeAR (CVPR 2026); data and weights may be others than ours: compare the order alone."
            if printed
            else "No published numbers are known for this ablation."
        )
    unmodified = {row.shown for row in ablation.rows if row.label is None}
    compared = [data for data, by_row in printed.items() if unmodified & by_row.keys()]
    paper = str(published.paper_method(METHOD))
    notes += published.slip_notes("ablations", [(paper, data) for data in compared])
    name, title = f"ablation-{ablation.name}", f"Ablation: {ablation.title}"
    return Grid(name, title, "Variant", (*TITLES, *columns), tuple(rows), tuple(notes))
