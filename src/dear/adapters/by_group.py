"""Accuracy by group, such as by camera or by month: a table with intervals, the worst group first."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from PIL import ExifTags, Image

from dear.data.dataset import Dataset, Images
from dear.data.fewshot import leave_subsets
from dear.data.images.photos import group_names
from dear.data.loading import is_several, read_listing
from dear.data.settings import DataSettings
from dear.data.sources.objects import read_object
from dear.errors import DataError, SettingsError
from dear.evaluation.predictions import Predictions
from dear.reading.files import opened
from dear.reading.remote import within
from dear.stats import LEVEL, group_share_interval, paired_difference
from dear.text import printable

MONTH, CAMERA = "month", "camera"
"""What is read from the EXIF data of photographs, unless a column of the table is called so."""
UNKNOWN = "(unknown)"
"""The group of images of which it is not known."""
CONFUSED = "most confused"
"""The column of a group's confusions."""
WORST = 3
"""Groups whose confusions are listed, and confusions of each."""


@dataclass(frozen=True)
class GroupAccuracy:
    """How many images of a group are right.

    Attributes:
        accuracy, low, high: The share, and its interval at 95%, by `--dataset.group`.
        confusions: The most frequent: class, predicted class, number of images.
        decided, decided_right: How many images an operating point decides, and how many of these are right;
            None without one.
    """

    name: str
    images: int
    right: int
    accuracy: float
    low: float
    high: float
    confusions: tuple[tuple[str, str, int], ...]
    decided: int | None = None
    decided_right: int | None = None

    @property
    def cells(self) -> dict[str, str | int]:
        """What a table shows of it, by column: numbers and percentages, then what is most confused."""
        pairs = ", ".join(f"{name} as {other} ({count})" for name, other, count in self.confusions)
        cells: dict[str, str | int] = {"group": printable(self.name), "images": self.images}
        cells |= {"accuracy": f"{self.accuracy:.1%}", "interval": f"{self.low:.1%} to {self.high:.1%}"}
        if self.decided is not None:
            cells |= {"decided": self.decided, "right of these": self.decided_right or 0}
        return cells | {CONFUSED: printable(pairs)}


@dataclass(frozen=True)
class GroupDifference:
    """How many images of a group are right with each of two classifiers.

    Attributes:
        difference, low, high: The accuracy of the second minus that of the first, and its paired interval at
            95%.
    """

    name: str
    images: int
    first_right: int
    second_right: int
    difference: float
    low: float
    high: float


def read_groups(data: Any, images: Images, by: str, settings: DataSettings) -> list[str]:
    """The group of each image: by a column of the table that ``data`` is, by "month" or "camera" from EXIF
    data, or by a regular expression whose match in a file's path is the group. Raises SettingsError for
    images that are no files, and for what is neither.
    """
    base, items = leave_subsets(images)
    paths: Sequence[str] = getattr(base, "paths", ())
    columns = _read_columns(data, by, settings)
    if not paths:
        if columns:
            return [columns.get(str(item), UNKNOWN) or UNKNOWN for item in items.tolist()]
        raise SettingsError(f"by {by!r}: these images are no files, so they have no groups by that.")
    chosen = [paths[item] for item in items.tolist()]
    if columns:
        return [columns.get(path, "") or UNKNOWN for path in chosen]
    folder: Path = getattr(base, "folder", Path())
    if by in (MONTH, CAMERA):
        groups = [_read_exif(within(folder, path), by) for path in chosen]
        what = f"no image has its {by} in its EXIF data, and it is no column of the table"
    else:
        try:
            pattern = re.compile(by)
        except re.error as error:
            raise SettingsError(f"by {by!r} is neither a column nor a pattern: {error}.") from error
        matches = [pattern.search(path) for path in chosen]
        groups = ["-".join(filter(None, match.groups())) or match[0] if match else "" for match in matches]
        what = f"it is no column of the table, and matches no path, such as {chosen[0]}"
    if not any(groups):
        hint = "Give a column, month, camera, or a pattern such as 2026-[0-9]+."
        raise SettingsError(f"by {by!r}: {what}. {hint}")
    return [group or UNKNOWN for group in groups]


def _read_columns(data: Any, by: str, settings: DataSettings) -> dict[str, str]:
    """The values of a column of the data's table by path; empty if it has none of that name."""
    # A name that is no regular expression is a column, but the settings take it for both.
    try:
        grouped = replace(settings, group=by)
    except SettingsError as error:
        raise SettingsError(f"by {by!r} is neither a column nor a pattern: {error}") from error
    if isinstance(data, Dataset):  # which has no table any more
        return {}
    try:
        if isinstance(data, str | Path) or is_several(data):
            sources = [*map(str, data)] if is_several(data) else [str(data)]
            return {path: group for path, group in read_listing(sources, grouped).groups.items() if group}
        return {path: group for path, group in read_object(data, grouped)[0].groups.items() if group}
    except DataError:  # a task
        return {}


def _read_exif(file: Path, by: str) -> str:
    """The month in which a photograph was taken, as 2026-11, or its camera; "" if that is unknown."""
    try:
        with opened(file) as content, Image.open(content) as image:
            exif = image.getexif()
            if by == CAMERA:
                return str(exif.get(ExifTags.Base.Model, "")).strip("\0 ")
            taken = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
            date = re.match(r"(\d{4})[:-](\d\d)", str(taken or exif.get(ExifTags.Base.DateTime, "")))
            return f"{date[1]}-{date[2]}" if date else ""
    except Exception:  # damaged EXIF: Pillow's exceptions differ between formats
        return ""


def accuracy_by_group(
    predictions: Predictions,
    images: Images,
    groups: Sequence[str],
    choices: Int[np.ndarray, "item"] | None = None,
) -> tuple[GroupAccuracy, ...]:
    """The accuracy of each group, the most clearly worst first: that whose interval ends lowest, so that a
    group of a few images is not the worst by chance alone. ``choices`` are what an operating point decides
    (`OperatingPoint.decide`).
    """
    correct, names, of_group = predictions.correct.cpu().numpy(), np.asarray(groups), group_names(images)
    labels, predicted = predictions.labels.tolist(), predictions.predicted.tolist()
    rows = []
    for name in dict.fromkeys(groups):
        items = np.flatnonzero(names == name)
        wrong = Counter((labels[item], predicted[item]) for item in items if not correct[item])
        confusions = tuple(
            (predictions.classes[label], predictions.classes[other], count)
            for (label, other), count in wrong.most_common(WORST)
        )
        right = correct[items]
        interval = group_share_interval(right, [of_group[item] for item in items])
        count, share = int(right.sum()), float(right.mean())
        of_decided: tuple[int, ...] = ()
        if choices is not None:
            is_right = choices[items] == predictions.labels.numpy()[items]
            of_decided = int((choices[items] >= 0).sum()), int(is_right.sum())
        rows.append(GroupAccuracy(name, len(items), count, share, *interval, confusions, *of_decided))
    return tuple(sorted(rows, key=lambda row: (row.high, row.accuracy, row.name)))


def difference_by_group(
    first: Bool[np.ndarray, "item"],
    second: Bool[np.ndarray, "item"],
    images: Images,
    groups: Sequence[str],
) -> tuple[GroupDifference, ...]:
    """How two classifiers differ in each group, from which images are right with each; the group that loses
    most comes first.
    """
    names, of_group, rows = np.asarray(groups), group_names(images), []
    for name in dict.fromkeys(groups):
        items = np.flatnonzero(names == name)
        differences = second[items].astype(int) - first[items].astype(int)
        found = paired_difference(differences, [of_group[item] for item in items])
        counts = int(first[items].sum()), int(second[items].sum())
        rows.append(GroupDifference(name, len(items), *counts, found.mean, found.low, found.high))
    return tuple(sorted(rows, key=lambda row: (row.difference, row.name)))


def describe_groups(by: str, rows: Sequence[GroupAccuracy]) -> list[str]:
    """Which groups are clearly worse than all images together, in a line; none without groups."""
    if not rows:
        return []
    overall = sum(row.right for row in rows) / sum(row.images for row in rows)
    worse = [row for row in rows if row.high < overall]
    if not worse or len(rows) == 1:
        return [f"By {printable(by)}: no group of {len(rows)} is clearly worse than all together."]
    listed = ", ".join(f"{printable(row.name)} ({row.accuracy:.1%} of {row.images})" for row in worse[:WORST])
    return [
        f"By {printable(by)}: clearly worse than all together ({overall:.1%}): {listed}. Each interval is by "
        f"itself, at {LEVEL:.0%}: of many groups some may lie below by chance."
    ]
