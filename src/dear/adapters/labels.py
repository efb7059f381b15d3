"""Put what somebody said of images into the corrections of a data set: the answers of a reviewed table, or
those that are given one after the other.
"""

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

from dear.data.images.forms import file_hash
from dear.data.images.video import file_of
from dear.data.loading import name_listings, read_source
from dear.data.settings import DataSettings
from dear.data.sources.answers import read_answers
from dear.data.sources.class_names import WHOLE, with_spaces
from dear.data.sources.corrections import (
    REMOVE,
    Correction,
    NewClassError,
    answered_contents,
    corrections_file,
    key_of,
    merge_corrections,
)
from dear.data.sources.listing import UNLABELED, Listing
from dear.data.sources.table import CHECKED
from dear.errors import DataError, OutputError
from dear.reading.files import CORRECTIONS, expanded, whole_path
from dear.reading.remote import Address, within
from dear.text import list_names
from dear.writing import csv_path


@dataclass(frozen=True)
class CorrectedData:
    """A data set of files and the table of its corrections.

    Attributes:
        files: The path of each image in the data by its absolute path.
        labels: The number of its class by that, `UNLABELED` without one.
    """

    table: Path
    listing: Listing
    files: Mapping[str, str]
    labels: Mapping[str, int]

    @classmethod
    def read(cls, data: Path | str, settings: DataSettings, names: Mapping[str, str] | None = None) -> Self:
        """Read the lists of a data set; ``names`` are as in `load_dataset`. Raises DataError for one that is
        no file, beside which no corrections can lie.
        """
        if (table := corrections_file(data)) is None:
            raise DataError(
                f"{data} is neither a folder nor a file: corrections lie beside images of your own."
            )
        if isinstance(table, Address):
            raise DataError(
                f"{data} is not on this machine, where corrections are written: list it in a local table."
            )
        listing = name_listings([read_source(str(data), settings)], settings, names)
        files = {whole_path(within(listing.folder, path)): path for path in listing.paths}
        rows = [row for part in listing.splits.values() for row in part]
        labels = {whole_path(within(listing.folder, row.path)): row.label for row in rows}
        return cls(table, listing, files, labels)

    def label_of(self, file: Path) -> str | None:
        """The name of the class of a file; None if it has none here."""
        label = self.labels.get(whole_path(file), UNLABELED)
        return None if label == UNLABELED else with_spaces(self.listing.classnames[label])

    def key_of(self, label: str, new_classes: Collection[str] = ()) -> str:
        """What the corrections have for an answer, as `key_of`. Raises DataError for a name where the classes
        are numbers.
        """
        keys, names = self.listing.keys, self.listing.classnames
        key = key_of(label, keys, names, new_classes)
        are_numbers = bool(keys) and all(map(WHOLE.fullmatch, keys))
        if are_numbers and key != REMOVE and not WHOLE.fullmatch(key):
            raise DataError(
                f"{label!r:.80} is a name, but the classes of {self.listing.name} are numbers: give the "
                "--dataset.classnames of the classifier that the table is from."
            )
        return key

    def holds(self, file: Path) -> bool:
        """True for a file that is there, in the data or in its folder."""
        path = whole_path(file)
        is_here = path in self.files or Path(path).is_relative_to(self.table.parent.absolute())
        return is_here and file_of(file).is_file()

    def find(self, file: Path) -> Path | None:
        """A file that is there, as `holds`; if the images were moved or copied, the only one whose path ends
        like its own, with the most parts, and with the same content if the file is still where it was.
        """
        if self.holds(file):
            return file
        shared = Counter(
            {path: _common_tail(file, Path(path)) for path in self.files if path.endswith(file.name)}
        )
        (best, parts), (_, others) = [*shared.most_common(2), ("", 0), ("", 0)][:2]
        if not parts or parts == others or not file_of(moved := Path(best)).is_file():
            return None
        return None if file_of(file).is_file() and file_hash(file) != file_hash(moved) else moved

    def path_of(self, file: Path) -> str:
        """What the corrections call a file."""
        path = whole_path(file)
        return self.files.get(path, csv_path(path, self.table))

    def correction(self, file: Path, key: str) -> Correction:
        """The row that says that a file is of the class with this key, or is to be left out."""
        return Correction(self.path_of(file), key, file_hash(file))


def _common_tail(first: Path, second: Path) -> int:
    """How many of the last parts of two paths are equal."""
    pairs = zip(reversed(first.parts), reversed(second.parts), strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


@dataclass(frozen=True)
class AppliedLabels:
    """What became of the answers in a reviewed table.

    Attributes:
        table: The corrections, which now have them.
        answers, unanswered: Rows that somebody answered, and others.
        elsewhere: Files of answers that are gone or not in the data.
        notes: What the corrections do to the data, as every command says it.
    """

    table: Path
    answers: int
    unanswered: int
    elsewhere: tuple[str, ...]
    notes: tuple[str, ...]


def apply_labels(
    reviewed: Path | str,
    data: Path | str,
    *,
    new_classes: Sequence[str] = (),
    dataset: DataSettings | None = None,
) -> AppliedLabels:
    """Put the answers of a reviewed table (of a fit, a review, predictions or suggestions; or columns path
    and label) into the corrections of a data set, which `load_dataset` and all commands read by themselves.

    An answer is a class by its name or folder, "keep", or "none" for an image of no class ("none of these"
    and "remove" too). A name that is no class is a new one, but one that is spelled nearly like a class must
    be among the ``new_classes``. ``dataset`` is how the data is read, as its names of classes. Raises
    DataError naming the line, also for two answers for one picture; then nothing is written.
    """
    settings, reviewed = dataset or DataSettings(), expanded(reviewed)
    source = CorrectedData.read(data, settings)
    answers, unanswered = read_answers(reviewed, source.table.parent)
    meant = {*new_classes, *(answer.suggested for answer in answers if answer.suggested)}
    corrections, lines, elsewhere = list[Correction](), dict[bytes, tuple[str, str]](), list[str]()
    for where, file, label, _ in answers:
        if (found := source.find(file)) is None:
            elsewhere.append(str(file))
            continue
        key = _key_of_answer(where, label, source, meant)
        row = source.correction(found, key)
        line, other = lines.setdefault(row.content, (where, key)) if key != REMOVE else (where, key)
        if other != key:  # one of two copies may be left out
            raise DataError(
                f"{where} has the same picture as {line}, but {label!r:.80} in place of {other!r:.80}: give "
                "both one label."
            )
        corrections.append(row)
    if not corrections:
        why = f"none of {len(answers)} images lies in {data}: {list_names(elsewhere, 3)}"
        hint = f"correct labels, or write yes in the column {CHECKED}"
        raise DataError(f"{reviewed}: {why if answers else f'nobody answered its rows: {hint}'}.")
    merge_corrections(source.table, corrections, settings)
    notes = [note for note in read_source(str(data), settings).notes if note.startswith(CORRECTIONS)]
    return AppliedLabels(source.table, len(corrections), unanswered, tuple(elsewhere), tuple(notes))


def _key_of_answer(where: str, label: str, source: CorrectedData, meant: Collection[str]) -> str:
    """The key of an answer, where a name that is unlike all classes is a new one."""
    try:
        try:
            return source.key_of(label, meant)
        except NewClassError as error:
            if error.nearest is None:
                return source.key_of(label, [label])
            new = f"--new-classes {shlex.quote(error.label)}"
            raise DataError(f"{error} Correct it or, if it is a new class, give {new}.") from None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def require_applied(reviewed: Path, data: Any) -> None:
    """Raise OutputError for a table whose answers would be lost: they are not in the corrections of the data,
    or the table was changed since.
    """
    answers = read_answers(reviewed)[0] if reviewed.is_file() else []
    known = answered_contents(data, reviewed.stat().st_mtime_ns) if answers else set()
    if any(not file_of(answer.file).is_file() or file_hash(answer.file) not in known for answer in answers):
        raise OutputError(
            f"{reviewed} has labels that were corrected or checked: put them beside the data with "
            f"`dear labels apply {shlex.quote(str(reviewed))} DATA`, or give another --out."
        )
