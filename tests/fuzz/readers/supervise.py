"""Bad files read by a process that may die or hang: how each of them ended.

python -m tests.fuzz.readers.supervise COUNT [SEED]      prints the counts, and each fault
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

START = 120  # seconds until a process has made the good files
PATIENCE = 15  # seconds for a case whose process does not even hear its own alarm
FAULTS = ("traceback", "hang", "memory", "death", "taken over", "ugly", "long")


@dataclass(frozen=True)
class Case:
    """A bad file: its number, its reader, what was done to it, how the reading ended, in which words."""

    number: int
    target: str
    done: str
    ended: str
    words: str

    def __str__(self) -> str:
        return f"case {self.number}, {self.target} ({self.done}): {self.ended}\n{self.words}"


def attack(count: int, seed: str) -> list[Case]:
    """Read so many bad files; a process that dies or hangs is followed by another."""
    cases: list[Case] = []
    first = 0
    while first < count:
        with tempfile.TemporaryDirectory() as folder:
            cases += _by_one_process(Path(folder), seed, first, count)
        first = cases[-1].number + 1
    return cases


def _by_one_process(folder: Path, seed: str, first: int, count: int) -> list[Case]:
    words = [sys.executable, "-m", "tests.fuzz.readers.worker", str(folder), seed, str(first), str(count)]
    room = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    told = folder / "stderr"
    with (
        told.open("wb") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, env=os.environ | room) as process,
    ):
        assert process.stdout is not None
        begun: dict[str, str] | None = None
        cases: list[Case] = []
        while True:
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE if cases or begun else START)
            line = process.stdout.readline() if ready else b""
            if line.strip():
                said = json.loads(line)
                if "ended" not in said:
                    begun = said
                    continue
                assert begun is not None
                cases.append(Case(said["case"], begun["target"], begun["done"], said["ended"], said["words"]))
                begun = None
                continue
            process.kill()
            process.wait()
            last = told.read_text(errors="replace")[-600:]
            if begun is not None:
                ended = "death" if ready else "hang"
                cases.append(Case(int(begun["case"]), begun["target"], begun["done"], ended, last))
            elif not cases:
                raise RuntimeError(f"the process did not begin: {last}")
            elif cases[-1].number < count - 1:
                raise RuntimeError(f"the process ended between two cases: {last}")
            return cases


if __name__ == "__main__":
    found = attack(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "1")
    for case in found:
        if case.ended in FAULTS:
            print(case, end="\n\n")
    print(Counter(case.ended for case in found))
    for ended in FAULTS:
        by = Counter(case.target for case in found if case.ended == ended)
        print(ended, dict(by))
