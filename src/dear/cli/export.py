"""`dear export`: an adapted model for other runtimes."""

from pathlib import Path

from dear.adapters.results import Exported
from dear.cli.output import PrintableConsole, progress_console
from dear.text import plural

CHECKED = 200  # images on which an export is compared with torch


def command(
    bundle: str,
    *,
    out: Path,
    with_classes: bool = False,
    classes: list[str] | None = None,
    images: list[str] | None = None,
    pretrained: str | None = None,
) -> Exported:
    """Write the adapted image tower, or the whole classifier, as one ONNX file, checked against torch.

    The batch size is dynamic. The input is pixels in [0, 1] at the backbone's size; normalization is
    included. A file whose output differs from torch's by more than 0.001 is not written. It needs the extra
    `export`.

    Args:
        bundle: Folder of the bundle, or OWNER/NAME on the hub.
        out: Output file.
        with_classes: Include the classes: logits and probabilities instead of features.
        classes: Include these classes, by name, instead of the bundle's.
        images: Images or folders of images to check it on, besides random ones; the first 200 of them.
        pretrained: Location of the backbone's weights, if they have moved.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.sources.folder import image_files

    paths = [path for folder in images or () for path in image_files(Path(folder))]
    check_bundle(bundle)
    from dear.adapters.export import export  # loads torch: what can be refused without it is
    from dear.adapters.predictor import Predictor

    with progress_console().status("exporting"):
        predictor = Predictor(bundle, "cpu", pretrained=pretrained, precision="32-true")
        return export(
            predictor,
            out,
            with_classes=with_classes or classes is not None,
            classes=classes,
            images=paths[:CHECKED],
        )


def render(result: Exported, console: PrintableConsole) -> None:
    """Show what was written and how it compares."""
    same = "" if result.same_best is None else f", the best class is the same in {result.same_best}"
    what = "image tower" if result.classes is None else f"classifier of {result.classes} classes"
    console.say(
        f"{result.path}: {what} as ONNX, {result.bytes / 1e6:.2f} MB, outputs {', '.join(result.outputs)}",
        f"against torch on {plural(result.checked, 'image')}: "
        f"largest difference {result.difference:.1e}{same}",
    )
