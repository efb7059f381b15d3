"""What somebody answered in a table that dear wrote: labels that were corrected, confirmed or filled in."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dear.data.images.video import file_of
from dear.data.settings import DataSettings
from dear.data.sources.class_names import plain_label, plain_name
from dear.data.sources.paths import find_files
from dear.data.sources.table import (
    CHECKED,
    KEEP,
    LABELS,
    PATHS,
    PREDICTED,
    PROBABILITY,
    SUGGESTED,
    column,
    read_rows,
)
from dear.errors import DataError
from dear.reading.remote import within
from dear.text import compose
from dear.writing import read_csv_text


class Answer(NamedTuple):
    """What somebody said of an image in a table that dear wrote: the line, the file, the label, and the class
    that the table had for it.
    """

    where: str
    file: Path
    label: str
    suggested: str = ""


def read_answers(table: Path, *folders: Path) -> tuple[list[Answer], int]:
    """The rows of a reviewed table that somebody corrected, confirmed or filled in, and how many nobody did.
    Paths are relative to the table, else to one of some other folders. Raises DataError naming the line.
    """
    finders = [(folder, find_files(folder)) for folder in (table.parent, *folders)]
    answers, unanswered = list[Answer](), 0
    for number, row in read_rows(table, DataSettings()):
        where = f"{table}, line {number}"
        if not isinstance(row, dict):
            raise DataError(f"{table}: a table that was reviewed is a .csv.")
        names = column(PATHS, row), column(LABELS, row), PREDICTED, SUGGESTED, CHECKED
        path, label, predicted, suggested, checked = (
            read_csv_text(compose((row.get(name) or "").strip())) for name in names
        )
        label, predicted, suggested = map(plain_label, (label, predicted, suggested))
        if plain_name(label) == KEEP or (checked and not label):
            label, checked = predicted or suggested, KEEP
            if not label:
                raise DataError(f"{where}: it has no label to keep: write that of its class.")
        is_prediction = not {PREDICTED, PROBABILITY}.isdisjoint(row)
        if not label or (is_prediction and not checked and (label == predicted or PREDICTED not in row)):
            unanswered += 1
            continue
        files = [within(folder, find(path)) for folder, find in finders]
        file = next((file for file in files if file_of(file).is_file()), files[0])
        answers.append(Answer(where, file, label, suggested or predicted))
    return answers, unanswered


def holds_answers(table: Path) -> bool:
    """True for a table that dear wrote in which somebody corrected, confirmed or filled in labels."""
    with suppress(DataError):
        return table.is_file() and bool(read_answers(table)[0])
    return False
