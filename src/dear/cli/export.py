"""`dear export`: an adapted model for other runtimes."""

from pathlib import Path

from dear.adapters.results import Exported
from dear.cli.options import BundleName, MethodClasses
from dear.cli.output import PrintableConsole, progress_console
from dear.text import plural

CHECKED = 200  # images on which an export is compared with torch


def command(
    bundle: BundleName,
    *,
    out: Path,
    classes: list[str] | None = None,
    images: list[str] | None = None,
    pretrained: str | None = None,
    method: MethodClasses = None,
) -> Exported:
    """Write a classifier as one ONNX file: logits, probabilities, none of these, and features of images.

    The input is pixels in [0, 1] at the backbone's size, in batches of any size; the file normalizes them.
    Before it is written, its output is compared with torch's, and must not differ by more than 0.001. This
    needs the extra `export`.

    Args:
        out: File to write.
        classes: Include these classes in place of the bundle's: names, separated by commas.
        images: Images, or folders of them, to compare the outputs on, besides random ones. The first 200 are
            used.
        pretrained: Where the backbone's weights are, if they have moved since the fit.
    """
    del method  # only imported
    from dear.adapters.bundle_config import check_bundle
    from dear.data.sources.folder import image_files

    paths = [path for folder in images or () for path in image_files(Path(folder))]
    check_bundle(bundle)
    from dear.adapters.export import export  # loads torch: what can be refused without it is
    from dear.adapters.predictor import Predictor

    with progress_console().status("exporting"):
        predictor = Predictor(bundle, "cpu", pretrained=pretrained, precision="32-true")
        return export(predictor, out, classes=classes, images=paths[:CHECKED])


def render(result: Exported, console: PrintableConsole) -> None:
    """Show what was written and how it compares."""
    same = "" if result.same_best is None else f", the best class is the same in {result.same_best}"
    what = "image tower" if result.classes is None else f"classifier of {result.classes} classes"
    console.say(
        f"{result.path}: {what} as ONNX, {result.bytes / 1e6:.2f} MB, outputs {', '.join(result.outputs)}",
        f"against torch on {plural(result.checked, 'image')}: "
        f"largest difference {result.difference:.1e}{same}",
    )
