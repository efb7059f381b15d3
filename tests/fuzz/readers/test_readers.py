"""Bad files for every reader: each is refused in one line, in little time and memory, or is good."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fuzz.readers.supervise import FAULTS, attack

TENTH, SHORT, LONG = 112, 1_120, 28_000
"""Bad files of `make test`, `make test-long` and `make fuzz`: each the first of the next."""


pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="needs bounds on memory, and alarms"),
    pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc"),
]


def test_a_tenth_of_the_bad_files() -> None:
    read(TENTH, processes=1)


@pytest.mark.long
def test_bad_files(fuzz_long: bool) -> None:
    read(LONG if fuzz_long else SHORT, processes=2)


def read(count: int, processes: int) -> None:
    """Read so many bad files; none may end in a fault."""
    # Numbers in turn, so that a file is the same however many processes there are.
    ends = [count * part // processes for part in range(processes + 1)]
    with ThreadPoolExecutor(processes) as pool:
        parts = pool.map(lambda first, last: attack(first, last, "1"), ends, ends[1:])
        cases = [case for part in parts for case in part]
    assert [case.number for case in cases] == [*range(count)]
    faults = [str(case) for case in cases if case.ended in FAULTS]
    assert not faults, f"{len(faults)} of {count} bad files:\n\n" + "\n\n".join(faults[:20])
    # That the files were bad, and that the good ones they were made of are read.
    refused = sum(case.ended == "refused" for case in cases)
    assert refused > count / 3
