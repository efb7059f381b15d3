"""Predictions of many images into one file, row by row: only a batch is in memory at a time."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from dear.adapters.predictor import Prediction, Unreadable
from dear.adapters.results import Written, check_table
from dear.errors import DataError, OutputError
from dear.report.grid import csv_text
from dear.writing.files import atomic_write


def write_predictions(
    out: Path,
    found: Iterable[Prediction | Unreadable],
    told: Callable[[Prediction | Unreadable], None] = lambda _one: None,
) -> Written:
    """Write what `Predictor.predict_each` yields, whole or not at all; ``told`` is called with each.

    A .csv has one row an image: file, class and score (the probability, a fraction) of the best class, then
    class_2, score_2 and so on; a .jsonl has one object an image, with the evidence. Unreadable images are
    left out. Raises SettingsError for another suffix, DataError if no image can be read, OutputError.
    """
    check_table(out)
    line = _json_line if out.suffix.lower() == ".jsonl" else _csv_line
    images, unreadable = 0, list[Unreadable]()
    try:
        with atomic_write(out) as file:
            for one in found:
                told(one)
                if isinstance(one, Unreadable):
                    unreadable.append(one)
                    continue
                head = "" if images or line is _json_line else _header(len(one.top))
                # The bytes of file names as they are.
                file.write((head + line(one)).encode("utf-8", "surrogateescape"))
                images += 1
            if not images:
                first = f": {unreadable[0].reason}" if unreadable else "."
                raise DataError(f"none of {len(unreadable)} images can be read{first}")
    except OSError as error:
        raise OutputError(f"cannot write {out}: {error}. Choose another place with --out.") from error
    return Written(out, images, unreadable)


def _header(top: int) -> str:
    rest = [f"{name}_{rank}" for rank in range(2, top + 1) for name in ("class", "score")]
    return _row(["file", "class", "score", *rest])


def _csv_line(one: Prediction) -> str:
    cells = [cell for best in one.top for cell in (csv_text(best.name), best.probability)]
    return _row([csv_text(one.image or ""), *cells])


def _json_line(one: Prediction) -> str:
    return json.dumps(asdict(one), ensure_ascii=True) + "\n"


def _row(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
