"""The ablation tables: one row per variant; base, novel and HM of our runs beside the published numbers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dear.evaluation.ablations import METHOD, Ablation, AblationRow, ablations
from dear.evaluation.schema import part_of
from dear.report import published
from dear.report.base_to_novel import MEASURE_TITLES, MEASURES, Pairs, average, chance_pairs
from dear.report.comparison import slip_notes
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.records import (
    CHANCE,
    Record,
    accuracy,
    checked,
    data_set,
    data_set_title,
    grouped,
    user_data_only,
)

FEWEST = 2
PUBLISHED_DATA = {"average of 11": "11 data sets", "ImageNet": "ImageNet"}


def ablation_grids(records: Iterable[Record]) -> list[Grid]:
    """A table for each ablation that has at least two rows.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    of_method = [record for record in records if record.get("method") == METHOD]
    if not of_method:
        return []
    of_method = checked(of_method)
    public = not user_data_only(of_method)
    by_variant = grouped(of_method, lambda record: str(record.get("variant") or ""))
    grids = [_grid(ablation, by_variant, public) for ablation in ablations().values()]
    return [grid for grid in grids if grid is not None]


def _grid(ablation: Ablation, by_variant: Mapping[str, Sequence[Record]], public: bool) -> Grid | None:
    """The table of an ablation. Data that are not ``public`` are the user's: then only what was varied has a
    table, without published numbers.
    """
    has_runs = [row for row in ablation.rows if by_variant.get(row.label or "")]
    varied = [row for row in has_runs if row.label] or (
        has_runs if public and ablation.name == "inference" else []
    )
    if len(has_runs) < FEWEST or not varied:
        return None
    pairs = {row.shown: _pairs(row, by_variant[row.label or ""]) for row in has_runs}
    shared = [name for name in pairs[has_runs[0].shown] if all(name in by_data for by_data in pairs.values())]
    if not shared:
        return None
    printed = published.ablation(ablation.name) if public else {}
    rows = []
    for row in ablation.rows:
        entry = average([pairs[row.shown][name] for name in shared]) if row.shown in pairs else None
        cells: list[Cell | None] = [None if entry is None else entry[m] for m in MEASURES]
        rows.append(GridRow(row.shown, tuple(cells)))
    chances = [chance_pairs(run) for run in by_variant[has_runs[0].label or ""] if data_set(run) in shared]
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
    notes = [f"Ours: percent, average of {len(shared)} data set{'s' if len(shared) > 1 else ''} ({names})."]
    if public:
        notes.append(
            "Published: DeAR (CVPR 2026), with other data and weights than ours; only the order is "
            "comparable."
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
