"""The cross-dataset and domain generalization tables: methods down; source, average and targets across."""

from collections.abc import Sequence
from statistics import fmean

from pandas import DataFrame

from dear.errors import DataError
from dear.report import published
from dear.report.grid import Cell, Grid, GridRow, marked, spread_over
from dear.report.records import (
    AVERAGE,
    CHANCE,
    Record,
    checked,
    data_sets_of,
    method_label,
    protocol,
    runs_frame,
)
from dear.report.summary import ProtocolSummary

TITLES = {
    "cross-dataset": "Cross-dataset transfer",
    "domain-generalization": "Domain generalization",
}
PAPERS = (
    "each method as its authors score: dear on the targets by the class feature alone, {of}; on the source "
    "by all features, as we read it [ours]"
)
RULE = {
    "cross-dataset": PAPERS.format(of="as the paper does"),
    "domain-generalization": PAPERS.format(
        of="as the paper does in cross-dataset transfer (of this protocol it does not say)"
    ),
}
EXTRA = {
    "class feature alone": "Class feature alone: on the source too.",
    "fused": "Fused: by all features on the targets too.",
}
"""Other ways of scoring: what is added to the label of their rows, and their note."""


def summarize(records: Sequence[Record], reference: str | None) -> ProtocolSummary:
    """The table of one of the two protocols, with published rows if the targets are the paper's.

    Each method is scored as its record says, which is as its authors score: DeAR by the class feature alone
    on the targets, and as we read it [ours] with all features on the source. Other ways of scoring have rows
    of their own where they differ, never marked as best. A method has an average if it has every target.
    Raises DataError for records of an earlier version that do not say so.
    """
    del reference
    records = [with_fused(record) for record in checked(records)]
    kind, frame = protocol(records[0]), runs_frame(records)
    source, *_ = data_sets_of(records[0])
    targets = {str(t["name"]): str(t["title"]) for run in records for t in data_sets_of(run)[1:]}
    as_authors_score = frame.metric.eq("accuracy")
    scored = _rows(frame[as_authors_score], [*targets])
    alone, fused = (_rows(frame[frame.metric == m], [*targets]) for m in ("decoupled", "fused"))
    rows, extra = _chance(records[0], [*targets]), set[str]()
    for row, *others in zip(marked(scored), alone, fused, strict=True):
        rows.append(row)
        for name, other in zip(EXTRA, others, strict=True):
            if [cell and cell.mean for cell in row.cells] != [cell and cell.mean for cell in other.cells]:
                rows.append(GridRow(f"{row.label}, {name}", other.cells))
                extra.add(name)
    printed = _published(kind, str(source["name"]), [*targets])
    notes = (
        f"Percent, {spread_over(frame.seed.nunique())}; the average excludes the source.",
        *[f"Scores: {RULE[kind]}."] * bool(extra or printed),
        *(note for name, note in EXTRA.items() if name in extra),
        *([f"Published: {published.sources()[kind.replace('-', '_')]}."] if printed else ()),
    )
    columns = (f"{source['title']} (source)", AVERAGE, *targets.values())
    grid = Grid(kind, TITLES[kind], "Method", columns, (*rows, *printed), notes)
    names = "accuracy on the source", "average accuracy on the targets"
    standing = {
        name: {row.label: c for row in scored if (c := row.cells[at])} for at, name in enumerate(names)
    }
    tested = frame[as_authors_score & frame.part.isin([f"targets {name}" for name in targets])]
    titled = {f"targets {name}": title for name, title in targets.items()}
    outcomes = tested.assign(title=tested.part.map(titled), value=100 * tested.value)
    return ProtocolSummary(records, [grid], (), standing, outcomes, "accuracy on a target")


def with_fused(record: Record) -> Record:
    """The record with the accuracies by all features, which records of earlier versions lack. For a method
    with a single feature they are the accuracies. Raises DataError for other methods: earlier versions scored
    targets by the name of the method.
    """
    results = record["results"]
    parts = [results["source"], *results["targets"].values()]
    if any("fused" not in part and part["accuracy"] != part.get("decoupled") for part in parts):
        raise DataError(
            f"a run of {method_label(record)} is of an earlier version, which did not record how the method "
            "scores targets: make it again."
        )
    targets = {name: {"fused": part["accuracy"], **part} for name, part in results["targets"].items()}
    source = {"fused": results["source"]["accuracy"], **results["source"]}
    return {**record, "results": {"source": source, "targets": targets}}


def _rows(frame: DataFrame, targets: Sequence[str]) -> list[GridRow]:
    """Source, average and targets of each method."""
    parts = ["source", *(f"targets {name}" for name in targets)]
    runs = frame.assign(value=100 * frame.value)
    runs = runs.pivot_table("value", ["label", "seed"], "part", sort=False).reindex(columns=parts)
    runs.insert(1, AVERAGE, runs[parts[1:]].apply(fmean, axis=1))
    rows = []
    for label in frame.label.unique():
        columns = [[*column.dropna()] for _, column in runs.xs(label, level="label").items()]
        complete = len({len(values) for values in columns}) == 1
        columns[1] = columns[1] if complete else []
        rows.append(GridRow(label, tuple(Cell.of(values) if values else None for values in columns)))
    return rows


def _chance(run: Record, names: Sequence[str]) -> list[GridRow]:
    """A row of guessing among the classes of each data set, if the record tells their number."""
    classes = {target["name"]: target.get("classes") or () for target in run["targets"]}
    counts = [len(classes.get(name, ())) for name in names]
    source = len(run["dataset"].get("classes") or ())
    if not source or not all(counts):
        return []
    chances = [100 / count for count in counts]
    return [GridRow(CHANCE, tuple(map(Cell, (100 / source, fmean(chances), *chances))))]


def _published(protocol: str, source: str, names: Sequence[str]) -> list[GridRow]:
    """The paper's rows if it has any of these targets, with its average if it has all of them."""
    rows, columns = [], [published.paper_data_set(name) for name in names]
    for method, numbers in published.transfer(protocol).items():
        targets = {*numbers} - {"ImageNet", "average"}
        if not targets & {*columns}:
            continue
        values = [numbers.get("ImageNet") if source == "ImageNet" else None]
        values.append(numbers["average"] if targets <= {*columns} else None)
        values += [None if name == "average" else numbers.get(name) for name in columns]
        cells = tuple(None if value is None else Cell(value, seeds=0) for value in values)
        rows.append(GridRow(method, cells, published=True))
    return rows
