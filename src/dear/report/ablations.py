"""The ablations of DeAR in the report, beside the published numbers."""

from collections.abc import Sequence
from dataclasses import replace

from pandas import DataFrame

from dear.evaluation.ablations import METHOD, Ablation, ablations
from dear.report import published
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.protocols.half_scores import (
    LACKING,
    MEASURES,
    SPREAD,
    TITLES,
    cells_of,
    chance_of,
    scores_of,
)
from dear.report.records import CHANCE, Record, checked, data_sets_of, is_benchmark, runs_frame
from dear.text import plural

PUBLISHED_DATA = {"average of 11": "11 data sets", "ImageNet": "ImageNet"}


def ablation_grids(records: Sequence[Record]) -> tuple[list[Grid], list[Record]]:
    """A table for each ablation of DeAR that has at least two rows, and the runs of variants that are rows of
    one with all their data sets. The rows of the inference ablation are in every run of DeAR: it has a table
    for benchmarks, beside which published numbers stand, where another ablation was run, and where DeAR alone
    was, as in the recipe of this ablation.
    """
    runs = [record for record in records if record.get("method") == METHOD]
    if not runs:
        return [], []
    frame = runs_frame(checked(runs))
    with_published = all(is_benchmark(dataset) for run in runs for dataset in data_sets_of(run))
    by_name = {
        name: ablation_grid(ablation, frame, with_published=with_published)
        for name, ablation in ablations().items()
    }
    variants = {label for _, complete in by_name.values() for label in complete}
    ablated = [run for run in runs if run.get("variant") in variants]
    if not (with_published or ablated or len(runs) == len(records)):
        del by_name["inference"]
    return [grid for grid, _ in by_name.values() if grid.rows], ablated


def _seeds(number: tuple[float, float | None]) -> int:
    """Of how many seeds a published number is: those with a deviation are of three."""
    return 1 if number[1] is None else 3


def ablation_grid(ablation: Ablation, frame: DataFrame, *, with_published: bool) -> tuple[Grid, set[str]]:
    """The table of an ablation, over the data sets that all its rows have, without rows if nothing was
    varied; and the variants in it that were run on no other data set.
    """
    empty = Grid(f"ablation-{ablation.name}", f"Ablation: {ablation.title}", "Variant", TITLES, ())
    variants = frame.variant.astype(object).where(frame.variant.notna(), "")
    frames = {row.shown: frame[variants == (row.label or "")] for row in ablation.rows}
    has_runs = [row for row in ablation.rows if len(frames[row.shown])]
    if len(has_runs) < 2 or not (ablation.name == "inference" or any(row.label for row in has_runs)):
        return empty, set()
    runs = {row.shown: scores_of(frames[row.shown], metric=row.read) for row in has_runs}
    first = frames[has_runs[0].shown]
    titles = [title for title in first.title.unique() if all((r.title == title).any() for r in runs.values())]
    if not titles:
        return empty, set()
    complete = {row.label for row in has_runs if row.label and {*frames[row.shown].title} == {*titles}}
    cells = {name: cells_of(runs[name], titles) if name in runs else LACKING for name in frames}
    rows = [*marked([GridRow(name, of_row) for name, of_row in cells.items()])]
    if (chance := cells_of(chance_of(first), titles))[0]:
        rows.insert(0, GridRow(CHANCE, chance))
    # By data and measure, the published number of each row; not all are printed. Those of ImageNet stand
    # beside ours of ImageNet.
    names = first.drop_duplicates("title").set_index("title")["data set"].map(published.paper_data_set)
    imagenet = [title for title in titles if names[title] == "ImageNet"]
    printed = {
        data: by_row
        for data, by_row in (published.ablation(ablation.name) if with_published else {}).items()
        if data != "ImageNet" or imagenet
    }
    columns = dict[str, dict[str, Cell | None]]()
    for data, by_row in printed.items():
        for at, (measure, title) in enumerate(zip(MEASURES, TITLES, strict=True)):
            by_measure = {
                n: Cell(*row[measure], _seeds(row[measure])) for n, row in by_row.items() if measure in row
            }
            if by_measure and data == "ImageNet" and titles != imagenet:
                ours = {n: cells_of(r, imagenet)[at] for n, r in runs.items()}
                columns[f"{title} (ImageNet)"] = ours
            if by_measure:
                columns[f"{title}, published ({PUBLISHED_DATA[data]})"] = dict(by_measure)
    rows = [replace(r, cells=(*r.cells, *(of.get(r.label) for of in columns.values()))) for r in rows]
    notes = [f"Ours: percent, average of {plural(len(titles), 'data set')} ({', '.join(titles)}), {SPREAD}."]
    if printed:
        notes.append(
            "Published: DeAR (CVPR 2026); data and weights may be others than ours: compare the order alone."
        )
        numbers = [(str(published.paper_method(METHOD)), data) for data in printed]
        notes += published.slip_notes("ablations", numbers)
        notes += published.slip_notes(empty.name, numbers)
    grid = replace(empty, columns=(*TITLES, *columns), rows=tuple(rows), notes=tuple(notes))
    return grid, complete
