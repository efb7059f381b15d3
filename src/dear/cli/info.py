"""`dear info`: the software and devices of this installation."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console

from dear import __version__
from dear.cli.output import table

PACKAGES = ("torch", "torchvision", "open_clip_torch", "lightning-fabric", "numpy")


@dataclass(frozen=True)
class Info:
    """Versions, devices and threads. A package that is not installed has no version."""

    dear: str
    python: str
    system: str
    packages: dict[str, str | None]
    devices: list[str]
    threads: int


def command() -> Info:
    """Show versions, devices and threads: what to put into a bug report."""
    import torch

    devices = ["cpu"]
    devices += [
        f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return Info(
        dear=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: _version(name) for name in PACKAGES},
        devices=devices,
        threads=torch.get_num_threads(),
    )


def render(result: Info, console: Console) -> None:
    """Show the information as a table."""
    rows: list[tuple[str, object]] = [
        ("dear", result.dear),
        ("python", result.python),
        ("system", result.system),
    ]
    rows += [(name, installed or "not installed") for name, installed in result.packages.items()]
    rows += [("devices", ", ".join(result.devices)), ("threads", result.threads)]
    console.print(table(None, ("what", "value"), rows))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
