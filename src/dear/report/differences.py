"""Each method against a named one: paired over data sets or seeds, and over test images (``--against``)."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from pandas import DataFrame

from dear.errors import DataError, UnknownNameError
from dear.evaluation.predictions import list_parts, load_predictions
from dear.report.grid import INTERVAL, Cell, Grid, GridRow, PValue
from dear.report.records import Record, data_set, grouped, method_label, record_title
from dear.stats import FEWEST, LEVEL, describe_groups, half_width, mcnemar_test
from dear.text import plural

RESAMPLES = 10_000
COLUMNS = (
    "Difference", "p", "Difference over images", "from", "to", "Images better", "Images worse",
    "p over images",
)  # fmt: skip
P_VALUES = 1, 7  # columns


def difference_grid(
    name: str, measure: str, outcomes: DataFrame, records: Sequence[Record], against: str
) -> Grid:
    """Every other method minus ``against``, in points. ``outcomes`` has a row a run: its label, the title of
    what it was tested on, the seed, and the value of the measure in percent. P-values have Holm's correction.

    Raises UnknownNameError if no run is of ``against``, DataError for predictions of different images.
    """
    labels = [*dict.fromkeys(outcomes.label)]
    if against not in labels:
        raise UnknownNameError("method among these runs", against, labels)
    values = outcomes.groupby(["label", "title", "seed"], sort=False).value.mean()
    groups = dict[str, int]()
    by_images = {
        label: _image_differences(records, label, against, groups) for label in labels if label != against
    }
    rows, too_few = [], dict[str, list[str]]()
    for label, images in by_images.items():
        pairs = (values.loc[label] - values.loc[against]).dropna()
        means = [*pairs.groupby("title", sort=False).mean()]
        units = means if len(means) > 1 else [*pairs]  # data sets, or the seeds of a single one
        difference = Cell(fmean(means), half_width(units), len(units)) if means else None
        probability = PValue(t_test(units)) if len(units) >= FEWEST else None
        rows.append(GridRow(f"{label} − {against}", (difference, probability, *_image_cells(images))))
        if probability is None:
            unit = "data set" if len(means) > 1 else "seed"
            too_few.setdefault(plural(len(units), unit), []).append(rows[-1].label)
    rows = _with_holm(rows)
    notes = [
        f"{measure}, points; ± half-width of the {LEVEL:.0%} t interval over data sets, of a single one over "
        f"seeds, and p of its t test, where there are at least {FEWEST}.",
        "P-values have Holm's correction over the methods.",
    ]
    for shared, pairs in too_few.items():
        notes.append(f"No interval and no p of {', '.join(pairs)}: {shared} of both, {FEWEST} are needed.")
    if any(run.get("targets") for run in records):
        notes.append(
            "No differences over images: the tables of a transfer score dear by another rule than its "
            "predictions."
        )
    elif not any(by_images.values()):
        notes.append("No differences over images: no two records of both have predictions.")
    else:
        notes.append(
            "Over images: the share of test images that are right, mean over data sets and seeds, with the "
            f"{LEVEL:.0%} interval of {RESAMPLES:,} bootstrap samples of the images of each data set; how "
            "many are right more often, or less often, over the seeds, and p of the exact test of these two "
            "(McNemar's)."
        )
        sizes = {part: len(images) for parts in by_images.values() for part, images in parts.items()}
        for part, count in groups.items():
            notes += [f"{part}: {line}" for line in describe_groups(count, sizes[part])]
    for column, where in zip(P_VALUES, ("over data sets or seeds", "over images"), strict=True):
        tied = [row.label for row in rows if (p := row.cells[column]) and p.mean > 1 - LEVEL]
        if tied:
            notes.append(f"No difference found at the {1 - LEVEL:.0%} level {where}: {', '.join(tied)}.")
    columns = COLUMNS if any(by_images.values()) else COLUMNS[:2]
    rows = [GridRow(row.label, row.cells[: len(columns)]) for row in rows]
    title = f"Against {against}"
    return Grid(f"{name}-against", title, "Methods", columns, tuple(rows), tuple(notes), INTERVAL)


def t_test(differences: Sequence[float]) -> float:
    """The two-sided p-value of Student's test that their mean is 0; of differences that are all 0 it is 1."""
    from scipy.stats import ttest_1samp

    return 1.0 if not np.any(differences) else float(ttest_1samp(differences, 0).pvalue)


def holm(probabilities: Sequence[float]) -> list[float]:
    """P-values with Holm's correction. Source: Holm, Scandinavian Journal of Statistics 6 (1979)."""
    corrected, largest, count = [0.0] * len(probabilities), 0.0, len(probabilities)
    for rank, index in enumerate(sorted(range(count), key=lambda index: probabilities[index])):
        largest = max(largest, min(1.0, (count - rank) * probabilities[index]))
        corrected[index] = largest
    return corrected


def _with_holm(rows: Sequence[GridRow]) -> list[GridRow]:
    """The rows with corrected p-values in the columns of these."""
    columns = [[row.cells[at] for row in rows] for at in range(len(COLUMNS))]
    for at in P_VALUES:
        corrected = iter(holm([cell.mean for cell in columns[at] if cell]))
        columns[at] = [cell and PValue(next(corrected)) for cell in columns[at]]
    return [GridRow(row.label, cells) for row, cells in zip(rows, zip(*columns, strict=True), strict=True)]


def _image_differences(
    records: Sequence[Record], label: str, against: str, groups: dict[str, int]
) -> dict[str, np.ndarray]:
    """By data set and part, for each test image: how often the first method is right minus how often the
    other is, mean over the seeds that both have predictions of; of several numbers of shots, of the largest.
    Not for transfer, where tables score DeAR by another rule than its predictions. ``groups`` gets how many
    groups the images are from.
    """
    of_method = grouped(sorted(records, key=lambda run: run.get("shots") or 0), method_label)
    ours, theirs = (
        {(data_set(run), run.get("seed")): run for run in of_method[name] if run.get("predictions")}
        for name in (label, against)
    )
    by_part = dict[str, list[np.ndarray]]()
    for key in [key for key in ours if key in theirs and not ours[key].get("targets")]:
        for part in list_parts(ours[key]["predictions"]):
            one, other = (load_predictions(runs[key]["predictions"], part) for runs in (ours, theirs))
            if not np.array_equal(one.indices, other.indices):
                raise DataError(f"{record_title(ours[key])}: {against} was tested on other images.")
            right = [(tested.top[:, 0] == tested.labels).astype(float) for tested in (one, other)]
            name = f"{key[0]} {part}"
            by_part.setdefault(name, []).append(right[0] - right[1])
            groups[name] = len({*one.groups.tolist()})
    return {name: np.mean(differences, axis=0) for name, differences in by_part.items()}


def _image_cells(by_part: Mapping[str, np.ndarray]) -> tuple[Cell | None, ...]:
    """The columns over images; all None without predictions."""
    if not by_part:
        return (None,) * 6
    draw, samples, means = np.random.default_rng(0), list[np.ndarray](), list[float]()
    for differences in by_part.values():
        values, counts = np.unique(differences, return_counts=True)
        resampled: Any = draw.multinomial(len(differences), counts / len(differences), RESAMPLES)
        samples.append(100 * resampled @ values / len(differences))
        means.append(100 * float(differences.mean()))
    low, high = np.quantile(np.mean(samples, axis=0), [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    together = np.concatenate([*by_part.values()])
    better, worse = int((together > 0).sum()), int((together < 0).sum())
    numbers = Cell(better, decimals=0), Cell(worse, decimals=0), PValue(mcnemar_test(better, worse))
    return (Cell(fmean(means)), Cell(float(low)), Cell(float(high)), *numbers)
