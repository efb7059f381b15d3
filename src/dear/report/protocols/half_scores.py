"""Base, novel and HM of runs in percent, and their averages over data sets."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pandas import DataFrame

from dear.evaluation.protocols.base_to_novel import harmonic_mean
from dear.report.grid import Cell

HALVES = ["base", "novel"]
MEASURES = [*HALVES, "hm"]
TITLES = ("Base", "Novel", "HM")
Cells = tuple[Cell | None, ...]
"""Base, novel and HM in percent; all None if a data set lacks them."""
LACKING: Cells = (None, None, None)
SPREAD = "± standard deviation where there are several seeds"


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
