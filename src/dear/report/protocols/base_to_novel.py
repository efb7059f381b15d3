"""Base-to-novel in the report: the results, methods side by side with their costs, with all classes at once,
paired over data sets, beside published numbers, and DeAR's ablations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any, Literal

from pandas import DataFrame

from dear.evaluation.records import part_of
from dear.report import published
from dear.report.grid import INTERVAL, Cell, Grid, GridRow, marked, spread_over
from dear.report.plots import gain_bars
from dear.report.protocols.halves import (
    HALVES,
    MEASURES,
    SPREAD,
    TITLES,
    Cells,
    ablation_grids,
    cells_of,
    chance_of,
    scores_of,
    with_hm,
)
from dear.report.records import (
    AVERAGE,
    CHANCE,
    Record,
    checked,
    data_set,
    data_set_title,
    grouped,
    method_label,
    runs_frame,
    settings_of,
)
from dear.report.summary import Figure, ProtocolSummary
from dear.stats import FEWEST, LEVEL, half_width, t_half_width

NAME = "base-to-novel"
COSTS = ("Trainable parameters", "Peak memory, MiB")
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
PROBABILITIES = {
    "Log-loss, base": ("base", "log_loss", 1),
    "Log-loss, novel": ("novel", "log_loss", 1),
    "Calibration error, base": ("base", "calibration_error", 100),
    "Calibration error, novel": ("novel", "calibration_error", 100),
    "AUROC": ("joint novel", "auroc", 100),
}
"""Measures of probabilities: the column, and the part, the metric and the unit of the records' numbers."""
PROBABILITIES_NOTE = (
    f"Average of the data sets, {SPREAD}. Log-loss: mean negative log-likelihood of the labels, in nats; "
    "calibration error: expected, over 15 bins, in percent; both of the scores as they are, without a "
    "temperature that was fitted. AUROC, in percent: how well images of novel classes are told from images "
    "of base classes by the highest probability among the base classes alone; 50 by chance."
)
TOO_FEW = (
    f"No interval over fewer than {FEWEST} data sets: that of two is 12.7 standard errors wide to each side, "
    "and says nothing."
)
SUPPLEMENT = "supplement, Table 3"
PRINTED_IN: Mapping[Literal["base_to_novel", "seeds"], str] = {
    "base_to_novel": "",
    "seeds": f" ({SUPPLEMENT})",
}
"""Tables that print base-to-novel numbers, and what is added to the labels of rows beside them."""
PRINTED_WEIGHTS = (
    "By our inference the published rows of the other methods are of OpenAI's weights, as their code is; "
    "which weights DeAR's row is of, is open."
)


class Results:
    """Base-to-novel runs that stand in one table, data sets and methods in order of first appearance. A
    method has an average if it has every data set; its HM is the HM of the averages (as in the paper's
    Table 2; the paper states no rule), and it has a deviation, that of the per-seed HMs, if every data set
    has the same seeds.

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


def summarize(records: Sequence[Record], reference: str | None) -> ProtocolSummary:
    """The result table, comparisons of the methods, and the ablations, but no tables without rows; gains over
    the reference by data set; the measures of the methods that have an average. Runs of which an ablation's
    table shows everything are not in the others, unless there are no other runs.
    """
    ablations, ablated = ablation_grids(records)
    runs = [record for record in records if record not in ablated] or records
    results, figures = Results(runs), list[Figure]()
    makers = (
        results_grid, methods_grid, joint_grid, probabilities_grid, paired_grid, published_grid, peers_grid,
    )  # fmt: skip
    grids = [grid for grid in (*(make(results) for make in makers), *ablations) if grid.rows]
    gained = gains(results, reference) if reference in results.methods else None
    if gained is not None and (bars := gain_bars(gained, str(reference))):
        caption = f"HM of each method minus that of {reference}, by data set."
        figures.append(Figure(NAME, bars, f"Gain over {reference}", caption))
    averages = {method: results.cells(method) for method in results.methods}
    names = "base classes, learned", "novel classes, never seen", "harmonic mean (HM)"
    standing = {
        name: {m: c for m, cells in averages.items() if (c := cells[at])} for at, name in enumerate(names)
    }
    outcomes = results.runs.rename(columns={"hm": "value"})
    return ProtocolSummary(runs, grids, figures, standing, outcomes, "HM")


def gains(results: Results, reference: str | None) -> DataFrame:
    """HM minus that of the reference in points: a row a data set and a column a method, NaN without a run."""
    hms = results.runs.groupby(["title", "label"], sort=False)[HALVES].agg(fmean)
    table = with_hm(hms).hm.unstack().reindex(index=results.titles, columns=results.methods)
    gained = table.sub(table[reference], axis=0).drop(columns=reference)
    # Bars of rounding errors alone would have a scale of 1e-17.
    return gained.dropna(how="all", axis=1).dropna(how="all").round(6)


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


def costs_of(records: Sequence[Record]) -> DataFrame:
    """What each method needs: its number of trained ``parameters``, on the data set with the most; the
    highest peak ``memory`` (process memory without a GPU); NaN where no record says. Not the seconds: in one
    process a run reuses what earlier runs computed, so that they tell the order of the runs.
    """

    def facts(record: Record) -> dict[str, Any]:
        peak = record.get("peak_memory") or {}
        return {
            "label": method_label(record),
            "parameters": record.get("trainable_parameters"),
            "memory": peak.get("gpu") or peak.get("resident"),
        }

    rows = DataFrame([facts(record) for record in records]).astype({"label": object})
    numbers = rows.set_index("label").astype(float).groupby("label", sort=False)
    return numbers.agg({"parameters": "max", "memory": "max"})


def methods_grid(results: Results) -> Grid:
    """One row per method, if there are several: its average and its costs."""
    methods = results.methods if len(results.methods) > 1 else []
    costs, rows = costs_of(results.records), []
    if methods and (chance := cells_of(results.chance, results.titles))[0]:
        rows.append(GridRow(CHANCE, (*chance, *[None] * len(COSTS))))
    for row in marked([GridRow(method, results.cells(method)) for method in methods]):
        needs = costs.loc[row.label]
        cells = [None if cost != cost else Cell(float(cost), decimals=0) for cost in needs]
        rows.append(replace(row, cells=(*row.cells, *cells)))
    note = f"Percent, average of the data sets, {SPREAD}. Runs that share a process share its peak memory."
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


def probabilities_grid(results: Results) -> Grid:
    """One row per method: how good its probabilities are, on average over the data sets."""
    rows = []
    for method, frame in results.frame.groupby("label", sort=False):
        cells = list[Cell | None]()
        for part, metric, unit in PROBABILITIES.values():
            values = frame[(frame.part == part) & (frame.metric == metric)]
            by_seed = unit * values.pivot_table("value", "seed", "title")
            has_all = len(by_seed.columns) == len(results.titles)
            if has_all and by_seed.isna().any(axis=None):  # as in `cells_of`
                cells.append(Cell(by_seed.mean().mean(), None, int(by_seed.count().min())))
            else:
                cells.append(Cell.of([*by_seed.mean(axis=1)]) if has_all else None)
        if any(cells):
            rows.append(GridRow(str(method), tuple(cells)))
    title, columns = "Probabilities", tuple(PROBABILITIES)
    return Grid(f"{NAME}-probabilities", title, "Method", columns, tuple(rows), (PROBABILITIES_NOTE,))


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
    any_few = any(cell and cell.seeds < FEWEST for row in rows for cell in row.cells)
    note = (
        f"Points, mean over data sets ± half-width of the {LEVEL:.0%} t interval of the paired differences."
    )
    notes = (note, *[TOO_FEW] * any_few)
    return Grid(f"{NAME}-paired", f"Difference to {first}", "Methods", TITLES, tuple(rows), notes, INTERVAL)


def published_grid(results: Results) -> Grid:
    """Our mean, the published number and the difference, by data set and on average over the paper's eleven,
    of methods with the backbone and the shots of the published ones.
    """
    rows, compared, printed_spreads = list[GridRow](), list[tuple[str, str]](), list[str]()
    titles_of = dict[tuple[str, str], dict[str, str]]()  # (label, the paper's name) -> data sets' titles
    groups = grouped(results.records, lambda record: (method_label(record), data_set(record)))

    def compare(label: str, titles: Sequence[str], printed_key: tuple[str, str]) -> None:
        ours = results.cells(label, titles)
        title = titles[0] if len(titles) == 1 else AVERAGE
        for table, suffix in PRINTED_IN.items():
            if theirs := published.base_to_novel(table).get(printed_key):
                printed = (theirs[measure][0] for measure in MEASURES)
                cells = tuple(chain(*map(_difference, filter(None, ours), printed)))
                rows.append(GridRow(f"{title}: {label}{suffix}", cells))
                compared.append(printed_key)
                if any(spread for _, spread in theirs.values()):
                    spreads = ", ".join(f"± {spread:.2f}" for _, spread in theirs.values())
                    printed_spreads.append(f"{', '.join(printed_key)} {spreads}")

    for (label, name), (run, *_) in groups.items():
        of_run = part_of(run, "method"), settings_of(run, "method"), run.get("variant")
        paper = str(published.paper_method(*of_run))
        printed_key = paper, published.paper_data_set(name)
        if printed_key[1] != AVERAGE and published.comparable(paper, run):
            titles_of.setdefault((label, paper), {})[printed_key[1]] = data_set_title(run)
            compare(label, [data_set_title(run)], printed_key)
    eleven = {dataset for _, dataset in published.base_to_novel()} - {AVERAGE}
    for (label, paper), titles in titles_of.items():
        if eleven <= {*titles}:
            compare(label, [titles[name] for name in eleven], (paper, AVERAGE))
    notes = (
        f"Points; ± half-width of the {LEVEL:.0%} t interval over seeds, where there are at least {FEWEST}.",
        f"Published: {published.sources()['base_to_novel']}.",
        *[f"{SUPPLEMENT}: {published.sources()['seeds']}."] * any(SUPPLEMENT in row.label for row in rows),
        *[f"Published deviations: {'; '.join(printed_spreads)}."] * bool(printed_spreads),
        *published.slip_notes("base_to_novel", compared),
        *(published.slip_notes("seeds", compared) if any(SUPPLEMENT in row.label for row in rows) else ()),
    )
    columns = tuple(f"{title}{part}" for title in TITLES for part in ("", " (published)", " difference"))
    title = "Difference to the published numbers"
    return Grid(f"{NAME}-published", title, "Data set: method", columns, tuple(rows), notes, INTERVAL)


def peers_grid(results: Results) -> Grid:
    """The paper's Table 2 for the data sets of these runs: all of its rows, those of methods that did not run
    too, below ours with ViT-B/16, the weights that DeAR may have been published with, and 16 shots; with the
    average if all eleven data sets ran.
    """
    runs = [record for record in results.records if published.comparable("DeAR", record)]
    labels = list(dict.fromkeys(map(method_label, runs)))
    printed = published.base_to_novel()
    methods = dict.fromkeys(method for method, _ in printed)
    eleven = list(dict.fromkeys(dataset for _, dataset in printed if dataset != AVERAGE))
    titles = {published.paper_data_set(data_set(run)): data_set_title(run) for run in runs}
    blocks = {name: [titles[name]] for name in eleven if name in titles}
    if len(blocks) == len(eleven):
        blocks[AVERAGE] = [titles[name] for name in eleven]
    rows, printed_keys = list[GridRow](), list[tuple[str, str]]()
    for name, of_block in blocks.items():
        group = AVERAGE if name == AVERAGE else of_block[0]
        ours = {label: results.cells(label, of_block) for label in labels}
        rows += marked([GridRow(f"{group}: {label}", of, group=group) for label, of in ours.items() if of[0]])
        for method in methods:
            if theirs := printed.get((method, name)):
                cells = tuple(Cell(theirs[m][0], seeds=0) if m in theirs else None for m in MEASURES)
                rows.append(GridRow(f"{group}: {method}", cells, published=True, group=group))
                printed_keys.append((method, name))
    notes = (
        f"Percent, {SPREAD}. Best and second are of these runs. {PRINTED_WEIGHTS}",
        f"Published: {published.sources()['base_to_novel']}.",
        *published.slip_notes("base_to_novel", printed_keys),
    )
    title = "Published, beside these runs"
    return Grid(f"{NAME}-peers", title, "Data set: method", TITLES, tuple(rows), notes)


def _difference(ours: Cell, theirs: float) -> tuple[Cell, Cell, Cell]:
    """Our mean, the published number, and the difference with its interval."""
    half = None if ours.spread is None else t_half_width(ours.spread, ours.seeds)
    return replace(ours, spread=None), Cell(theirs, seeds=0), Cell(ours.mean - theirs, half, ours.seeds)
