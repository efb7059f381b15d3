"""A process that has imported everything and runs commands of `dear` in forks of itself, which start in no
time, and has them killed, cut off from disk or told to end at a chosen moment.

As a program it takes orders from stdin, a JSON object a line, and answers each with one.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

ROOT = Path(__file__).parents[3]
WATCHED = (
    "data/sources/archive.py", "writing.py", "data/images/photos.py",
    "evaluation/launch/claims.py",
    "evaluation/runs.py", "report/folder.py", "retrieval/build.py",
    "retrieval/catalogue.py", "retrieval/database.py", "retrieval/vectors.py", "adapters/export.py",
    "adapters/fit.py", "adapters/bundle_files.py", "training/checkpoint.py", "training/loop.py",
    "training/trunks.py",
)  # fmt: skip
"""The modules that change files, between whose lines commands are killed."""

Moment = tuple[str, int, int]
"""Before a line of a watched module is run for the so-manieth time: module, line, time from 1."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, or the negative number of a signal; what it said on both streams."""

    code: int
    said: str
    passed: tuple[Moment, ...] = ()


class Launcher:
    """The process, from outside."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name if __spec__ else __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        *,
        at: Moment | None = None,
        after: float | None = None,
        signal: int = signal.SIGKILL,
        most: int | None = None,
        watch: bool = False,
    ) -> Ended:
        """Run a command in a folder.

        With ``at`` it gets the ``signal`` at that moment, with ``after`` it is killed so many seconds after
        its start; ``most`` is the size in bytes beyond which no file grows, as on a full disk. With ``watch``
        the moments that it passed are told.
        """
        order = {
            "words": [*words], "folder": str(folder), "at": at, "after": after, "signal": signal,
            "most": most, "watch": watch,
        }  # fmt: skip
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        return Ended(told["code"], told["said"], tuple((m, line, time) for m, line, time in told["passed"]))


class Watch:
    """Follows the lines of the watched modules, and sends this process a signal at a moment."""

    def __init__(self, at: Moment | None, number: int) -> None:
        self.at, self.number = at, number
        self.passed: Counter[tuple[str, int]] = Counter()
        self.modules = {str((ROOT / "src" / "dear" / name).resolve(strict=True)): name for name in WATCHED}

    def call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        return self.line if frame.f_code.co_filename in self.modules else None

    def line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            place = self.modules[frame.f_code.co_filename], frame.f_lineno
            self.passed[place] += 1
            if self.at == (*place, self.passed[place]):
                os.kill(os.getpid(), self.number)
        return self.line


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Run a command in a fork and wait for its end."""
    (heard, said), (counted, count) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.dup2(said, 1)
            os.dup2(said, 2)
            code = _child(order, count)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(said)
    os.close(count)
    with os.fdopen(heard, encoding="utf-8", errors="replace") as file:
        text = file.read()
    with os.fdopen(counted, encoding="utf-8") as file:
        passed = json.loads(file.read() or "[]")
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "said": text, "passed": passed}


def _child(order: dict[str, Any], count: int) -> int:
    from dear.cli.main import main

    os.chdir(order["folder"])
    watch = Watch(order["at"] and tuple(order["at"]), order["signal"])
    if order["most"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["most"], resource.RLIM_INFINITY))
    if order["after"] is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process as suddenly as SIGKILL
        signal.setitimer(signal.ITIMER_REAL, order["after"])
    if order["at"] or order["watch"]:
        sys.settrace(watch.call)
    code = main(order["words"])
    sys.settrace(None)
    if order["watch"]:
        passed = [(*place, time) for place, times in watch.passed.items() for time in sorted({1, times})]
        with os.fdopen(count, "w") as file:
            json.dump(passed, file)
    return code


def serve() -> None:
    """Import what commands need, so that forks do not, and obey."""
    import matplotlib.backends.backend_svg  # noqa: F401
    import torch

    import dear.adapters.fit
    import dear.evaluation.runs
    import dear.report.folder
    import dear.retrieval.build  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
