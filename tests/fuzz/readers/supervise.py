"""Bad files read by a process that may die or hang: how each of them ended.

python -m tests.fuzz.readers.supervise COUNT [SEED]      prints each fault as it comes, then counts
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

START = 300  # seconds until a process has made the good files, and between two cases
PATIENCE = 900  # seconds for a case whose process does not even hear its own alarms
FAULTS = ("traceback", "hang", "memory", "death", "taken over", "ugly", "long")


@dataclass(frozen=True)
class Case:
    """A bad file: its number, its reader, what was done to it, how the reading ended and in which words.

    Attributes:
        seconds: of the processor that it took.
    """

    number: int
    target: str
    done: str
    ended: str
    words: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"case {self.number}, {self.target} ({self.done}): {self.ended}\n{self.words}"


def attack(first: int, last: int, seed: str, tell: Callable[[Case], None] = lambda _: None) -> list[Case]:
    """Read the bad files of these numbers; a process that dies or hangs is followed by another."""
    cases: list[Case] = []
    while first < last:
        with tempfile.TemporaryDirectory() as folder:
            cases += _by_one_process(Path(folder), seed, first, last, tell)
        first = cases[-1].number + 1
    return cases


def _by_one_process(
    folder: Path, seed: str, first: int, last: int, tell: Callable[[Case], None]
) -> list[Case]:
    words = [sys.executable, "-m", "tests.fuzz.readers.worker", str(folder), seed, str(first), str(last)]
    room = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    stderr = folder / "stderr"
    cases: list[Case] = []
    with (
        stderr.open("wb") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, env=os.environ | room) as process,
    ):
        lines: Queue[bytes] = Queue()
        Thread(target=_listen, args=(process.stdout, lines), daemon=True).start()
        begun: dict[str, Any] | None = None
        while True:
            try:
                line, silent = lines.get(timeout=PATIENCE if begun else START), False
            except Empty:
                line, silent = b"", True
            said = json.loads(line) if line else {}
            if "done" in said:
                begun = said
                continue
            if begun is not None:
                how = said or {
                    "ended": "hang" if silent else "death",
                    "words": stderr.read_text(errors="replace")[-600:],
                }
                cases.append(Case(**begun | how))
                tell(cases[-1])
                begun = None
            if said:
                continue
            process.kill()
            if not cases or (silent and cases[-1].number < last - 1):
                raise RuntimeError(f"the process did not begin: {stderr.read_text(errors='replace')[-600:]}")
            return cases


def _listen(stream: Any, lines: "Queue[bytes]") -> None:
    """Hand on the lines of a process, and an empty one at its end."""
    for line in stream:
        lines.put(line)
    lines.put(b"")


if __name__ == "__main__":

    def show(case: Case) -> None:
        if case.ended in FAULTS:
            print(case, end="\n\n", flush=True)

    found = attack(0, int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "1", show)
    print(Counter(case.ended for case in found), f"slowest {max(case.seconds for case in found):.1f} s")
    spent = {name: sum(c.seconds for c in found if c.target == name) for name in {c.target for c in found}}
    print({name: round(total, 1) for name, total in sorted(spent.items(), key=lambda one: -one[1])})
    for ended in FAULTS:
        by = Counter(case.target for case in found if case.ended == ended)
        print(ended, dict(by))
