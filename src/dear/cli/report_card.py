"""`dear report-card`: a page of a classifier that a person can read, print and sign."""

from pathlib import Path

from dear.cli.options import BundleName, BundleOptions
from dear.cli.output import PrintableConsole, progress_console
from dear.cli.parsing import Flat
from dear.data.settings import DataSettings


def command(
    bundle: BundleName,
    data: str | None = None,
    *,
    out: Path,
    purpose: str = "",
    by: str | None = None,
    options: Flat[BundleOptions] = BundleOptions(),
    dataset: DataSettings = DataSettings(),
) -> dict[str, Path]:
    """Write the report card of a classifier: a page that prints on two sides, for a person to sign.

    It says what the classifier is for, its accuracy with interval, what it decides by itself and what was
    promised of that, what it refuses, what it was never shown, its classes, its data and its date.

    Args:
        data: Labeled images that it was not fitted on. The card then has the accuracy on these, and a
            photograph of each class.
        out: File of the page, such as card.html; a name without a suffix gets .html.
        purpose: What the classifier is for, in a sentence. By default there is a line to write it on.
        by: List the accuracy on the data by group: a column of the table, month or camera (from EXIF data),
            or a regular expression whose match in a file's path is the group.
        dataset: How the data is read.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.names import check_name

    check_bundle(bundle)
    if data is not None:
        check_name(data, dataset)
    from dear.adapters.report_card import write_report_card  # loads torch: what can be refused is
    from dear.data.loading import deferred_warnings

    with deferred_warnings(), progress_console().status("writing"):
        predictor = options.load(bundle)
        page = write_report_card(predictor, out, data, purpose=purpose, by=by, dataset=dataset)
    return {"page": page}


def render(result: dict[str, Path], console: PrintableConsole) -> None:
    """Show where the page is."""
    console.say(f"page: {result['page']}")
