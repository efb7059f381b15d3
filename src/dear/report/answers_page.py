"""The part of a report that shows what runs take for what, and its tables.

A matrix for each part, method and data set would make a page of many runs heavy: 12 data sets and 16 methods
have 384. So a page shows 32 at most, as many as 16 methods have on the two halves of one data set, and then
those of fewer methods: of the page's method and the one it is compared with, then of the page's method alone.
The reader can name others (``dear report --answers-of``); all numbers are in the tables. [ours]
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dear.errors import DataError
from dear.report.answers import Answered, answered
from dear.report.diagnosis_parts import FOLDED, Shown, classes_grid, gallery
from dear.report.diagnosis_plots import confusion_map
from dear.report.files import csv_file
from dear.report.grid import Grid
from dear.report.reading import Record, distinct, method_label
from dear.report.svg import Drawing

MOST = 32
"""Parts of results that a page shows."""
MATRIX = 100
"""Classes up to which a matrix is drawn."""
WORST = 50
"""Classes that the table of a part shows, the worst."""


@dataclass(frozen=True)
class PartShown:
    """A part of the results on the page; no matrix if confusions are left out, or there are many classes.
    ``at_shots`` if the runs are of several numbers of shots.
    """

    told: Answered
    at_shots: bool
    wrong: int
    matrix: Drawing | None
    pairs: list[tuple[str, str, int, float]]
    grid: Grid
    folded: bool
    gallery: list[Shown]
    gone: int


@dataclass(frozen=True)
class AnswersShown:
    """What the page shows.

    Attributes:
        sets: By data set (and protocol, if there are several) the methods, and the parts of each.
        methods: The methods shown.
        hidden: The methods that the page has no room for.
        without: Methods with a record of an earlier version, which has no answers.
    """

    sets: Mapping[str, Mapping[str, list[PartShown]]]
    methods: list[str]
    hidden: list[str]
    without: list[str]

    def drawings(self, methods: Collection[str]) -> list[Drawing]:
        """The matrices of some methods."""
        parts = [one for some in self.sets.values() for name in some if name in methods for one in some[name]]
        return [one.matrix for one in parts if one.matrix is not None]


def answers_shown(
    records: Sequence[Record], main: str, reference: str | None, chosen: Sequence[str] = ()
) -> AnswersShown | None:
    """What the page shows of some runs, or None if no record holds answers. Of several numbers of shots, the
    largest is shown.

    Raises DataError for a chosen method without answers, and as `answered`.
    """
    everything = answered(records)
    methods = distinct(one.method for one in everything)
    if unknown := [one for one in chosen if one not in methods]:
        raise DataError(
            f"no record holds answers of {unknown[0]!r}: "
            f"those that do are of {', '.join(methods) or 'no method'}."
        )
    if not everything:
        return None
    largest: dict[tuple[str, str, str], int] = {}
    for one in everything:
        key = one.protocol, one.data, one.method
        largest[key] = max(largest.get(key, 0), one.shots)
    found = [one for one in everything if one.shots == largest[one.protocol, one.data, one.method]]
    few = [main] if reference is None else [main, reference]
    wanted = next(
        (some for some in (methods, few) if len(_of(found, some)) <= MOST and _of(found, some)), [main]
    )
    kept = _of(found, chosen or wanted)[: None if chosen else MOST] or found[:MOST]
    several = len(distinct(one.protocol for one in everything)) > 1
    at_shots = len({one.shots for one in everything}) > 1
    names: set[str] = set()
    sets: dict[str, dict[str, list[PartShown]]] = {}
    for one in kept:
        title = f"{one.title}, {one.protocol}" if several else one.title
        sets.setdefault(title, {}).setdefault(one.method, []).append(_shown(one, names, at_shots))
    shown = distinct(one.method for one in kept)
    held = {id(record) for record in records if record.get("answers")}
    return AnswersShown(
        sets,
        shown,
        [one for one in methods if one not in shown],
        distinct(method_label(record) for record in records if id(record) not in held),
    )


def _of(found: Iterable[Answered], methods: Sequence[str]) -> list[Answered]:
    return [one for one in found if one.method in methods]


def _shown(one: Answered, names: set[str], at_shots: bool) -> PartShown:
    grid = classes_grid(one.scores, WORST)
    whole = not one.left_out and len(one.classes) <= MATRIX
    mistakes, gone = one.mistakes()
    return PartShown(
        told=one,
        at_shots=at_shots,
        wrong=sum(one.images) - sum(one.right),
        matrix=confusion_map(one.matrix(), one.classes, _name(one, names)) if whole else None,
        pairs=one.pairs(),
        grid=grid,
        folded=len(grid.rows) > FOLDED,
        gallery=gallery(mistakes),
        gone=gone,
    )


def _name(one: Answered, names: set[str]) -> str:
    """The name of a matrix, which is that of its files: each once."""
    words = f"confusion {one.data} {one.part.split()[0]} {one.method}".replace("+", "p").lower()
    name = base = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    number = 1
    while name in names:
        number += 1
        name = f"{base}-{number}"
    names.add(name)
    return name


def answers_files(records: Sequence[Record]) -> dict[str, bytes]:
    """Tables of all answers as CSV by file name: classes, confusions, mistakes; none without answers."""
    found = answered(records)
    if not found:
        return {}
    first = ["data set", "protocol", "part", "method", "shots", "seeds"]
    classes: list[list[object]] = [[*first, "class", "images", "accuracy", "precision", "F1"]]
    confusions: list[list[object]] = [[*first, "class", "answer", "images"]]
    mistakes: list[list[object]] = [
        [*first, "image", "answer", "confidence", "class", "probability of the class"]
    ]
    for one in found:
        row = [one.title, one.protocol, one.part, one.method, one.shots, one.seeds]
        classes += [
            [*row, score.name, score.images, score.accuracy, score.precision, score.f1]
            for score in one.scores
        ]
        right = [(at, at, images) for at, images in enumerate(one.right) if images]
        confusions += [
            [*row, one.classes[label], one.classes[answer], images]
            for label, answer, images in sorted([*right, *one.confusions])
        ]
        mistakes += [
            [
                *row,
                wrong.title,
                one.classes[wrong.facts["answer"]],
                float(wrong.facts["confidence"]),
                one.classes[wrong.facts["label"]],
                float(wrong.facts["probability"]),
            ]
            for wrong in one.wrong
        ]
    tables = {"classes.csv": classes, "confusions.csv": confusions, "mistakes.csv": mistakes}
    return {name: csv_file(rows) for name, rows in tables.items()}
