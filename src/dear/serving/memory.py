"""The memory of a process that lives long. Light to import: it must run before torch is loaded."""

import ctypes
from contextlib import suppress

# Of glibc's malloc.h: what is freed at the end of a heap returns to the system beyond so many bytes; parts
# that are mapped on their own, and return as soon as they are freed; heaps of all threads.
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
SETTINGS = {TRIM_THRESHOLD: 16 * 2**20, MMAP_THRESHOLD: 8 * 2**20, ARENA_MAX: 2}


def return_freed_memory() -> None:
    """Let glibc return the pixels of large pictures once they are freed. By itself it keeps blocks of up to
    32 MiB in the heap of the thread that decoded them, of which there are up to eight for each core. Does
    nothing with other C libraries.
    """
    with suppress(OSError, AttributeError, TypeError):
        for name, value in SETTINGS.items():
            ctypes.CDLL(None).mallopt(name, value)
