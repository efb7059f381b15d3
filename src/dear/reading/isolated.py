"""Read a stranger's file in a process of its own, a fork of this one, with limits on time and memory.

A library in native code may hang on a forged file, fill the memory, or end its process: here this is the
fork. Windows has no forks: there the file is read in this process, without these limits.
"""

import faulthandler
import os
import pickle
import select
import signal
import traceback
import warnings
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dear.errors import DearError
from dear.limits import LimitError
from dear.reading.files import ReadingError

Result = TypeVar("Result")
STDERR = 2
PATIENCE = 30
"""Seconds of the clock for each of the processor: other processes may have it meanwhile."""


def isolated(read: Callable[[], Result], where: object, *, seconds: float, memory: int) -> Result:
    """The result of ``read``, or the DearError that it raises; of its other effects only those on the disk
    remain.

    Args:
        read: its result is sent to this process by pickle.
        where: the input, for messages.
        seconds: the most time of the processor.
        memory: the most bytes beyond those of this process (on Linux).

    Raises LimitError for what takes more, ReadingError for what ends the process.
    """
    if not hasattr(os, "fork"):
        return read()
    bound = ceil(seconds)
    receiver, sender = os.pipe()
    with warnings.catch_warnings():  # about threads: the fork takes none of their locks
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _send(read, sender, bound, memory)
    os.close(sender)
    try:
        content = _received(receiver, where, PATIENCE * (1 + bound))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == -signal.SIGXCPU:
        raise LimitError(f"{where}: it takes more than {bound:,} s to read, far more than its size.")
    megabytes = memory // 2**20
    if ended:
        reason = signal.Signals(-ended).name if ended < 0 else f"code {ended}"
        raise ReadingError(
            where,
            f"it is damaged, or takes more than {megabytes:,} MiB of memory to read (ending with {reason})",
        )
    result, error_type, text, facts = pickle.loads(content)
    if error_type is None:
        return result  # type: ignore[no-any-return]
    if error_type is MemoryError:
        raise LimitError(f"{where}: it takes more than {megabytes:,} MiB of memory to read.")
    error = error_type.__new__(error_type)
    Exception.__init__(error, text)
    error.__dict__.update(facts)
    raise error


def _received(receiver: int, where: object, patience: float) -> bytes:
    """What the process sends until its end. Raises ReadingError if it stands still."""
    parts = list[bytes]()
    with open(receiver, "rb", buffering=0) as answer:
        while select.select([answer], [], [], patience)[0]:
            if not (part := answer.read(2**20)):
                return b"".join(parts)
            parts.append(part)
    raise ReadingError(where, f"its reader has stood still for {patience:,.0f} s: repeat the command")


def _send(read: Callable[[], Any], sender: int, seconds: int, memory: int) -> NoReturn:
    """Read, send the result or the error, and end this process."""
    code = 1
    try:
        _limit_process(seconds, memory)
        answer: tuple[Any, type[BaseException] | None, str, dict[str, Any]]
        try:
            answer = read(), None, "", {}
        except DearError as error:
            answer = None, type(error), str(error), error.__dict__
        except MemoryError:
            answer = None, MemoryError, "", {}
        except Exception:  # a bug
            answer = None, RuntimeError, traceback.format_exc(), {}
        with open(sender, "wb") as pipe:
            pickle.dump(answer, pipe)
        code = 0
    finally:
        os._exit(code)


def _limit_process(seconds: int, memory: int) -> None:
    import resource

    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)  # for what a library prints when it aborts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, seconds)
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        _lower(resource.RLIMIT_DATA, int(lines["VmData"].split()[0]) * 1024 + memory)


def _lower(kind: int, most: int) -> None:
    """Lower a limit of this process; the hard one stays, beyond which it would be killed."""
    import resource

    soft, hard = resource.getrlimit(kind)
    bounds = [bound for bound in (most, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(bounds), hard))
