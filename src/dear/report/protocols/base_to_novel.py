"""Base-to-novel in the report: the results, methods side by side with their costs, with all classes at once,
paired over data sets, beside published numbers, and DeAR's ablations.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dear.errors import plural
from dear.evaluation.ablations import METHOD, Ablation, ablations
from dear.evaluation.protocols.base_to_novel import harmonic_mean
from dear.report import published
from dear.report.grid import INTERVAL, Cell, Grid, GridRow, marked, spread_over
from dear.report.intervals import FEWEST, LEVEL, half_width
from dear.report.method_plots import gain_bars
from dear.report.protocols import Figure, Summary
from dear.report.records import (
    AVERAGE,
    CHANCE,
    UNLABELLED,
    Record,
    checked,
    data_set,
    data_set_title,
    data_sets_of,
    grouped,
    is_benchmark,
    method_label,
    runs_frame,
    settings_of,
)

if TYPE_CHECKING:
    from pandas import DataFrame


NAME = "base-to-novel"
HALVES = ["base", "novel"]
MEASURES = [*HALVES, "hm"]
TITLES = ("Base", "Novel", "HM")
Cells = tuple[Cell | None, ...]
"""Base, novel and HM in percent; all None if a data set lacks them."""
LACKING: Cells = (None, None, None)
SPREAD = "± standard deviation where there are several seeds"
COSTS = ("Trainable parameters", "Seconds per run", "Peak memory, MiB")
JOINT_RULES = {
    "HM, class feature alone": "decoupled",
    "HM, novel by zero-shot": "zero_shot_for_new",
}
"""Other ways of scoring with all classes at once: the column, and the metric of the records."""
JOINT_NOTE = (
    f"Percent, average of the data sets, {SPREAD}. Test images of base and of novel classes, each among the "
    "names of all classes. Where a method's authors score novel classes by the class feature alone, so are "
    "the novel ones here, beside the fused scores of the base classes. HM, class feature alone: all classes "
    "are scored by the class feature. HM, novel by zero-shot: novel classes have the scores of the backbone "
    "before it was adapted."
)
TOO_FEW = (
    f"No interval over fewer than {FEWEST} data sets: that of two is 12.7 standard errors wide to each side, "
    "and says nothing."
)
PUBLISHED_DATA = {"average of 11": "11 data sets", "ImageNet": "ImageNet"}


class Results:
    """Base-to-novel runs that stand in one table, data sets and methods in order of first appearance. A
    method has an average if it has every data set; its HM is the HM of the averages (the paper's rule), and
    it has a deviation, that of the per-seed HMs, if every data set has the same seeds.

    Raises DataError for records that cannot be combined in one table.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = checked(records)
        self.frame = runs_frame(self.records)
        self.runs, self.chance = scores_of(self.frame), chance_of(self.frame)
        self.titles, self.methods = [*self.frame.title.unique()], [*self.runs.label.unique()]

    def cells(self, method: str, titles: Sequence[str] | None = None) -> Cells:
        """The numbers of a method on average over some data sets, by default all."""
        return cells_of(self.runs[self.runs.label == method], titles or self.titles)


def scores_of(frame: "DataFrame", prefix: str = "", metric: str = "accuracy") -> "DataFrame":
    """Base, novel and HM of each run in percent, by label, title and seed."""
    parts = {f"{prefix}{half}": half for half in HALVES}
    rows = frame[frame.part.isin([*parts]) & (frame.metric == metric)]
    rows = rows.assign(part=rows.part.map(parts), value=100 * rows.value)
    pairs = rows.pivot_table("value", ["label", "title", "seed"], "part", aggfunc="first", sort=False)
    return _with_hm(pairs.reindex(columns=HALVES).dropna().reset_index())


def chance_of(frame: "DataFrame") -> "DataFrame":
    """The same of guessing among the base classes of each data set, the first ceil(n / 2), and among the
    novel ones.
    """
    known = frame[frame.classes > 1].drop_duplicates("title")
    base = (known.classes + 1) // 2
    return _with_hm(known.assign(seed=0, base=100 / base, novel=100 / (known.classes - base)))


def _with_hm(pairs: "DataFrame") -> "DataFrame":
    return pairs.assign(hm=[harmonic_mean(*pair) for pair in pairs[HALVES].to_numpy()])


def cells_of(runs: "DataFrame", titles: Sequence[str]) -> Cells:
    """The average of one method's runs over data sets."""
    runs = runs[runs.title.isin(titles)]
    by_title = runs.groupby("title", sort=False)
    if len(by_title) < len(titles):
        return LACKING
    same_seeds = by_title.seed.agg(frozenset).nunique() == 1
    means = _with_hm(runs.groupby("seed" if same_seeds else "title", sort=False)[HALVES].agg(fmean))
    base, novel, hm = (Cell.of([*means[measure]]) for measure in MEASURES)
    cells = base, novel, replace(hm, mean=harmonic_mean(base.mean, novel.mean))
    if same_seeds:
        return cells
    # Seeds differ between data sets: only the average of the means is defined.
    return tuple(Cell(cell.mean, None, int(by_title.size().min())) for cell in cells)


def main_runs(records: Sequence[Record]) -> list[Record]:
    """The runs of the main table. Rows of the ablations have their own tables, unless there are no other
    runs.
    """
    return [record for record in records if not is_varied(record)] or list(records)


def is_varied(record: Record) -> bool:
    """True if its variant is a row of an ablation."""
    variant = record.get("variant")
    return bool(variant) and any(row.label == variant for of in ablations().values() for row in of.rows)


def summarize(records: Sequence[Record], reference: str | None) -> Summary:
    """The result table, comparisons of the methods, and the ablations, but no tables without rows; gains over
    the reference by data set; the measures of the methods that have an average.
    """
    results, figures = Results(main_runs(records)), list[Figure]()
    makers = results_grid, methods_grid, joint_grid, paired_grid, published_grid
    grids = [grid for grid in (*(make(results) for make in makers), *ablation_grids(records)) if grid.rows]
    gained = gains(results, reference) if reference in results.methods else None
    if gained is not None and (bars := gain_bars(gained, str(reference))):
        caption = f"HM of each method minus that of {reference}, by data set."
        figures.append(Figure(NAME, bars, f"Gain over {reference}", caption))
    averages = {method: results.cells(method) for method in results.methods}
    names = "base classes, learned", "novel classes, never seen", "harmonic mean (HM)"
    standing = {
        name: {m: c for m, cells in averages.items() if (c := cells[at])} for at, name in enumerate(names)
    }
    return Summary(grids, figures, standing)


def gains(results: Results, reference: str | None) -> "DataFrame":
    """HM minus that of the reference in points: a row a data set and a column a method, NaN without a run."""
    hms = results.runs.groupby(["title", "label"], sort=False)[HALVES].agg(fmean)
    table = _with_hm(hms).hm.unstack().reindex(index=results.titles, columns=results.methods)
    gained = table.sub(table[reference], axis=0).drop(columns=reference)
    return gained.dropna(how="all", axis=1).dropna(how="all")


def results_grid(results: Results) -> Grid:
    """One row per method and data set, and per method on average over several data sets."""
    blocks = {title: [title] for title in results.titles}
    if len(blocks) > 1:
        blocks[AVERAGE] = results.titles
    rows: list[GridRow] = []
    for name, titles in blocks.items():
        chance = cells_of(results.chance, titles)
        rows += [GridRow(f"{name}: {CHANCE}", chance, group=name)] if chance[0] else []
        cells = {method: results.cells(method, titles) for method in results.methods}
        rows += marked([GridRow(f"{name}: {method}", c, group=name) for method, c in cells.items()])
    note = (
        f"Percent, {spread_over(results.frame.seed.nunique())}. HM is the harmonic mean of base and novel; "
        "the average has that of the averages. Best and second by data set."
    )
    return Grid(NAME, "Base-to-novel generalization", "Data set: method", TITLES, tuple(rows), (note,))


def costs_of(records: Sequence[Record]) -> "DataFrame":
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


def methods_grid(results: Results) -> Grid:
    """One row per method, if there are several: its average and its costs."""
    methods = results.methods if len(results.methods) > 1 else []
    costs, rows = costs_of(results.records), []
    if methods and (chance := cells_of(results.chance, results.titles))[0]:
        rows.append(GridRow(CHANCE, (*chance, *[None] * len(COSTS))))
    for row in marked([GridRow(method, results.cells(method)) for method in methods]):
        needs = zip(costs.loc[row.label], (0, 1, 0), strict=True)
        cells = [None if cost != cost else Cell(float(cost), decimals=decimals) for cost, decimals in needs]
        rows.append(replace(row, cells=(*row.cells, *cells)))
    note = (
        f"Percent, average of the data sets, {SPREAD}. "
        "Seconds: median over runs; a run reuses what earlier runs of its process have cached. "
        "Runs that share a process share its peak memory."
    )
    return Grid(f"{NAME}-methods", "Methods side by side", "Method", (*TITLES, *COSTS), tuple(rows), (note,))


def joint_grid(results: Results) -> Grid:
    """One row per method: its average where all classes of a data set are candidates at once, on images of
    base and of novel classes, and the HM of the two; then the HM by the other rules.
    """
    rules = [scores_of(results.frame, "joint ", metric) for metric in ("accuracy", *JOINT_RULES.values())]
    rows = []
    for method in results.frame.label.unique():
        fused, *others = (cells_of(runs[runs.label == method], results.titles) for runs in rules)
        if fused[0]:
            rows.append(GridRow(method, (*fused, *(cells[2] for cells in others))))
    columns = (*TITLES, *JOINT_RULES)
    return Grid(f"{NAME}-joint", "All classes at once", "Method", columns, tuple(rows), (JOINT_NOTE,))


def paired_grid(results: Results) -> Grid:
    """Each method minus the first: mean difference over the data sets that both have, with its interval
    (over fewer than three data sets without).
    """
    means = results.runs.groupby(["label", "title"], sort=False)[MEASURES].agg(fmean)
    first, *others = results.methods
    rows = []
    for method in others:
        differences = (means.loc[method] - means.loc[first]).dropna()
        if len(differences):
            cells = [Cell(fmean(d), half_width([*d]), len(d)) for _, d in differences.items()]
            rows.append(GridRow(f"{method} − {first}", tuple(cells)))
    any_few = any(cell and cell.spread is None for row in rows for cell in row.cells)
    note = (
        f"Points, mean over data sets ± half-width of the {LEVEL:.0%} t interval of the paired differences."
    )
    notes = (note, *[TOO_FEW] * any_few)
    return Grid(f"{NAME}-paired", f"Difference to {first}", "Methods", TITLES, tuple(rows), notes, INTERVAL)


def published_grid(results: Results) -> Grid:
    """Our numbers minus the published ones, for the methods and data sets that the paper prints and runs with
    the backbone and shots of its numbers; with at least three seeds also half the width of the t interval.
    """
    runs, printed = results.runs.set_index(["label", "title"]).sort_index(), published.base_to_novel()
    rows, compared = [], []
    groups = grouped(results.records, lambda record: (method_label(record), data_set(record)))
    for (method, name), (run, *_) in groups.items():
        # The paper's name for the method of the column, if it prints it.
        bare = method.removesuffix(f" ({UNLABELLED})")
        paper = published.paper_method(bare, settings_of(run, "method"))
        number = paper, published.paper_data_set(name)
        if number[1] == AVERAGE or number not in printed or not published.comparable(str(paper), run):
            continue
        title, cells = data_set_title(run), list[Cell]()
        for measure, values in runs.loc[[(method, title)], MEASURES].items():
            mean, theirs = fmean(values), printed[number][str(measure)]
            difference = Cell(mean - theirs, half_width([*values]), len(values))
            cells += [Cell(mean, None, len(values)), Cell(theirs), difference]
        rows.append(GridRow(f"{title}: {method}", tuple(cells)))
        compared.append(number)
    notes = (
        f"Points; ± half-width of the {LEVEL:.0%} t interval over seeds, where there are at least {FEWEST}.",
        f"Published: {published.sources()['base_to_novel']}.",
        *published.slip_notes("base_to_novel", compared),
    )
    columns = tuple(f"{title}{part}" for title in TITLES for part in ("", " (published)", " difference"))
    title = "Difference to the published numbers"
    return Grid(f"{NAME}-published", title, "Data set: method", columns, tuple(rows), notes, INTERVAL)


def ablation_grids(records: Sequence[Record]) -> list[Grid]:
    """A table for each ablation of DeAR that has at least two rows. Both rows of the inference ablation are
    in every run of DeAR: it has a table for benchmarks, beside which published numbers stand, and where
    another ablation was run.
    """
    runs = [record for record in records if record.get("method") == METHOD]
    if not runs:
        return []
    with_published = all(is_benchmark(dataset) for run in runs for dataset in data_sets_of(run))
    asked = [
        ablation
        for ablation in ablations().values()
        if ablation.name != "inference" or with_published or any(map(is_varied, runs))
    ]
    frame = runs_frame(checked(runs))
    return [ablation_grid(ablation, frame, with_published=with_published) for ablation in asked]


def ablation_grid(ablation: Ablation, frame: "DataFrame", *, with_published: bool) -> Grid:
    """The table of an ablation, over the data sets that all its rows have; without rows if nothing was
    varied.
    """
    empty = Grid(f"ablation-{ablation.name}", f"Ablation: {ablation.title}", "Variant", TITLES, ())
    variants = frame.variant.astype(object).where(frame.variant.notna(), "")
    frames = {row.shown: frame[variants == (row.label or "")] for row in ablation.rows}
    has_runs = [row for row in ablation.rows if len(frames[row.shown])]
    if len(has_runs) < 2 or not (ablation.name == "inference" or any(row.label for row in has_runs)):
        return empty
    runs = {row.shown: scores_of(frames[row.shown], metric=row.read) for row in has_runs}
    first = frames[has_runs[0].shown]
    titles = [title for title in first.title.unique() if all((r.title == title).any() for r in runs.values())]
    if not titles:
        return empty
    cells = {name: cells_of(runs[name], titles) if name in runs else LACKING for name in frames}
    rows = [*marked([GridRow(name, of_row) for name, of_row in cells.items()])]
    if (chance := cells_of(chance_of(first), titles))[0]:
        rows.insert(0, GridRow(CHANCE, chance))
    # By data and measure, the published number of each row; not all are printed.
    printed = published.ablation(ablation.name) if with_published else {}
    columns = {
        f"{title}, published ({PUBLISHED_DATA[data]})": by_measure
        for data, by_row in printed.items()
        for measure, title in zip(MEASURES, TITLES, strict=True)
        if (by_measure := {name: Cell(row[measure]) for name, row in by_row.items() if measure in row})
    }
    rows = [replace(r, cells=(*r.cells, *(of.get(r.label) for of in columns.values()))) for r in rows]
    notes = [f"Ours: percent, average of {plural(len(titles), 'data set')} ({', '.join(titles)}), {SPREAD}."]
    if printed:
        notes.append(
            "Published: DeAR (CVPR 2026); data and weights may be others than ours: compare the order alone."
        )
        paper = str(published.paper_method(METHOD))
        notes += published.slip_notes("ablations", [(paper, data) for data in printed])
    return replace(empty, columns=(*TITLES, *columns), rows=tuple(rows), notes=tuple(notes))
