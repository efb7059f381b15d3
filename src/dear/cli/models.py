"""`dear models` and `dear info`: which open_clip architectures load and for which methods, and what this
installation has.
"""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dear import __version__
from dear.cli.output import progress_console, table

if TYPE_CHECKING:
    from dear.backbone.catalogue import Verdict

PACKAGES = ("torch", "torchvision", "open_clip_torch", "lightning-fabric", "numpy")


@dataclass(frozen=True)
class Tried:
    """The architectures that were tried, with the numbers of those that work and of those that are refused.

    Attributes:
        methods: Those that run on an architecture, by what its image and text tower give
            ("features, layers").
    """

    open_clip: str
    works: int
    refused: int
    models: "list[Verdict]"
    methods: dict[str, list[str]]


def command_models(*, names: list[str] | None = None) -> Tried:
    """Build every open_clip architecture, without memory for its weights, and check what it can be used for.

    Args:
        names: Architectures to try. By default all that open_clip knows.
    """
    from dear.backbone.catalogue import list_architectures, try_architecture
    from dear.methods.registry import methods_on

    with progress_console().status("building"):
        models = [try_architecture(name) for name in dict.fromkeys(names or list_architectures())]
    accesses = dict.fromkeys((m.image, m.text) for m in models if m.image and m.text)
    methods = {f"{image}, {text}": methods_on(image, text) for image, text in accesses if image and text}
    works = sum(model.works for model in models)
    return Tried(version("open_clip_torch"), works, len(models) - works, models, methods)


def render_models(result: Tried, console: Console) -> None:
    """Show the table and the counts."""
    rows = [
        (m.name, m.image or "refused", m.text, m.parameters and round(m.parameters, 1), m.reason or m.kind)
        for m in result.models
    ]
    columns = ("architecture", "images", "texts", "M parameters", "note")
    console.print(table(None, columns, rows), markup=False)
    console.print(f"open_clip {result.open_clip}: {result.works} work, {result.refused} are refused")
    for access, methods in result.methods.items():
        console.print(f"{access} (of images, of texts): {', '.join(methods)}", markup=False)


def command_info() -> dict[str, Any]:
    """Show versions, devices and threads: what to put into a bug report."""
    import torch

    gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return {
        "dear": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])],
        "threads": torch.get_num_threads(),
    }


def render_info(result: dict[str, Any], console: Console) -> None:
    """Show the information as a table."""
    packages = {name: installed or "not installed" for name, installed in result["packages"].items()}
    shown = {**result, "devices": ", ".join(result["devices"]), **packages}
    rows = [(name, value) for name, value in shown.items() if name != "packages"]
    console.print(table(None, ("what", "value"), rows))


def _version(name: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
