"""`dear report`: tables and figures of the run records in a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dear.cli.output import PrintableConsole
from dear.text import plural

if TYPE_CHECKING:
    from dear.report.report_page import FolderReport


def command(
    folder: Path,
    *,
    out: Path | None = None,
    title: str | None = None,
    weights: str | None = None,
    against: str | None = None,
    main: str | None = None,
    labels: Annotated[tuple[str, ...], Parameter(name="--methods")] = (),
    data: tuple[str, ...] = (),
) -> Any:
    """Write tables and figures of the run records in a folder: HTML, Markdown, LaTeX and CSV.

    Args:
        folder: Folder of run records, searched recursively.
        out: Folder of the report. By default "report" in the folder of the records.
        title: Title of the page. By default the name of the folder.
        weights: First digits of the hash of the weights to report, if the records come from several.
        against: Method that all others are compared with, named as for --methods. The comparison has
            paired differences over data sets and seeds, and over test images, with intervals, p-values and
            Holm's correction. The page then shows the mistakes of this method, in place of the mistakes of
            zero-shot.
        main: Method that the page is about, named as for --methods: its result comes first, and its
            mistakes, fusion weights and losses are shown. By default the first method that learns fusion
            weights, or else the last method.
        labels: Report only these methods. Each is named as in the tables, such as "coop (tuned)", or as for
            `dear run`, which stands for all of its variants.
        data: Report only the runs on these data sets (in transfer, the runs that were trained on them).
    """
    from dear.report.report_page import write_folder_report

    return write_folder_report(
        folder,
        out,
        title=title,
        weights=weights,
        against=against,
        main=main,
        methods=labels,
        data=data,
    )


def render(result: "FolderReport", console: PrintableConsole) -> None:
    """Show the tables and where the files are."""
    for grid in result.tables:
        grid.render(console)
    console.say(f"{plural(result.records, 'record')}. Report: {result.html}")
