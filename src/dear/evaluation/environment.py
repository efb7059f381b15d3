"""What a record says of the machine: its software, and the peak memory of the process and the GPU (MiB)."""

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from dear import __version__

PACKAGE = Path(__file__).parents[1]
PROCESS = Path("/proc/self")
RESET_PEAK = "5"  # for clear_refs


@cache
def code_version() -> str:
    """12 hexadecimal digits that change with the package's code: SHA-256 over its Python files, in order."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _versions() -> dict[str, str]:
    return {
        "dear": __version__,
        "code": code_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "open_clip": version("open_clip_torch"),
        "machine": platform.machine(),
    }


def environment() -> dict[str, str | int]:
    """The software and machine that computed the results."""
    return {**_versions(), "threads": torch.get_num_threads()}


def start_counting(device: torch.device | None = None) -> bool:
    """Reset the peaks, that of memory of a GPU on ``device``, by default torch's current one. Returns whether
    the resident peak could be (on Linux, if permitted); else it is that of the process so far.
    """
    if _is_gpu(device):
        torch.cuda.reset_peak_memory_stats(device)
    try:
        (PROCESS / "clear_refs").write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak(device: torch.device | None = None) -> dict[str, float | None]:
    """Peaks since ``start_counting``: "resident" (None if the system does not report it) and "gpu" (None
    without a GPU, and if another device is computed on).
    """
    try:
        lines = (PROCESS / "status").read_text().splitlines()
        resident = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        resident = None
    gpu = torch.cuda.max_memory_allocated(device) / 2**20 if _is_gpu(device) else None
    return {
        name: None if value is None else round(value, 1)
        for name, value in {"resident": resident, "gpu": gpu}.items()
    }


def _is_gpu(device: torch.device | None) -> bool:
    return torch.cuda.is_available() and (device is None or device.type == "cuda")
