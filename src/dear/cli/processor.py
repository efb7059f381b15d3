"""How a command uses the processor: set before torch is loaded, in the environment, so that worker processes
do the same. What the user has set stays.
"""

from collections.abc import MutableMapping

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Threads that wait for others sleep, with GNU's OpenMP, which torch has on Linux, and with LLVM's and
Intel's. By default they keep asking, at full load: where the others wait for a core that another process
uses, that takes the core from them for even longer.
"""
COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "DEAR_THREADS")


def prepare(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads sleep, and let the model's size decide how many threads there are."""
    if not any(name in environment for name in WAITING):
        environment.update(WAITING)
    if not any(name in environment for name in COUNTS):
        environment["DEAR_THREADS"] = "auto"
