"""Peak memory of a run, in MiB: resident memory of the process, and allocated memory of the GPU."""

import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def start_counting() -> bool:
    """Reset the peaks. Returns whether the resident peak could be; else it is that of the process so far."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:  # not Linux, or not permitted
        return False
    return True


def peak() -> dict[str, float | None]:
    """Peaks since ``start_counting``: "resident" (None if the system does not report it) and "gpu" (None
    without a GPU).
    """
    gpu = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None
    resident = _resident()
    return {
        "resident": None if resident is None else round(resident, 1),
        "gpu": None if gpu is None else round(gpu, 1),
    }


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
