"""Read a stranger's file in a process of its own, a fork of this one, with limits on time and memory.

A library in native code may hang on a forged file, fill the memory, or end its process: here this is the
fork. Other systems than Linux lack forks, or libraries that bear them: there the file is read in this
process, without these limits.
"""

import ctypes
import faulthandler
import gc
import os
import pickle
import re
import select
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dear.errors import DearError
from dear.limits import LimitError
from dear.reading.files import ReadingError

Result = TypeVar("Result")
_forking = threading.Lock()
STDERR = 2
STATUS, DESCRIPTORS = Path("/proc/self/status"), Path("/proc/self/fd")
PARENT_DEATH = 1  # PR_SET_PDEATHSIG of linux/prctl.h
THREADS: Any = ("ignore", re.compile(r".*fork"), DeprecationWarning, re.compile(re.escape(__name__)), 0)
"""A filter of Python's warning of threads, none of whose locks the fork takes."""
PATIENCE = 30
"""Seconds of the clock for each of the processor: other processes may have it meanwhile."""


def isolated(
    read: Callable[[], Result], where: object, *, seconds: int, memory: int, remedy: str = ""
) -> Result:
    """The result of ``read``, or the DearError that it raises; of its other effects only those on the disk
    remain.

    Args:
        read: its result is sent to this process by pickle.
        where: the input, for messages.
        seconds: the most time of the processor.
        memory: the most bytes beyond those of this process.
        remedy: what the user can do about too much memory.

    Raises LimitError for what takes more, ReadingError for what ends the process.
    """
    if sys.platform != "linux":
        return read()
    parent = os.getpid()
    with ExitStack() as stack:
        with _forking:  # a fork of another thread would keep the sender open
            receiver, sender = os.pipe()
            answers = stack.enter_context(open(receiver, "rb", buffering=0))
            with open(sender, "wb", buffering=0) as sent:
                try:
                    child = _fork()
                except OSError as error:
                    raise ReadingError(where, f"no process can be started to read it ({error})") from error
                if not child:
                    _forking.release()  # the thread is the same
                    _send(read, where, sent, parent, seconds, memory)
        content, ended = _answer(child, answers, where, PATIENCE * (1 + seconds))
    if ended == -signal.SIGXCPU:
        raise LimitError(f"{where}: it takes more than {seconds:,} s to read, far more than its size.")
    megabytes = memory // 2**20
    if ended:
        reason = signal.Signals(-ended).name if ended < 0 else f"code {ended}"
        raise ReadingError(
            where,
            f"it is damaged, or takes more than {megabytes:,} MiB of memory to read (ending with {reason}). "
            f"{remedy}".strip(),
        )
    result, error_type, text, facts = pickle.loads(content)
    if error_type is None:
        return result  # type: ignore[no-any-return]
    if error_type is MemoryError:
        raise LimitError(f"{where}: it takes more than {megabytes:,} MiB of memory to read. {remedy}".strip())
    raised = error_type.__new__(error_type)
    Exception.__init__(raised, text)
    raised.__dict__.update(facts)
    raise raised


def _fork() -> int:
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    if THREADS not in filters:  # `warnings.catch_warnings` would change the filters of all threads
        filters.insert(0, THREADS)
    return os.fork()


def _answer(child: int, answers: FileIO, where: object, patience: float) -> tuple[bytes, int]:
    """What the process sends until its end, and how it ends. Raises ReadingError if it stands still."""
    parts = list[bytes]()
    poll = select.poll()  # unlike select, for any number of open files
    poll.register(answers, select.POLLIN)
    try:
        while poll.poll(1000 * patience):
            if not (part := answers.read(2**20)):
                break
            parts.append(part)
        else:
            raise ReadingError(where, f"its reader has stood still for {patience:,.0f} s: repeat the command")
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitpid(child, 0)[1]
    return b"".join(parts), os.waitstatus_to_exitcode(status)


def _send(
    read: Callable[[], Any], where: object, sent: FileIO, parent: int, seconds: int, memory: int
) -> NoReturn:
    """Read, send the result or the error, and end this process."""
    code = 1
    try:
        _limit_process(parent, seconds, memory)
        try:
            answer = pickle.dumps((read(), None, "", {}))
        except DearError as error:
            answer = pickle.dumps((None, type(error), str(error), error.__dict__))
        except MemoryError:
            answer = pickle.dumps((None, MemoryError, "", {}))
        except RecursionError:  # also of pickle, for what a library has read
            fault = ReadingError(where, "it is nested too deeply")
            answer = pickle.dumps((None, ReadingError, str(fault), fault.__dict__))
        except Exception:  # a bug
            answer = pickle.dumps((None, RuntimeError, traceback.format_exc(), {}))
        remaining = memoryview(answer)
        while remaining:
            remaining = remaining[sent.write(remaining) :]
        code = 0
    finally:
        os._exit(code)


def _limit_process(parent: int, seconds: int, memory: int) -> None:
    import resource

    ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL)  # it ends with its parent, however that ends
    if os.getppid() != parent:
        os._exit(1)
    gc.freeze()  # what the parent has not freed yet: its end, and the room that this makes, are the parent's
    faulthandler.disable()
    _close_sockets()
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDERR)  # for what a library prints when it aborts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, seconds)
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
    _lower(resource.RLIMIT_DATA, int(lines["VmData"].split()[0]) * 1024 + memory)


def _close_sockets() -> None:
    """Close the connections of a server, which would otherwise end for its clients when this process does."""
    for descriptor in os.listdir(DESCRIPTORS):
        with suppress(OSError):  # the descriptor of this very list
            if os.readlink(DESCRIPTORS / descriptor).startswith("socket:"):
                os.close(int(descriptor))


def _lower(kind: int, maximum: int) -> None:
    """Lower a limit of this process; the hard one stays, beyond which it would be killed."""
    import resource

    soft, hard = resource.getrlimit(kind)
    bounds = [bound for bound in (maximum, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(bounds), hard))
