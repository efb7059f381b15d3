"""Each method against a named one: paired over data sets or seeds, and over test images (``--against``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from pandas import DataFrame

from dear.errors import DataError, UnknownNameError
from dear.evaluation.predictions import list_parts, load_predictions
from dear.report.grid import INTERVAL, Cell, Grid, GridRow, PValue
from dear.report.records import Record, data_set, grouped, method_label, record_title
from dear.stats import FEWEST, GROUPED, LEVEL, half_width, is_constant, paired_difference
from dear.text import plural

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

    Two methods are compared where they were trained on as many images of each class, by one rule for the
    tested epoch, or where one of them trains on none.

    Raises UnknownNameError if no run is of ``against``, DataError for predictions of different images.
    """
    conditions = {label: _conditions(runs) for label, runs in grouped(records, method_label).items()}
    if against not in conditions:
        raise UnknownNameError("method among these runs", against, [*conditions])
    labels = [label for label in conditions if label != against]
    unlike = [label for label in labels if not _are_alike(conditions[label], conditions[against])]
    measured = {*outcomes.label}
    labels = [label for label in labels if label not in unlike and {label, against} <= measured]
    values = outcomes.groupby(["label", "title", "seed"], sort=False).value.mean()
    by_images = {label: _image_differences(records, label, against) for label in labels}
    rows, too_few, constant = [], dict[str, list[str]](), list[str]()
    for label, images in by_images.items():
        pairs = (values.loc[label] - values.loc[against]).dropna()
        means = [*pairs.groupby("title", sort=False).mean()]
        units = means if len(means) >= FEWEST else [*pairs]
        difference = Cell(fmean(means), half_width(units), len(units)) if means else None
        p_value = t_test(units) if len(units) >= FEWEST else None
        title = f"{label} − {against}"
        rows.append(
            GridRow(title, (difference, None if p_value is None else PValue(p_value), *_image_cells(images)))
        )
        if len(units) < FEWEST:
            count = f"{plural(len(units), 'pair')} of data set and seed"
            too_few.setdefault(count if len(means) > 1 else plural(len(units), "seed"), []).append(title)
        elif p_value is None:
            constant.append(title)
    rows = _with_holm(rows)
    notes = [
        f"{measure}, points; ± half-width of the {LEVEL:.0%} t interval over data sets, of fewer than "
        f"{FEWEST} over all pairs of data set and seed, and p of its t test, where there are at least "
        f"{FEWEST}. What is over seeds says nothing of other data sets.",
        "P-values have Holm's correction over the methods.",
    ]
    for shared, pairs in too_few.items():
        notes.append(f"No interval and no p of {', '.join(pairs)}: {shared} of both, {FEWEST} are needed.")
    if constant:
        notes.append(
            f"No interval and no p of {', '.join(constant)}: the difference is the same each time, and how "
            "much it varies is not known."
        )
    if unlike:
        others = ", ".join(f"{label} ({_in_words(conditions[label])})" for label in unlike)
        notes.append(f"Not compared with {against} ({_in_words(conditions[against])}): {others}.")
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
            f"{LEVEL:.0%} interval by Tango's score; how many are right more often, or less often, over the "
            "seeds; and p of the exact test that the difference of each image, or of each group of images, "
            "may as well have the other sign (McNemar's, with single images and one seed)."
        )
        tested = {name: part for parts in by_images.values() for name, part in parts.items()}
        notes += [
            f"The {plural(part.images, 'image')} of {part.name} are from {plural(part.groups, 'group')}, and "
            "these are what counts."
            for part in tested.values()
            if part.groups < GROUPED * part.images
        ]
    for column, where in zip(P_VALUES, ("over data sets or seeds", "over images"), strict=True):
        tied = [row.label for row in rows if (cell := row.cells[column]) and cell.mean > 1 - LEVEL]
        if tied:
            notes.append(f"No difference found at the {1 - LEVEL:.0%} level {where}: {', '.join(tied)}.")
    columns = COLUMNS if any(by_images.values()) else COLUMNS[:2]
    rows = [GridRow(row.label, row.cells[: len(columns)]) for row in rows]
    title = f"Against {against}"
    return Grid(f"{name}-against", title, "Methods", columns, tuple(rows), tuple(notes), INTERVAL)


def t_test(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's test that their mean is 0; 1 for differences that are all 0, None
    for others that are all the same.
    """
    from scipy.stats import ttest_1samp

    if not np.any(differences):
        return 1.0
    return None if is_constant(differences) else float(ttest_1samp(differences, 0).pvalue)


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


Conditions = tuple[int, str]
"""The training images of each class, and the rule for the tested epoch."""


def _conditions(runs: Sequence[Record]) -> Conditions:
    """Those of the runs of a method with the most images."""
    run = max(runs, key=lambda run: run.get("shots") or 0)
    return run.get("shots") or 0, str((run.get("selection") or {}).get("rule"))


def _are_alike(first: Conditions, second: Conditions) -> bool:
    return first == second or not first[0] or not second[0]


def _in_words(conditions: Conditions) -> str:
    return f"{plural(conditions[0], 'shot')}, tested epoch: {conditions[1]}"


@dataclass(frozen=True)
class ImageDifferences:
    """Whether one method is right minus whether another is, for the test images of a part of a data set.

    Attributes:
        differences: A row a seed, a column an image.
        of_group: The number of each image's group.
    """

    name: str
    differences: np.ndarray
    of_group: np.ndarray

    @property
    def images(self) -> int:
        """How many images there are."""
        return len(self.of_group)

    @property
    def groups(self) -> int:
        """How many groups they are from."""
        return len({*self.of_group.tolist()})


def _image_differences(records: Sequence[Record], label: str, against: str) -> dict[str, ImageDifferences]:
    """By data set and part, over the seeds that both methods have predictions of; of several numbers of
    shots, of the largest that both have. Not for transfer, where tables score DeAR by another rule than its
    predictions.
    """
    of_method = grouped(sorted(records, key=lambda run: run.get("shots") or 0), method_label)
    ours, theirs = (
        {(data_set(run), run.get("seed")): run for run in of_method[name] if run.get("predictions")}
        for name in (label, against)
    )
    by_part, groups = dict[str, list[np.ndarray]](), dict[str, np.ndarray]()
    for key in [key for key in ours if key in theirs and not ours[key].get("targets")]:
        if not _are_alike(_conditions([ours[key]]), _conditions([theirs[key]])):
            continue
        for part in list_parts(ours[key]["predictions"]):
            one, other = (load_predictions(runs[key]["predictions"], part) for runs in (ours, theirs))
            if not np.array_equal(one.indices, other.indices):
                raise DataError(f"{record_title(ours[key])}: {against} was tested on other images.")
            right = [(tested.top[:, 0] == tested.labels).astype(float) for tested in (one, other)]
            name = f"{key[0]} {part}"
            by_part.setdefault(name, []).append(right[0] - right[1])
            groups[name] = one.groups
    return {name: ImageDifferences(name, np.stack(of), groups[name]) for name, of in by_part.items()}


def _image_cells(by_part: Mapping[str, ImageDifferences]) -> tuple[Cell | None, ...]:
    """The columns over images; all None without predictions."""
    if not by_part:
        return (None,) * 6
    values, weights, groups, means, better, worse = [], [], [], [], 0, 0
    for part in by_part.values():
        seeds = len(part.differences)
        values += part.differences.flatten().tolist()
        weights += [1 / (seeds * part.images)] * part.differences.size
        groups += [f"{part.name} {group}" for group in part.of_group.tolist()] * seeds
        of_images = part.differences.mean(axis=0)
        means.append(float(of_images.mean()))
        better, worse = better + int((of_images > 0).sum()), worse + int((of_images < 0).sum())
    found = paired_difference(values, groups, weights)
    numbers = Cell(better, decimals=0), Cell(worse, decimals=0), PValue(found.p)
    return (*(Cell(100 * value) for value in (fmean(means), found.low, found.high)), *numbers)
