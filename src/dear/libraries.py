"""Load libraries that look for their files in the current folder, which may be a stranger's, in another one,
and those that tell their makers of their users, in silence.

NVIDIA's cuSPARSELt, which torch loads, and a library of triton look for others there, such as libcuda.so.1,
whose code would run; matplotlib and wandb read their settings there.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

LOOKING_AROUND = frozenset({"matplotlib", "torch", "triton", "wandb"})


SILENT = {"ORT_DISABLE_TELEMETRY": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""Variables by which onnxruntime and Ray send no reports; onnxruntime's name Python's path."""


class _Elsewhere(MetaPathFinder):
    """Finds these libraries, and lets them be loaded in Python's own folder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in LOOKING_AROUND else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with in_pythons_folder():
                load(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def load_elsewhere() -> None:
    """Load these libraries elsewhere from now on. Does nothing on Windows, where they do not look around."""
    if os.name != "nt" and not any(isinstance(finder, _Elsewhere) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Elsewhere())


def silence_reports() -> None:
    """Have these libraries send no reports, unless the user has set the variables. Before they are loaded."""
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def in_pythons_folder() -> Iterator[None]:
    """Context in which Python's own folder is the current one."""
    try:
        here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))  # it may not be readable
    except OSError:  # it was removed: nothing can be found in it
        yield
        return
    try:
        os.chdir(sys.prefix)
        yield
    finally:
        os.fchdir(here)
        os.close(here)


if sys.flags.safe_path:  # as in the processes that a command begins
    load_elsewhere()
