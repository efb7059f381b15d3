"""Few-shot learning in the report: accuracy by number of shots, for each data set and on average."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from pandas import DataFrame

from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.plots import few_shot_plot
from dear.report.records import AVERAGE, CHANCE, Record, checked, runs_frame
from dear.report.summary import Figure, ProtocolSummary
from dear.text import plural

NAME = "few-shot"
Curves = Mapping[str, Mapping[str, Mapping[int, Cell]]]
"""Data set title (the average last) -> method -> shots -> accuracy."""


def few_shot_curves(frame: DataFrame) -> Curves:
    """Means and deviations over seeds, in percent. A method has an average over several data sets if it has
    all of them, over the seeds that all of them have.
    """
    runs = frame[(frame.part == "all") & (frame.metric == "accuracy")].assign(value=100 * frame.value)
    values = runs.pivot_table("value", ["label", "shots", "seed"], "title", sort=False)
    titles = [*frame.title.unique()]
    if len(titles) > 1:
        values[AVERAGE] = values[titles].dropna().apply(fmean, axis=1)
    curves: dict[str, dict[str, dict[int, Cell]]] = {}
    for title in values.columns if len(titles) == 1 else (*titles, AVERAGE):
        cells = values[title].dropna().groupby(["label", "shots"]).agg(list).map(Cell.of)
        for method in frame.label.unique():
            if method in cells.index.get_level_values("label"):
                curve = {int(shots): cell for shots, cell in cells.loc[method].items()}
                curves.setdefault(title, {})[method] = curve
    return curves


def summarize(records: Sequence[Record], reference: str | None) -> ProtocolSummary:
    """The curves, and as a table: one row per data set and method, one column per number of shots; the
    accuracy of each method with the most shots.
    """
    del reference
    frame = runs_frame(records := checked(records))
    curves = few_shot_curves(frame)
    chance = dict(100 / frame.dropna(subset="classes").drop_duplicates("title").set_index("title").classes)
    if AVERAGE in curves and {*curves} == {*chance, AVERAGE}:
        chance[AVERAGE] = fmean(chance.values())
    shots = sorted({n for methods in curves.values() for curve in methods.values() for n in curve})
    rows: list[GridRow] = []
    for title, methods in curves.items():
        if title in chance:
            rows.append(GridRow(f"{title}: {CHANCE}", tuple(Cell(chance[title]) for _ in shots)))
        rows += marked([GridRow(f"{title}: {m}", tuple(map(c.get, shots))) for m, c in methods.items()])
    columns = tuple(plural(n, "shot") for n in shots)
    note = "Percent, all classes. 0 shots is zero-shot CLIP."
    grid = Grid(NAME, "Few-shot learning", "Data set: method", columns, tuple(rows), (note,))
    caption = (
        "Accuracy in percent by images per class (dashed: zero-shot CLIP); bands are standard deviations "
        "over seeds."
    )
    figure = Figure(NAME, few_shot_plot(NAME, curves), "Few-shot accuracy by number of shots", caption)
    methods = curves.get(AVERAGE, {}) if len(curves) > 1 else next(iter(curves.values()))
    most = max((n for curve in methods.values() for n in curve), default=0)
    cells = {method: curve[max(curve)] for method, curve in methods.items() if max(curve) in (0, most)}
    measure = f"accuracy with {plural(most, 'shot')}"
    last = frame[(frame.part == "all") & (frame.metric == "accuracy") & frame.shots.isin([0, most])]
    outcomes = last.assign(value=100 * last.value)
    return ProtocolSummary(records, [grid], [figure], {measure: cells}, outcomes, measure)
