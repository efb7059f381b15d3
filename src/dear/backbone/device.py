"""The device that a CLIP is computed on and, for a CPU, how many threads torch uses there.

The environment variable DEAR_THREADS asks for threads: ``auto``, ``auto:N`` (at most N) or a number. The
`dear` command sets it. In a Python program torch's own number stays unless the program sets the variable.
The last digits of results depend on the number, so it never depends on how busy the machine is.
"""

import os
from functools import cache

import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError

VARIABLE = "DEAR_THREADS"
AUTO = "auto"
MAX_THREADS = 1024
WIDE = 320
"""Width of a tower from which more than one thread is used. Measured on two cores (docs/performance.md): two
threads are 1.4 times as fast there, and 1.07 times as slow beside a busy process; at 256, 1.2 and 1.2. [ours]
"""


def find_device(name: str | torch.device) -> torch.device:
    """The device of this name; "auto" is the GPU if there is one. Raises SettingsError if a GPU is named but
    torch finds none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"the device {name} was requested, but torch finds no GPU: choose auto or cpu.")
    return device


def set_threads(*clips: Clip) -> None:
    """Set torch's number of threads for models that compute together, if DEAR_THREADS asks for it.

    Raises SettingsError for an invalid value of DEAR_THREADS.
    """
    threads, request = _torch_threads(), os.environ.get(VARIABLE)
    if request is None:
        return
    word, _, limit = request.partition(":")
    if limit or word != AUTO:
        threads = _parse_threads(limit or word)
    widest = max(tower.width for clip in clips for tower in (clip.image, clip.text))
    torch.set_num_threads(1 if word == AUTO and widest < WIDE else threads)


def request_threads(threads: int) -> None:
    """Ask for a number of threads in this process and those it starts. Raises SettingsError."""
    os.environ[VARIABLE] = str(_parse_threads(str(threads)))


def threads_per_job(jobs: int) -> int:
    """Threads for each of ``jobs`` processes: its share of torch's own number, or the number asked for."""
    request = os.environ.get(VARIABLE, AUTO)
    return max(1, _torch_threads() // jobs) if request.startswith(AUTO) else _parse_threads(request)


def use_threads(threads: int) -> None:
    """Compute with this many threads in a worker process; with fewer for a small model if DEAR_THREADS is
    ``auto``.
    """
    torch.set_num_threads(threads)
    if os.environ.get(VARIABLE, "").startswith(AUTO):
        os.environ[VARIABLE] = f"{AUTO}:{threads}"


@cache
def _torch_threads() -> int:
    """Torch's own number: what it was on the first call, before any was set here."""
    return torch.get_num_threads()


def _parse_threads(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise SettingsError(f"threads is {text!r}: it must be {AUTO} or a number from 1 to {MAX_THREADS}.")
    return int(text)
