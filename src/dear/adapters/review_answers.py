"""Answer a review image by image: what somebody says goes into the corrections of the data at once, as
`dear.adapters.labels.apply_labels` writes it, and can be taken back.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dear.adapters.bundle import Bundle
from dear.adapters.labels import CorrectedData
from dear.curation.issues import REVIEW_CSV, Issue
from dear.data.images.forms import file_hash
from dear.data.images.hashes import hash_files
from dear.data.settings import DataSettings
from dear.data.sources.class_names import nearest_class, plain_name, with_spaces
from dear.data.sources.corrections import (
    REMOVE,
    Correction,
    NewClassError,
    merge_corrections,
    read_corrections,
)
from dear.data.sources.paths import find_files
from dear.data.sources.table import KEEP, PREDICTED, PROBABILITY, SUGGESTED, read_rows
from dear.errors import DataError, warn
from dear.limits import require_at_most
from dear.text import compose, list_names, plural, printable, without_surrogates
from dear.writing import csv_path, read_csv_text

Confused = tuple[tuple[str, str, int, int], ...]
"""Classes that are often taken for each other: two names, images taken for the other one, and images."""


@dataclass(frozen=True)
class Doubt:
    """An image of which something looks wrong.

    Attributes:
        file, content: The file, and its hash.
        source: The data that it is of.
        label, suggested: The name of its class, and that of the class that it looks like.
        probability: Of the suggested class beside the label; None for an image that is there twice.
        twin: The file that shows nearly the same, of another class.
    """

    file: Path
    content: bytes
    source: CorrectedData
    label: str
    suggested: str
    probability: float | None = None
    twin: Path | None = None

    @property
    def name(self) -> str:
        """The path within its data, for people."""
        return without_surrogates(printable(self.source.path_of(self.file)))

    def counting(self, rows: Sequence[Correction]) -> list[Correction]:
        """Those of the rows with its content that say what it is: of the file itself, or of a class."""
        file, source = str(self.file), self.source
        paths = {file, csv_path(file, source.table), source.path_of(self.file)}
        itself = [row for row in rows if row.path in paths]
        return itself or [row for row in rows if row.label != REMOVE]


class ReviewAnswers:
    """The images of a review that are still there, and what somebody says of them.

    Attributes:
        doubts: The images, those that are there twice one after the other.
        classes: The names of the classes, with those that came in since.
        confused: Classes between which wrong labels may hide.
    """

    def __init__(
        self,
        issues: Iterable[Issue],
        sources: Sequence[CorrectedData],
        confused: Confused = (),
        settings: DataSettings | None = None,
    ) -> None:
        """``sources`` are the data that was reviewed, of which the later ones count."""
        self.sources, self.confused, self.settings = sources, confused, settings or DataSettings()
        names = [with_spaces(name) for source in sources for name in source.listing.classnames]
        self.classes = [*{plain_name(name): name for name in reversed(names)}.values()][::-1]
        self.doubts = self._find_doubts(issues)
        self._numbers = {doubt.file: number for number, doubt in enumerate(self.doubts)}
        self._before = dict[int, list[tuple[list[Correction], list[Correction]]]]()

    def _find_doubts(self, issues: Iterable[Issue]) -> tuple[Doubt, ...]:
        doubts = dict[Path, Doubt]()

        def add(file: Path, label: str, **facts: Any) -> None:
            sources = [source for source in self.sources if source.holds(file)]
            listing = [source for source in sources if str(file) in source.files]
            if file in doubts:
                doubts[file] = replace(doubts[file], twin=doubts[file].twin or facts.get("twin"))
            elif sources:
                doubts[file] = Doubt(file, file_hash(file), (listing or sources)[-1], label, **facts)

        gone = 0
        for issue in issues:
            image = self._find(Path(issue.image))
            other = self._find(Path(issue.other)) if issue.other else None
            gone += image is None
            if image is not None:
                facts = {"suggested": issue.suggested, "probability": issue.probability, "twin": other}
                add(image, issue.label, **facts)
            if other is not None:
                labels = [label for source in self.sources if (label := source.label_of(other))]
                add(other, labels[-1] if labels else issue.suggested, suggested=issue.label, twin=image)
        if gone:
            tables = list_names([str(source.table.parent) for source in self.sources])
            warn(f"{plural(gone, 'image')} of the review {'is' if gone == 1 else 'are'} not in {tables}")
        return tuple(doubts.values())

    def _find(self, file: Path) -> Path | None:
        """Where a file of the review is now, in the last data that has it."""
        if any(source.holds(file) for source in self.sources):
            return file
        found = (source.find(file) for source in reversed(self.sources))
        return next((path for path in found if path is not None), None)

    def number_of(self, file: Path | None) -> int | None:
        """The number of an image, if it is among these."""
        return None if file is None else self._numbers.get(file)

    def answers(self) -> dict[int, str]:
        """What the corrections say of the images, by their numbers: the name of a class, or `REMOVE`."""
        found = dict[int, str]()
        for source in self.sources:
            names = dict(zip(source.listing.keys, source.listing.classnames, strict=True))
            by_content = dict[bytes, list[Correction]]()
            for row in read_corrections(source.table):
                by_content.setdefault(row.content, []).append(row)
            for number, doubt in enumerate(self.doubts):
                if doubt.source is source and (rows := doubt.counting(by_content.get(doubt.content, []))):
                    label = rows[-1].label
                    found[number] = label if label == REMOVE else with_spaces(names.get(label, label))
        return found

    def answer(self, number: int, label: str, *, is_new: bool = False) -> None:
        """Say what an image shows: the name of a class, "keep", "remove" to leave out this file alone, or
        "none" for an image of no class, which is left out with all its copies.

        Raises as `key_of`, DataError for an image that is gone, OutputError for corrections that cannot be
        written.
        """
        doubt, key = self.doubts[number], self.key_of(number, label, is_new=is_new)
        row = doubt.source.correction(doubt.file, key)
        rows = [row]
        if key == REMOVE and plain_name(label) != REMOVE:
            rows = [doubt.source.correction(file, key) for file in self._copies(doubt)]
        earlier = self._before.setdefault(number, [])
        before = [row for row in read_corrections(doubt.source.table) if row.content == doubt.content]
        written = earlier[-1][0] if earlier else []
        merge_corrections(doubt.source.table, rows, self.settings, written)
        earlier.append((rows, before))
        known = map(plain_name, (*self.classes, *doubt.source.listing.keys, REMOVE))
        if plain_name(key) not in known:
            self.classes.append(with_spaces(key))

    def undo(self, number: int) -> None:
        """Take the last answer for an image back: then the one before holds, if there was one. Raises
        OutputError.
        """
        doubt, earlier = self.doubts[number], self._before.get(number)
        if earlier:
            written, before = earlier[-1]
        else:  # it was given before this began
            rows = read_corrections(doubt.source.table)
            written = doubt.counting([row for row in rows if row.content == doubt.content])
            before = []
        if written:
            merge_corrections(doubt.source.table, before, self.settings, written)
        if earlier:
            earlier.pop()

    def key_of(self, number: int, label: str, *, is_new: bool = False) -> str:
        """What the corrections have for an answer. Raises NewClassError for a name that is no class, unless
        it ``is_new``, DataError for an empty one, LimitError for one that is too long.
        """
        doubt = self.doubts[number]
        if not plain_name(label):
            raise DataError("the label is empty: give a class, keep, none or remove.")
        require_at_most("class_name", len(label), "the label")
        if plain_name(label) == KEEP:
            return doubt.source.key_of(doubt.label, [doubt.label])
        try:
            return doubt.source.key_of(label, [*self.classes, *([label] if is_new else [])])
        except NewClassError as error:
            raise NewClassError(error.label, nearest_class(label, self.classes)) from None

    def _copies(self, doubt: Doubt) -> list[Path]:
        """The files with the same content in the data of an image, itself among them."""
        files = [Path(file) for file in doubt.source.files]
        hashes = hash_files(files, self.settings.threads, self.settings.cache_folder())
        copies = [file for file, content in zip(files, hashes, strict=True) if content == doubt.content]
        return copies if doubt.file in copies else [doubt.file, *copies]


def read_issues(folder: Path) -> list[Issue]:
    """What review.csv in a folder says of each image, with the labels at the review; empty without one.
    Raises DataError naming the line of a probability that is none.
    """
    table, issues, find = folder / REVIEW_CSV, list[Issue](), find_files(folder)
    for number, row in read_rows(table, DataSettings()) if table.is_file() else ():
        cells = {name: read_csv_text(compose((row.get(name) or "").strip())) for name in row}
        image, other = (os.path.abspath(folder / find(cells.get(name, ""))) for name in ("path", "other"))
        try:
            probability = float(cells[PROBABILITY]) if cells.get(PROBABILITY) else None
        except ValueError as error:
            raise DataError(f"{table}, line {number}: {cells[PROBABILITY]!r} is no probability.") from error
        other = other if cells.get("other") else ""
        label = cells.get(PREDICTED) or cells.get("label", "")
        issues.append(Issue(image, label, cells.get(SUGGESTED, ""), probability, other))
    return issues


def open_review(bundle: Bundle, folder: Path, data: Path | str, names: Mapping[str, str]) -> ReviewAnswers:
    """The review that a fit wrote into the folder of its bundle, of the images that are in the data now;
    ``names`` are those of folders or labels. Raises DataError.
    """
    source = CorrectedData.read(data, DataSettings(), names)
    return ReviewAnswers(read_issues(folder), [source], bundle.training.confused)
