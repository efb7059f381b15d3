"""The base-to-novel tables: the results in the paper's layout, methods side by side with their costs, with
all classes at once, paired over data sets, and beside published numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from dear.evaluation.schema import harmonic_mean
from dear.report import published
from dear.report.grid import INTERVAL, MISSING, Cell, Grid, GridRow, marked
from dear.report.intervals import FEWEST, LEVEL, half_width
from dear.report.records import (
    AVERAGE,
    CHANCE,
    UNLABELLED,
    Record,
    checked,
    data_set,
    grouped,
    method_label,
    runs_frame,
    settings_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame

Measure = Literal["base", "novel", "hm"]
MEASURES: tuple[Measure, ...] = ("base", "novel", "hm")
MEASURE_TITLES: Mapping[Measure, str] = {"base": "Base", "novel": "Novel", "hm": "HM"}
TITLES = tuple(MEASURE_TITLES.values())
HALVES = ["base", "novel"]
Entry = dict[Measure, Cell]
"""Base, novel and HM of a method on a data set, in percent."""
COSTS = ("Trainable parameters", "Seconds per run", "Peak memory, MiB")
TOO_FEW = (
    f"No interval over fewer than {FEWEST} data sets: that of two is 12.7 standard errors wide to each side, "
    "and says nothing."
)
JOINT_RULES = ("HM, class feature alone", "HM, novel by zero-shot")
JOINT_NOTE = (
    "Percent, average of the data sets. Test images of base and of novel classes, each among the names of "
    "all classes. Where a method's authors score novel classes by the class feature alone, so are the novel "
    "ones here, beside the fused scores of the base classes."
)


@dataclass(frozen=True)
class Row:
    """The numbers of one data set: base, novel and HM for each method, or None if there is no run; and those
    of guessing, or None if the records do not tell the classes.
    """

    title: str
    entries: tuple[Entry | None, ...]
    chance: Entry | None = None

    @property
    def chance_text(self) -> str:
        """Chance on base and novel classes, in percent."""
        return MISSING if self.chance is None else " / ".join(self.chance[m].value for m in MEASURES[:2])


@dataclass(frozen=True)
class Table:
    """A result table, in percent; `average` has None for a method that lacks a data set of the table.

    Each HM is that of the base and novel beside it; its deviation is that of the per-seed HMs.
    """

    methods: tuple[str, ...]
    rows: tuple[Row, ...]
    average: Row

    @property
    def with_average(self) -> tuple[Row, ...]:
        """All rows, the average last."""
        return (*self.rows, self.average)

    @property
    def averages(self) -> dict[str, Entry]:
        """The averages of the methods that have one."""
        entries = zip(self.methods, self.average.entries, strict=True)
        return {method: entry for method, entry in entries if entry}

    def render(self, console: Console) -> None:
        """Print the table, a line per data set and method."""
        base_to_novel_grid(self).render(console)

    def entry(self, method: str, title: str | None = None) -> Entry | None:
        """The numbers of a method on the data set with that title, or on average."""
        row = self.average if title is None else next(row for row in self.rows if row.title == title)
        return row.entries[self.methods.index(method)]


def base_to_novel_table(records: Iterable[Record]) -> Table:
    """The base-to-novel table of some run records, data sets and methods in order of first appearance.

    A method has an average if it has every data set of the table; its HM is the HM of the averages (the
    paper's rule), and it has a deviation if every data set has the same seeds.

    Raises:
        DataError: for records that cannot be combined in one table (see `checked`) or lack a number.
    """
    frame = runs_frame(checked(records))
    pairs, titles = pairs_of(frame), [*frame.title.unique()]
    methods = [*pairs.label.unique()]
    by_title = pairs.groupby("title", sort=False)
    chances = chance_pairs(frame)
    rows = [_row(title, by_title.get_group(title), methods, chances, [title]) for title in titles]
    return Table(tuple(methods), tuple(rows), _row(AVERAGE, pairs, methods, chances, titles))


def _row(
    name: str, pairs: "DataFrame", methods: Sequence[str], chances: "DataFrame", titles: Sequence[str]
) -> Row:
    """A row with the best and the second of each measure marked."""
    entries = [average(pairs[pairs.label == method], titles) for method in methods]
    ranked = [row.cells for row in marked([GridRow("", cells_of(entry)) for entry in entries])]
    best = [{m: c for m, c in zip(MEASURES, cells, strict=True) if c} or None for cells in ranked]
    return Row(name, tuple(best), average(chances[chances.title.isin(titles)], titles))


def pairs_of(frame: "DataFrame", prefix: str = "", metric: str = "accuracy") -> "DataFrame":
    """The base and novel accuracy of each run, fractions, by label, title and seed."""
    parts = {f"{prefix}{half}": half for half in HALVES}
    rows = frame[frame.part.isin([*parts]) & (frame.metric == metric)]
    rows = rows.assign(part=rows.part.map(parts))
    pairs = rows.pivot_table("value", ["label", "title", "seed"], "part", aggfunc="first", sort=False)
    return pairs.reindex(columns=HALVES).dropna().reset_index()


def chance_pairs(frame: "DataFrame") -> "DataFrame":
    """The accuracy of guessing among the base classes of each data set, the first ceil(n / 2), and among the
    novel ones.
    """
    known = frame[frame.classes > 1].drop_duplicates("title")
    base = (known.classes + 1) // 2
    return known.assign(seed=0, base=1 / base, novel=1 / (known.classes - base))[["title", "seed", *HALVES]]


def summarize(pairs: "DataFrame") -> Entry:
    """Means over the rows, one for each seed, in percent."""
    base, novel = ([100 * share for share in pairs[half]] for half in HALVES)
    hms = [harmonic_mean(*pair) for pair in zip(base, novel, strict=True)]
    cells = {m: Cell.of(values) for m, values in zip(MEASURES, (base, novel, hms), strict=True)}
    return cells | {"hm": replace(cells["hm"], mean=harmonic_mean(fmean(base), fmean(novel)))}


def average(pairs: "DataFrame", titles: Sequence[str]) -> Entry | None:
    """The average of one method over data sets, None if one is missing."""
    pairs = pairs[pairs.title.isin(titles)]
    by_title = pairs.groupby("title", sort=False)
    if len(by_title) < len(titles):
        return None
    if by_title.seed.agg(frozenset).nunique() == 1:
        return summarize(pairs.groupby("seed", sort=False)[HALVES].agg(fmean))
    # Seeds differ between data sets: only the average of the means is defined.
    mean = summarize(by_title[HALVES].agg(fmean).agg(fmean).to_frame().T)
    fewest = int(by_title.size().min())
    return {measure: Cell(cell.mean, None, fewest) for measure, cell in mean.items()}


def cells_of(entry: Entry | None) -> tuple[Cell | None, ...]:
    """The cells of an entry in the order of the measures."""
    return tuple(None if entry is None else entry[measure] for measure in MEASURES)


def has_spread(rows: Iterable[GridRow]) -> bool:
    """True if a cell has a spread."""
    return any(cell and cell.spread is not None for row in rows for cell in row.cells)


def base_to_novel_grid(table: Table) -> Grid:
    """The result table as a grid: one row per method and data set."""
    rows = [
        GridRow(f"{row.title}: {method}", cells_of(entry))
        for row in table.with_average
        for method, entry in [
            *([] if row.chance is None else [(CHANCE, row.chance)]),
            *zip(table.methods, row.entries, strict=True),
        ]
    ]
    seeds = max((cell.seeds for row in rows for cell in row.cells if cell), default=1)
    note = "Mean ± standard deviation over seeds. " if seeds > 1 else "One seed. "
    note += "Percent. The average's HM is that of the averages. Best and second by data set."
    title = "Base-to-novel generalization"
    return Grid("base-to-novel", title, "Data set: method", TITLES, tuple(rows), (note,))


def costs_of(records: Iterable[Record]) -> "DataFrame":
    """What each method needs: its number of trained ``parameters``, on the data set with the most; the median
    ``seconds`` of a run, training and tests; the highest peak ``memory`` (process memory without a GPU); NaN
    where no record says.
    """
    from pandas import DataFrame

    def facts(record: Record) -> dict[str, Any]:
        spent, peak = record.get("seconds") or {}, record.get("peak_memory") or {}
        return {
            "label": method_label(record),
            "parameters": record.get("trainable_parameters"),
            "seconds": spent["train"] + spent["test"] if {"train", "test"} <= {*spent} else None,
            "memory": peak.get("gpu") or peak.get("resident"),
        }

    rows = DataFrame([facts(record) for record in records]).astype({"label": object})
    numbers = rows.set_index("label").astype(float).groupby("label", sort=False)
    return numbers.agg({"parameters": "max", "seconds": "median", "memory": "max"})


def methods_grid(table: Table, records: Sequence[Record]) -> Grid | None:
    """One row per method of the base-to-novel table of some records: its average and its costs. None for a
    single method.
    """
    if len(table.methods) < 2:
        return None
    costs = costs_of(records)
    rows = []
    for method, entry in zip(table.methods, table.average.entries, strict=True):
        needs = zip(costs.loc[method], (0, 1, 0), strict=True)
        cells = [None if cost != cost else Cell(float(cost), decimals=decimals) for cost, decimals in needs]
        rows.append(GridRow(method, (*cells_of(entry), *cells)))
    if table.average.chance is not None:
        rows.insert(0, GridRow(CHANCE, (*cells_of(table.average.chance), *[None] * len(COSTS))))
    note = (
        f"Percent, average of the data sets{', mean ± standard deviation over seeds' * has_spread(rows)}. "
        "Seconds: median over runs; a run reuses what earlier runs of its process have cached. "
        "Runs that share a process share its peak memory."
    )
    columns = (*TITLES, *COSTS)
    return Grid("base-to-novel-methods", "Methods side by side", "Method", columns, tuple(rows), (note,))


def joint_grid(records: Sequence[Record]) -> Grid | None:
    """One row per method: its average where all classes of a data set are candidates at once, on images of
    base and of novel classes, and the HM of the two; then that by the class feature alone, and that where
    novel classes have the scores of zero-shot CLIP. None if no record has it.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    frame = runs_frame(checked(records))
    titles, rows = [*frame.title.unique()], []
    rules = [pairs_of(frame, "joint ", read) for read in ("accuracy", "decoupled", "zero_shot_for_new")]
    for method in frame.label.unique():
        entries = [average(pairs[pairs.label == method], titles) for pairs in rules]
        if entries[0]:
            hms = [entry["hm"] if entry else None for entry in entries[1:]]
            rows.append(GridRow(method, (*cells_of(entries[0]), *hms)))
    if not rows:
        return None
    notes = (JOINT_NOTE, *["± standard deviation over seeds."] * has_spread(rows))
    columns = (*TITLES, *JOINT_RULES)
    return Grid("base-to-novel-joint", "All classes at once", "Method", columns, tuple(rows), notes)


def measures_of(frame: "DataFrame") -> "DataFrame":
    """Base, novel and HM of each run in percent, by label, title and seed."""
    runs = pairs_of(frame).set_index(["label", "title", "seed"]) * 100
    return runs.assign(hm=[harmonic_mean(*pair) for pair in runs.to_numpy()])


def paired_grid(records: Sequence[Record]) -> Grid | None:
    """Each method minus the first: mean difference over the data sets that both have, with its interval
    (over fewer than three data sets without); None if there is only one method.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    means = measures_of(runs_frame(checked(records))).groupby(["label", "title"], sort=False).agg(fmean)
    first, *others = means.index.unique("label")
    rows = []
    for method in others:
        differences = (means.loc[method] - means.loc[first]).reindex(means.loc[first].index).dropna()
        if len(differences):
            cells = [Cell(fmean(d), half_width([*d]), len(d)) for _, d in differences.items()]
            rows.append(GridRow(f"{method} − {first}", tuple(cells)))
    if not rows:
        return None
    interval = f" ± half-width of the {LEVEL:.0%} t interval of the paired differences" * has_spread(rows)
    any_few = any(cell and cell.spread is None for row in rows for cell in row.cells)
    return Grid(
        "base-to-novel-paired",
        f"Difference to {first}",
        "Methods",
        TITLES,
        tuple(rows),
        (f"Points. Mean over data sets{interval}.", *[TOO_FEW] * any_few),
        spread=INTERVAL,
    )


def published_grid(records: Sequence[Record]) -> Grid | None:
    """Our numbers minus the published ones, for the methods and data sets that the paper prints and runs with
    the backbone and shots of its numbers; with at least three seeds also half the width of the t interval.
    None if there is nothing to compare.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    records = checked(records)
    runs, printed = measures_of(runs_frame(records)), published.base_to_novel()
    groups = grouped(records, lambda run: (method_label(run), data_set(run)))
    rows, compared = [], []
    for (method, name), (run, *_) in groups.items():
        # The paper's name for the method of the column, if it prints it.
        bare = method.removesuffix(f" ({UNLABELLED})")
        paper = published.paper_method(bare, settings_of(run, "method"))
        number = paper, published.paper_data_set(name)
        if number[1] == AVERAGE or number not in printed or not published.comparable(str(paper), run):
            continue
        title = str(run["dataset"].get("title") or name)
        cells: list[Cell | None] = []
        for measure, values in runs.loc[method, title].items():
            mean, theirs = fmean(values), printed[number][measure]
            difference = Cell(mean - theirs, half_width([*values]), len(values))
            cells += [Cell(mean, None, len(values)), Cell(theirs), difference]
        rows.append(GridRow(f"{title}: {method}", tuple(cells)))
        compared.append(number)
    if not rows:
        return None
    note = (
        f"Points; ± half-width of the {LEVEL:.0%} t interval over seeds, where there are at least {FEWEST}."
    )
    source = str(published.sources()["base_to_novel"])
    return Grid(
        "base-to-novel-published",
        "Difference to the published numbers",
        "Data set: method",
        tuple(f"{title}{part}" for title in TITLES for part in ("", " (published)", " difference")),
        tuple(rows),
        (note, f"Published: {source}.", *published.slip_notes("base_to_novel", compared)),
        spread=INTERVAL,
    )
