"""`dear refit`: fit a classifier again, and let the new one take its place if it is not worse."""

from pathlib import Path
from typing import Any

from dear.cli.options import DataName, Device
from dear.cli.output import PrintableConsole
from dear.cli.parsing import command_line
from dear.data.settings import DataSettings
from dear.reading.files import expanded


def command(
    bundle: Path,
    data: DataName,
    more: list[str] = [],  # noqa: B006 (never changed)
    *,
    force: bool = False,
    out: Path | None = None,
    roles: Path | None = None,
    unlabeled: Path | None = None,
    add_classes: list[str] | None = None,
    device: Device = "auto",
    dataset: DataSettings = DataSettings(),
) -> Any:
    """Fit a classifier again, to its data with the corrections and images that came in since.

    It is fitted as it was before: its backbone, class names, method with its settings, shots, seed, and what
    it promises stay. Give other options again, such as --dataset.group. The new classifier takes the place of
    the present one if it is not clearly worse, and the present one is kept beside it. Otherwise the present
    one stays, the new one lies beside it, and the exit code is 1.

    Both are compared on images that neither was fitted on, if there are any: test images, or images that are
    new to the present one, each left out of the new fit in turn. What both promise by cross-validation is
    compared too.

    Args:
        bundle: Folder of the classifier.
        more: Further data that is added to the first.
        force: Let the new classifier take the place whatever the comparison says.
        out: Folder to write the page of the comparison to. By default no page is written.
        roles: Role table of the backbone, as for dear fit.
        unlabeled: Folder of images without labels, as for dear fit.
        add_classes: Further classes, by name alone, without images. Separate the names by commas.
        device: Where to compute. auto uses the GPU if there is one.
        dataset: How the data set is read.
    """
    from dear.adapters.bundle_config import read_config
    from dear.cli.progress import StepProgress
    from dear.data.names import check_name, require_folder

    read_config(expanded(bundle))
    for source in (data, *more):
        check_name(source, dataset)
    require_folder(unlabeled)
    from dear.adapters.refit import refit  # loads torch: what can be refused without it is

    with StepProgress() as progress:
        return refit(
            bundle,
            [data, *more] if more else data,
            force=force,
            out=out,
            roles=roles,
            unlabeled=unlabeled,
            add_classes=add_classes or (),
            dataset=dataset,
            device=device,
            progress=progress,
            command=command_line.get(),
        )


def render(result: Any, console: PrintableConsole) -> None:
    """Say what was compared, and which classifier is in place."""
    console.say(*result.verdict)
