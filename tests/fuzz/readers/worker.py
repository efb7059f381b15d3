"""A process that reads bad files one after another and says how each reading ended.

    python -m tests.fuzz.readers.worker FOLDER SEED FIRST LAST

Case n is of the target n modulo the number of targets. It may take ROOM bytes more
than it has when it begins.
"""

import gc
import json
import logging
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from dear.errors import DearError
from tests.fuzz.readers.mutate import mutated
from tests.fuzz.readers.target import TakenOver, clip
from tests.fuzz.readers.targets import TARGETS

ROOM = 2 * 2**30
SECONDS = 10  # of the processor: a busy machine makes no reading slow
WAIT = 15  # seconds in which one that does not wait for something takes LEAST seconds of the processor
LEAST = 0.005
NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory")


class Slow(BaseException):
    """A reading took longer than it may."""


def _too_slow(*_: Any) -> None:
    raise Slow


class Waiting:
    """Heard each WAIT seconds: a reading that has not moved meanwhile waits, on however busy a machine."""

    def __init__(self) -> None:
        self.before = 0.0

    def begin(self) -> None:
        self.before = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WAIT)

    def __call__(self, *_: Any) -> None:
        now = time.process_time()
        if now - self.before < LEAST:
            raise Slow
        self.before = now
        signal.alarm(WAIT)


WAITING = Waiting()


def _no_alarm() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)


def bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def asked_for_too_much(error: BaseException | None) -> bool:
    """Whether memory ran out, in what was raised or in what it was raised from."""
    while error is not None:
        if (
            isinstance(error, MemoryError)
            or "can't allocate memory" in str(error)
            or "bad_alloc" in str(error)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome(read: Any, file: Path) -> tuple[str, str]:
    """How a reading ended: done, refused, or a fault (traceback, memory, hang), with its words."""
    WAITING.begin()
    try:
        read(file)
    except Slow:
        return "hang", "".join(traceback.format_stack()[-1:])
    except BaseException as error:
        _no_alarm()
        if isinstance(error, KeyboardInterrupt):
            raise
        words = str(error)
        if asked_for_too_much(error):
            return "memory", words[:300]
        if isinstance(error, TakenOver):
            return "taken over", words
        if isinstance(error, DearError):
            if "\n" in words.rstrip("\n") or any(ord(sign) < 32 for sign in words.rstrip("\n")):
                return "ugly", words[:300]
            return ("long", words[:300]) if len(words) > 2000 else ("refused", words[:300])
        return "traceback", "".join(traceback.format_exception(error))[-1500:]
    finally:
        _no_alarm()
    return "done", ""


def main(folder: Path, seed: str, first: int, last: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, WAITING)
    signal.signal(signal.SIGPROF, _too_slow)
    logging.disable()
    clip()
    names = [*TARGETS]
    good: dict[str, tuple[Path, Path]] = {}
    for at, name in enumerate(names):
        place = folder / f"good-{at}"
        place.mkdir()
        good[name] = place, TARGETS[name].make(place)
    gc.collect()
    gc.freeze()  # each collection below then looks only at what a reading left
    for number in range(first, last):
        bound_memory()  # anew: the pools of libraries such as Arrow's keep addresses of earlier readings
        name = names[number % len(names)]
        target, (place, file) = TARGETS[name], good[name]
        rng = random.Random(f"{seed} {name} {number}")
        here = folder / "here" / place.name
        shutil.rmtree(folder / "here", ignore_errors=True)
        shutil.copytree(place, here)
        bad = here / file.relative_to(place)
        done = mutated(target.form, file.read_bytes(), bad, rng)
        if target.seal is not None and bad.is_file() and not bad.is_symlink() and bad.stat().st_size < 2**24:
            try:
                target.seal(bad)
            except Exception:  # what was done to it cannot be sealed
                done += " (not sealed)"
        print(json.dumps({"number": number, "target": name, "done": done}), flush=True)
        before = time.process_time()
        ended, words = outcome(target.read, bad)
        spent = round(time.process_time() - before, 3)
        print(json.dumps({"ended": ended, "words": words, "seconds": spent}), flush=True)
        gc.collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
