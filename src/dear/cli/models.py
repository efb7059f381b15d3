"""`dear models` and `dear info`: which open_clip architectures load and for which methods, and what this
installation has.
"""

import platform
from importlib.metadata import version
from typing import Any

from dear import __version__
from dear.cli.output import PrintableConsole, progress_console, table

PACKAGES = ("torch", "torchvision", "open_clip_torch", "lightning-fabric", "numpy")


def command_models(*, names: list[str] | None = None) -> dict[str, Any]:
    """Build every open_clip architecture, without memory for its weights, and check what it can be used for.

    Args:
        names: Architectures to try. By default all that open_clip knows.
    """
    from dear.backbone.choice import architectures
    from dear.backbone.load import try_architecture
    from dear.methods.registry import methods_on

    with progress_console().status("building"):
        models = [try_architecture(name) for name in dict.fromkeys(names or architectures())]
    works = sum(model.works for model in models)
    return {
        "open_clip": version("open_clip_torch"),
        "works": works,
        "refused": len(models) - works,
        "models": models,
        "methods": {
            f"{m.image}, {m.text}": methods_on(m.image, m.text) for m in models if m.image and m.text
        },
    }


def render_models(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the table, the counts, and the methods by what the image and the text tower give."""
    rows = [
        (m.name, m.image or "refused", m.text, m.parameters, m.reason or m.kind) for m in result["models"]
    ]
    console.print(table(None, ("architecture", "images", "texts", "M parameters", "note"), rows))
    console.print("open_clip {open_clip}: {works} work, {refused} are refused".format_map(result))
    for access, methods in result["methods"].items():
        console.say(f"{access} (of images, of texts): {', '.join(methods)}")


def command_info() -> dict[str, Any]:
    """Show versions, devices and threads: what to put into a bug report."""
    import torch

    gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return {
        "dear": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version(name) for name in PACKAGES},
        "devices": ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])],
        "threads": torch.get_num_threads(),
    }


def render_info(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the information as a table."""
    shown = {**result, "devices": ", ".join(result["devices"]), **result["packages"]}
    del shown["packages"]
    console.print(table(None, ("what", "value"), shown.items()))
