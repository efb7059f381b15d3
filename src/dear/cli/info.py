"""`dear info`: what this installation has."""

import platform
from importlib.metadata import version
from typing import Any

from dear import __version__
from dear.cli.output import PrintableConsole, table

PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy")


def command() -> dict[str, Any]:
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


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the information as a table."""
    shown = {**result, "devices": ", ".join(result["devices"]), **result["packages"]}
    del shown["packages"]
    console.print(table(None, ("what", "value"), shown.items()))
