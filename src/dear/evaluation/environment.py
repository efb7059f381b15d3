"""What a record says of the machine: its software, and the peak memory of a run in MiB, that of the process
and that of the GPU.
"""

import hashlib
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from dear import __version__

PACKAGE = Path(__file__).parents[1]
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


_version = cache(version)


@cache
def code_version() -> str:
    """12 hexadecimal digits that change with the package's code: SHA-256 over its Python files, in order."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def environment() -> dict[str, str | int]:
    """The software and machine that computed the results."""
    return {
        "dear": __version__,
        "code": code_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "open_clip": _version("open_clip_torch"),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def start_counting(device: torch.device | None = None) -> bool:
    """Reset the peaks, that of memory of a GPU on ``device``, by default torch's current one. Returns whether
    the resident peak could be; else it is that of the process so far.
    """
    if _counts(device):
        torch.cuda.reset_peak_memory_stats(device)
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:  # not Linux, or not permitted
        return False
    return True


def peak(device: torch.device | None = None) -> dict[str, float | None]:
    """Peaks since ``start_counting``: "resident" (None if the system does not report it) and "gpu" (None
    without a GPU, and if another device is computed on).
    """
    gpu = torch.cuda.max_memory_allocated(device) / 2**20 if _counts(device) else None
    resident = _resident()
    return {
        "resident": None if resident is None else round(resident, 1),
        "gpu": None if gpu is None else round(gpu, 1),
    }


def _counts(device: torch.device | None) -> bool:
    return torch.cuda.is_available() and (device is None or device.type == "cuda")


def _resident() -> float | None:
    try:
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        try:
            import resource
        except ModuleNotFoundError:  # Windows has none
            return None
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
