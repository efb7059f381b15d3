"""Few-shot learning in the report: accuracy by number of shots, for each data set and on average."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.method_plots import few_shot_plot
from dear.report.protocols import Figure
from dear.report.records import AVERAGE, CHANCE, Record, checked, runs_frame

if TYPE_CHECKING:
    from pandas import DataFrame

Curves = Mapping[str, Mapping[str, Mapping[int, Cell]]]
"""Data set title (the average last) -> method -> shots -> accuracy."""


def few_shot_curves(frame: "DataFrame") -> Curves:
    """Means and deviations over seeds, in percent. A method has an average if it has every data set, over the
    seeds that all of them have.
    """
    runs = frame[(frame.part == "all") & (frame.metric == "accuracy")].assign(value=100 * frame.value)
    values = runs.pivot_table("value", ["label", "shots", "seed"], "title", sort=False)
    titles = [*frame.title.unique()]
    values[AVERAGE] = values[titles].dropna().apply(fmean, axis=1)
    curves: dict[str, dict[str, dict[int, Cell]]] = {}
    for title in (*titles, AVERAGE):
        cells = values[title].dropna().groupby(["label", "shots"]).agg(list).map(Cell.of)
        for method in frame.label.unique():
            if method in cells.index.get_level_values("label"):
                curve = {int(shots): cell for shots, cell in cells.loc[method].items()}
                curves.setdefault(title, {})[method] = curve
    return curves


def tables(records: Iterable[Record]) -> list[Grid]:
    """The curves as a table: one row per data set and method, one column per number of shots."""
    frame = runs_frame(checked(records))
    curves = few_shot_curves(frame)
    chance = dict(100 / frame.dropna(subset="classes").drop_duplicates("title").set_index("title").classes)
    if AVERAGE in curves and {*curves} == {*chance, AVERAGE}:
        chance[AVERAGE] = fmean(chance.values())
    shots = sorted({n for methods in curves.values() for curve in methods.values() for n in curve})
    rows: list[GridRow] = []
    for title, methods in curves.items():
        if title in chance:
            rows.append(GridRow(f"{title}: {CHANCE}", tuple(Cell(chance[title]) for _ in shots)))
        block = [(f"{title}: {method}", curve) for method, curve in methods.items()]
        rows += marked([GridRow(label, tuple(map(curve.get, shots))) for label, curve in block])
    columns = tuple("0 shots" if n == 0 else f"{n} shot{'s' if n > 1 else ''}" for n in shots)
    note = "Percent, all classes. 0 shots is zero-shot CLIP."
    return [Grid("few-shot", "Few-shot learning", "Data set: method", columns, tuple(rows), (note,))]


def figures(records: Sequence[Record]) -> list[tuple[str, Figure]]:
    """The curves, above the table."""
    curves = few_shot_plot("few-shot", few_shot_curves(runs_frame(checked(records))))
    caption = (
        "Accuracy in percent by images per class (dashed: zero-shot CLIP); bands are standard deviations "
        "over seeds."
    )
    return [("few-shot", Figure(curves, "Few-shot accuracy by number of shots", caption))]
