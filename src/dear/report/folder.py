"""The report of a folder of records: HTML, its tables as CSV, LaTeX and Markdown, its figures as SVG."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dear.errors import DataError
from dear.evaluation.records import is_record_name, read_record
from dear.limits import LimitError
from dear.reading.files import ReadingError, walk_folders
from dear.reading.plain import read_json
from dear.report.grid import Grid, csv_file, markdown_text
from dear.report.records import Record, grouped, readable, runs_frame
from dear.report.render import write_page
from dear.report.report_page import report_page
from dear.report.run_mistakes import mistakes_files
from dear.text import without_surrogates

PAGE = "report.html"
SELECTION = (
    "Nothing is selected on test images: the last epoch is tested, or the best on validation images where a "
    "record says so. The exception is what is marked as tuned on targets: there a method's authors chose "
    "settings for each target."
)


@dataclass(frozen=True)
class FolderReport:
    """The files that were written, the tables (percent), and the number of records."""

    html: Path
    files: tuple[Path, ...]
    tables: tuple[Grid, ...]
    records: int


def read_folder(folder: Path) -> list[Record]:
    """All run records in a folder and its subfolders, each with the path of its ``predictions`` if there are
    any.

    A file with the name of a run's record must be one. Any other file is a record if it holds a JSON object
    with the number of a schema and the name of a protocol, and is ignored if it cannot be read, such as a
    link or settings with comments. Hidden subfolders belong to other programs and are not entered.

    Raises:
        DataError: if there is no such folder, no record in it, or a damaged one; for a link with the name of
            a record: whoever made it would choose among the user's files.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: give the one that contains the run records.")
    records = [record for path in sorted(_json_files(folder)) if (record := _record_in(path)) is not None]
    if not records:
        raise DataError(f"there is no run record in {folder}: run something with --out {folder} first.")
    return records


def _json_files(folder: Path) -> Iterator[Path]:
    """The JSON files in a folder and its subfolders, but the hidden ones."""
    for parent, _, names in walk_folders(folder):
        yield from (path for path in (parent / name for name in names) if path.suffix == ".json")


def _record_in(path: Path) -> Record | None:
    """The record in a file, None if it is another file. Raises DataError for a damaged record."""
    if not is_record_name(path.name):
        try:
            content: Any = read_json(path, file_names=True)
        except (ReadingError, LimitError):
            return None
        kinds = {"schema": int, "protocol": str}
        if not isinstance(content, dict) or not all(isinstance(content.get(k), kinds[k]) for k in kinds):
            return None
    record, predictions = read_record(path), path.with_suffix(".npz")
    return record | {"predictions": predictions} if predictions.exists() else record


def of_weights(records: Sequence[Record], sha: str | None) -> list[Record]:
    """The records of one set of weights: those whose hash begins with ``sha``, or the only set there is.

    Raises:
        DataError: if there are several or none of them.
    """
    by_hash = grouped(readable(records), lambda record: record["weights"]["sha256"])
    matching = [runs for full, runs in by_hash.items() if full.startswith(sha or "")]
    if len(matching) == 1:
        return matching[0]
    weights = [runs[0]["weights"] for runs in by_hash.values()]
    names = ", ".join(f"{w['sha256'][:12]} ({w.get('model')}/{w.get('pretrained')})" for w in weights)
    what = "of different weights, whose results must not be averaged" if matching else f"none of {sha!r}"
    raise DataError(
        f"the records are {what}: {names}. Choose one with --weights and the first digits of its hash."
    )


def write_folder_report(
    folder: Path,
    out: Path | None = None,
    *,
    title: str | None = None,
    weights: str | None = None,
    against: str | None = None,
) -> FolderReport:
    """Write the report of a folder's records into ``out`` (its subfolder "report" if None).

    ``title`` is by default the name of the folder; ``against`` names the method that all others are compared
    with.

    Raises:
        DataError: for records that cannot be combined in one report.
        OutputError: if the output folder cannot be written to.
    """
    records = of_weights(read_folder(folder), weights)
    frame = runs_frame(readable(records))  # empty for retrievals alone
    title = title or without_surrogates(folder.resolve().name)
    page = report_page(title=title, records=records, notes=(SELECTION,), against=against)
    tables = page.tables
    markdown = "\n".join(grid.to_markdown() for grid in tables)
    texts = {
        "report.tex": "\n".join(grid.to_latex() for grid in tables),
        "report.md": f"# {markdown_text(title)}\n\n{markdown}",
    }
    files = {
        **{f"{grid.name}.csv": grid.to_csv() for grid in tables},
        **({"report.csv": csv_file(frame.drop(columns=["label", "title"]))} if len(frame) else {}),
        **{name: text.encode() for name, text in texts.items()},
        **mistakes_files(page.mistakes),
    }
    written = write_page(out or folder / "report", PAGE, page.text, files, page.drawings)
    return FolderReport(written[0], written, tables, len(records))
