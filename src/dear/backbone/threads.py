"""How many threads torch computes with on a CPU: by the size of the model, where a program asks for it.

The environment variable DEAR_THREADS asks: ``auto``, ``auto:N`` (at most N) or a number. The `dear` command
sets it; in a Python program torch's own number stays unless the program sets the variable itself.
Results depend on the number in their last digits, so it never depends on how busy the machine is.
"""

import os
from functools import cache

import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError

VARIABLE = "DEAR_THREADS"
AUTO = "auto"
MOST = 1024
WIDE = 320
"""Width of a tower from which more than one thread is used. Measured on two cores (docs/performance.md): two
threads are 1.4 times as fast at it and 1.07 times as slow beside a busy process; at 256, 1.2 and 1.2. [ours]
"""


def settle(*clips: Clip) -> None:
    """Set torch's threads for models that compute together, if DEAR_THREADS asks for it.

    Raises SettingsError for a value of DEAR_THREADS that is none.
    """
    own = _own()
    if (asked := os.environ.get(VARIABLE)) is None:
        return
    word, _, number = asked.partition(":")
    if word != AUTO:
        torch.set_num_threads(_number(word))
        return
    widest = max(tower.width for clip in clips for tower in (clip.image, clip.text))
    torch.set_num_threads(1 if widest < WIDE else _number(number) if number else own)


def ask_for(threads: int) -> None:
    """Ask for a number of threads in this process and those it starts. Raises SettingsError."""
    if not 1 <= threads <= MOST:
        raise SettingsError(f"threads is {threads}: it must be between 1 and {MOST}.")
    os.environ[VARIABLE] = str(threads)


def share(jobs: int) -> int:
    """The threads of one of so many processes: its part of torch's own number, or the number asked for."""
    asked = os.environ.get(VARIABLE, AUTO)
    return max(1, _own() // jobs) if asked.startswith(AUTO) else _number(asked)


def use_share(threads: int) -> None:
    """Compute with so many threads in a worker process, and with fewer for a small model where that is asked
    for.
    """
    torch.set_num_threads(threads)
    if os.environ.get(VARIABLE, "").startswith(AUTO):
        os.environ[VARIABLE] = f"{AUTO}:{threads}"


@cache
def _own() -> int:
    """Torch's own number, as it was when it was first asked for: before any was set here."""
    return torch.get_num_threads()


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST):
        raise SettingsError(
            f"{VARIABLE} asks for {text!r} threads: set it to {AUTO}, {AUTO}:4 or a number up to {MOST}."
        )
    return int(text)
