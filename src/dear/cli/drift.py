"""`dear drift`: see whether images of today look like those that a bundle was made for."""

from pathlib import Path
from typing import Any

from dear.cli.options import BundleName, BundleOptions
from dear.cli.output import PrintableConsole, progress_console
from dear.cli.parsing import Flat
from dear.data.settings import DataSettings
from dear.reading.files import expanded
from dear.text import plural

SHOWN = 5  # images that are printed


def command(
    bundle: BundleName,
    images: Path,
    *,
    reference: Path | None = None,
    out: Path | None = None,
    seed: int = 1,
    options: Flat[BundleOptions] = BundleOptions(),
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """See whether new images look like those that a classifier was made for, without labels.

    The shares that are none of these and that are decided, and the mean probability, are compared with what
    was measured at the fit. With --reference, a test by permutation compares the features of both, and their
    brightness and sharpness. Of images of the same kind it finds a difference in 5 of 100 cases.

    Args:
        images: Folder, archive or table of new images, such as those of a month.
        reference: Folder, archive or table of images to compare with: those of the fit, or of a month that
            was fine.
        out: Folder to write a page to, with the images that are furthest from the reference.
        seed: Seed of the permutations, and of the images that are drawn if there are more than 2000.
        dataset: How files are read. --dataset.group says which images belong together.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.names import require_folder

    check_bundle(bundle)
    require_folder(images)
    require_folder(reference)
    from dear.adapters.drift import PAGE, detect_drift  # loads torch: what can be refused without it is

    with progress_console().status("comparing"):
        drift = detect_drift(options.load(bundle), images, reference, out, dataset=dataset, seed=seed)
    page = None if out is None else expanded(out) / PAGE
    return {**vars(drift), "verdict": drift.verdict, "page": page}


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show what is unusual, and the furthest images."""
    kind = "least sure of" if result["p"] is None else "furthest"
    console.say(
        f"{plural(result['images'], 'image')} in {plural(result['groups'], 'group')}",
        *result["verdict"],
        f"{kind}: {', '.join('/'.join(Path(file).parts[-2:]) for file in result['furthest'][:SHOWN])}",
        *([f"page: {result['page']}"] if result["page"] else []),
    )
