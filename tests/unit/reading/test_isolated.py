"""What reading a file does to the process that reads it."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dear.limits import LimitError
from dear.reading import isolated as module
from dear.reading.files import ReadingError
from dear.reading.isolated import isolated

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these processes")
MEMORY = 2**28


def read(function: Callable[[], Any], seconds: int = 60) -> Any:
    return isolated(function, "it", seconds=seconds, memory=MEMORY)


def test_what_is_read() -> None:
    here = os.getpid()
    assert read(os.getpid) != here
    content = os.urandom(10**6)  # more than a pipe holds
    assert read(lambda: {"a": [content]}) == {"a": [content]}


def test_a_value_of_many_levels() -> None:
    value = list[Any]()
    for _ in range(10**5):
        value = [value]
    with pytest.raises(ReadingError, match=r"^it: it is nested too deeply\.$"):
        read(lambda: value)


def test_an_error_is_raised_as_it_is() -> None:
    def fail() -> NoReturn:
        raise ReadingError("it", "it is odd", missing=True)

    with pytest.raises(ReadingError, match=r"^it: it is odd\.$") as caught:
        read(fail)
    assert (caught.value.reason, caught.value.missing) == ("it is odd", True)
    with pytest.raises(RuntimeError, match=r"test_isolated\.py(.|\n)*ZeroDivisionError"):
        read(lambda: 1 // 0)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_the_end_of_the_process(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    reason = rf"^it: it is damaged, or takes more than 256 MiB .*\(ending with {number.name}\)\.$"
    with pytest.raises(ReadingError, match=reason):
        read(lambda: os.write(2, b"noise") and os.kill(os.getpid(), number))
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ReadingError, match="code 3"):
        read(lambda: os._exit(3))


def test_time_without_an_end() -> None:
    def forever() -> NoReturn:
        while True:
            pass

    begun = time.process_time()
    with pytest.raises(LimitError, match=r"^it: it takes more than 1 s to read"):
        read(forever, seconds=1)
    assert time.process_time() - begun < 0.5  # of this process


def test_memory() -> None:
    assert read(lambda: len(bytearray(MEMORY // 2))) == MEMORY // 2
    # Beyond it in a new process: one that has run tests may have so much to reuse.
    code = (
        "from dear.reading.isolated import isolated\n"
        f"isolated(lambda: len(bytearray({2 * MEMORY})), 'it', seconds=2, memory={MEMORY})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "LimitError: it: it takes more than 256 MiB of memory to read" in ended.stderr


def test_nothing_of_the_parent_is_freed(tmp_path: Path) -> None:
    """It would make room beyond the limit, and run finalizers twice."""

    class Ring:
        def __init__(self) -> None:
            self.ring = self

        def __del__(self) -> None:
            with (tmp_path / "log").open("a") as file:
                file.write(f"{os.getpid()} ")

    gc.disable()
    try:
        Ring()
        read(lambda: gc.collect() and None)
        assert not (tmp_path / "log").exists()
        gc.collect()
    finally:
        gc.enable()
    assert (tmp_path / "log").read_text() == f"{os.getpid()} "


def test_ctrl_c_ends_both(tmp_path: Path) -> None:
    """The reader ignores it: it is its parent that ends it."""
    parent, started = os.getpid(), tmp_path / "started"

    def wait() -> None:
        started.write_text(str(os.getpid()))
        os.kill(parent, signal.SIGINT)
        time.sleep(600)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            read(wait)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_it_ends_with_its_parent() -> None:
    """Who kills a command and gives it again meets nothing of the first."""
    code = """
import os, time
from dear.reading import isolated as module
from dear.reading.isolated import isolated
isolated(lambda: (print(os.getpid(), flush=True), time.sleep(600)), "it", seconds=9, memory=2**28)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        reader = int(command.stdout.readline())
        command.kill()
    for _ in range(1000):
        stat = Path(f"/proc/{reader}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError("it goes on")


def test_what_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dear.reading.isolated.PATIENCE", 0.1)
    with pytest.raises(ReadingError, match=r"^it: its reader has stood still for 0 s: repeat the command"):
        read(lambda: time.sleep(600), seconds=1)


def test_a_limit_that_is_lower_already_stays() -> None:
    import resource

    def limits() -> tuple[int, int]:
        return resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_CORE)[0]

    assert read(limits, seconds=8) == (8, 0)
    assert read(lambda: read(limits, seconds=90), seconds=7) == (7, 0)


def test_connections_end_when_they_are_closed(tmp_path: Path) -> None:
    """And not when the process that reads a file does, as long as that may take."""
    here, there = socket.socketpair()
    began, end = tmp_path / "began", tmp_path / "end"

    def wait() -> None:
        began.touch()
        while not end.exists():
            time.sleep(0.01)

    reading = threading.Thread(target=read, args=(wait,))
    reading.start()
    while not began.exists():
        time.sleep(0.01)
    here.close()
    there.settimeout(60)
    assert there.recv(1) == b""
    end.touch()
    reading.join()


def test_readers_in_two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of one is noticed while the other goes on, which began in the same moment."""

    def slowly() -> int:
        time.sleep(0.1)
        return os.fork()

    monkeypatch.setattr(module, "_fork", slowly)
    end = tmp_path / "end"

    def wait() -> bool:
        for _ in range(6000):
            if end.exists():
                return True
            time.sleep(0.01)
        return False

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(read, wait) for _ in range(2)]
        assert pool.submit(read, lambda: 7).result() == 7
        end.touch()
        assert all(future.result() for future in waiting)
