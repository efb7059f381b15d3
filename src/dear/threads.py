"""What a process sets before it loads anything else: how Ctrl-C ends it, and what torch reads from the
environment, which is how its threads wait, and how many there are.
"""

import os
import signal
import sys
import warnings
from collections.abc import MutableMapping

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Threads that wait for others sleep, with GNU's OpenMP, which torch has on Linux, and with LLVM's and
Intel's. By default they keep asking, at full load: where the others wait for a core that another process
uses, that takes the core from them for even longer.
"""
PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Large pages for large tensors: the system clears the memory of each new one, which in small pages takes a
third of the processor time of a fit without gradients.
"""
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "DEAR_THREADS")


def end_process(*_: object) -> None:
    """End the process as Ctrl-C ends a command: the handler of a command that has not begun."""
    if "--json" in sys.argv:
        os.write(1, b'{"error": "interrupted", "kind": "Interrupted"}\n')
    os.write(2, b"dear: interrupted\n")
    os._exit(130)


# The installed script imports this first. The processes that it starts have its name, too.
_IS_SCRIPT = os.path.basename(sys.argv[0]).removesuffix(".exe") == __name__.partition(".")[0]
if _IS_SCRIPT and "multiprocessing.spawn" not in sys.modules:
    signal.signal(signal.SIGINT, end_process)


def prepare(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads sleep, large tensors have large pages, and the model's size decide how many threads
    there are, in this process and those that it starts. What the user has set stays.
    """
    if not any(name in environment for name in WAITING):
        environment.update(WAITING)
    for name, value in PAGES.items():
        environment.setdefault(name, value)
    if not any(name in environment for name in COUNTS):
        environment["DEAR_THREADS"] = "auto"


def prepare_process() -> None:
    """`prepare` this process, or warn where torch is loaded already and no longer reads its environment."""
    if "torch" not in sys.modules:
        prepare(os.environ)
    elif not any(name in os.environ for name in WAITING) and (os.cpu_count() or 1) > 1:
        warnings.warn(
            "torch was imported before dear, so its waiting threads take cores from other programs, which "
            "slows dear on a shared machine: import dear first, or set OMP_WAIT_POLICY.",
            stacklevel=4,
        )
