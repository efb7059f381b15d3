"""Base and novel accuracy of runs: their averages over data sets, and the ablations of DeAR, which consist of
them, beside the published numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pandas import DataFrame

from dear.evaluation.ablations import METHOD, Ablation, ablations
from dear.evaluation.protocols.base_to_novel import harmonic_mean
from dear.report import published
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.records import CHANCE, Record, checked, data_sets_of, is_benchmark, runs_frame
from dear.text import plural

HALVES = ["base", "novel"]
MEASURES = [*HALVES, "hm"]
TITLES = ("Base", "Novel", "HM")
Cells = tuple[Cell | None, ...]
"""Base, novel and HM in percent; all None if a data set lacks them."""
LACKING: Cells = (None, None, None)
SPREAD = "± standard deviation where there are several seeds"
PUBLISHED_DATA = {"average of 11": "11 data sets", "ImageNet": "ImageNet"}


def scores_of(frame: DataFrame, prefix: str = "", metric: str = "accuracy") -> DataFrame:
    """Base, novel and HM of each run in percent, by label, title and seed; of "novel-decoupled" the base half
    has the accuracy, the novel one that of the class feature alone.
    """
    parts = {f"{prefix}{half}": half for half in HALVES}
    metrics = ("accuracy", "decoupled") if metric == "novel-decoupled" else (metric, metric)
    wanted = frame.part.map(dict(zip(parts, metrics, strict=True)))
    rows = frame[frame.part.isin([*parts]) & (frame.metric == wanted)]
    rows = rows.assign(part=rows.part.map(parts), value=100 * rows.value)
    pairs = rows.pivot_table("value", ["label", "title", "seed"], "part", aggfunc="first", sort=False)
    return with_hm(pairs.reindex(columns=HALVES).dropna().reset_index())


def chance_of(frame: DataFrame) -> DataFrame:
    """The same of guessing among the base classes of each data set, the first ceil(n / 2), and among the
    novel ones.
    """
    known = frame[frame.classes > 1].drop_duplicates("title")
    base = (known.classes + 1) // 2
    return with_hm(known.assign(seed=0, base=100 / base, novel=100 / (known.classes - base)))


def with_hm(pairs: DataFrame) -> DataFrame:
    """The base and novel accuracies of a frame with their harmonic means."""
    return pairs.assign(hm=[harmonic_mean(*pair) for pair in pairs[HALVES].to_numpy()])


def cells_of(runs: DataFrame, titles: Sequence[str]) -> Cells:
    """The average of one method's runs over data sets."""
    runs = runs[runs.title.isin(titles)]
    by_title = runs.groupby("title", sort=False)
    if len(by_title) < len(titles):
        return LACKING
    means, same_seeds = means_of(runs)
    base, novel, hm = (Cell.of([*means[measure]]) for measure in MEASURES)
    cells = base, novel, replace(hm, mean=harmonic_mean(base.mean, novel.mean))
    if same_seeds:
        return cells
    # Seeds differ between data sets: only the average of the means is defined.
    return tuple(Cell(cell.mean, None, int(by_title.size().min())) for cell in cells)


def means_of(runs: DataFrame) -> tuple[DataFrame, bool]:
    """The averages over data sets of one method's runs, a row a seed, and True; if the seeds differ between
    data sets, the means over seeds, a row a data set, and False.
    """
    same_seeds = bool(runs.groupby("title", sort=False).seed.agg(frozenset).nunique() == 1)
    return with_hm(runs.groupby("seed" if same_seeds else "title", sort=False)[HALVES].agg(fmean)), same_seeds


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
            by_measure = {n: Cell(*row[measure], seeds=0) for n, row in by_row.items() if measure in row}
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
