"""`dear report`: tables and figures of the run records in a folder."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dear.report.grid import Grid


@dataclass(frozen=True)
class Reported:
    """The tables (percent), the HTML page, all files, and the number of records."""

    tables: list[Grid]
    html: Path
    files: list[Path]
    records: int


def command(
    folder: Path,
    *,
    out: Path | None = None,
    title: str = "Results",
    weights: str | None = None,
    mistakes_of: tuple[str, ...] = (),
) -> Reported:
    """Write tables and figures of the run records in a folder: HTML, Markdown, LaTeX and CSV.

    Args:
        folder: Folder of run records, searched recursively.
        out: Folder of the report. By default "report" in the folder of the records.
        title: Title of the page.
        weights: First digits of the hash of the weights to report, if the records come from several.
        mistakes_of: Methods whose confusions, classes and mistakes the page shows. By default those that
            there is room for.
    """
    from dear.report.folder import write_folder_report

    report = write_folder_report(folder, out, title=title, weights=weights, mistakes_of=mistakes_of)
    return Reported([*report.tables], report.html, [*report.files], report.records)


def render(result: Reported, console: Console) -> None:
    """Show the tables and where the files are."""
    for grid in result.tables:
        grid.render(console)
    console.print(f"{result.records} records. Report: {result.html}", markup=False)
