"""Clients that are slow, many or gone do not keep others waiting, and the server ends in time."""

import errno
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.serving.limits import MIB, Limits
from tests.e2e.test_page import serving
from tests.unit.serving.small import picture, png, small_predictor

pytest.importorskip("uvicorn", reason="the extra `app` is not installed")
import h11
import httpx

from dear.serving.connection import CHUNKS, LAST_RESORT, NOTED, NoFiles, Parser
from dear.serving.service import CLOSING_SECONDS, Service

ROOT = Path(__file__).parents[3]
HEAD = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
LONG = 600.0
WAIT = 60


def connect(address: str, sent: bytes) -> socket.socket:
    host, port = address.removeprefix("http://").strip("/").split(":")
    opened = socket.create_connection((host, int(port)), WAIT)
    opened.sendall(sent)
    return opened


def rest(opened: socket.socket) -> bytes:
    """What a server sends until it closes."""
    try:
        return b"".join(iter(lambda: opened.recv(65536), b""))
    except ConnectionResetError:
        return b""


def predict(address: str) -> httpx.Response:
    return httpx.post(f"{address}api/predict", content=png(picture()), trust_env=False, timeout=WAIT)


@pytest.fixture
def served(small_clip: Clip) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        stack.small = small_predictor(small_clip)  # type: ignore[attr-defined]
        yield stack


def serve(served: ExitStack, limits: Limits) -> str:
    return served.enter_context(serving(Service(served.small, limits)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("sent", [HEAD % 1000 + b"abc", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_clients_that_wait_block_nobody(served: ExitStack, sent: bytes) -> None:
    """More of them than requests may be under way, and than clients may be connected."""
    address = serve(served, Limits(waiting=3, connections=17, patience=LONG, wait=0))
    for _ in range(41):
        served.enter_context(connect(address, sent))
    for _ in range(5):
        assert predict(address).status_code == 200


@pytest.mark.parametrize(("handled", "lines"), [(errno.EMFILE, 1), (errno.ENFILE, 1), (errno.EIO, 0)])
def test_no_files_left_is_a_line(handled: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred times at once."""
    others, handle, loop = list[object](), NoFiles(), Mock()
    loop.time.return_value, loop.default_exception_handler = 7.0, others.append
    for _ in range(100):
        handle(loop, {"message": "x", "exception": OSError(handled, os.strerror(handled))})
    assert len(others) == (0 if lines else 100)
    assert capsys.readouterr().err.count("dear: new connections wait (Too many open files") == lines
    loop.time.return_value = 7.0 + NOTED
    handle(loop, {"message": "x", "exception": OSError(errno.EMFILE, "late")})
    assert "(late)" in capsys.readouterr().err


def test_a_burst_of_connections_leaves_files() -> None:
    """Of 256 open files, which 400 connections that the system's queue takes at once would need."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    server = subprocess.Popen(
        [sys.executable, "-c", STUCK, "nowhere"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1])),
    )  # fmt: skip
    assert server.stdout is not None
    with server, ExitStack() as clients:
        address = server.stdout.readline().strip()
        server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
        for _ in range(400):
            clients.enter_context(connect(address, b"GET"))
        server.send_signal(signal.SIGCONT)
        assert predict(address).status_code == 200
        server.send_signal(signal.SIGTERM)
        told = server.communicate(timeout=WAIT)[1]
    assert told == ""


def test_a_slow_body_is_refused_and_a_slow_head_cut_off(served: ExitStack) -> None:
    address = serve(served, Limits(patience=0.5))
    body, head = (connect(address, sent) for sent in (HEAD % 1000 + b"abc", b"GET"))
    answer = rest(body)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"in 0.5 s" in answer
    assert rest(head) == b""
    late = connect(address, b"POST /api/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
    assert rest(late).startswith(b"HTTP/1.1 404")  # answered before its body was here, and then let go


def test_bodies_that_fill_the_room_give_way_to_honest_ones(served: ExitStack) -> None:
    """Which ones, `test_bodies.py` tests: the order in which connections are read is the system's."""
    address = serve(served, Limits(upload=1, bodies=3, patience=LONG, wait=0))
    selector = served.enter_context(selectors.DefaultSelector())
    for _ in range(7):  # of which three fit
        slow = served.enter_context(connect(address, HEAD % MIB + b"\0" * (MIB - 1)))
        selector.register(slow, selectors.EVENT_READ)
    for _ in range(3):
        assert predict(address).status_code == 200
    for _ in range(4):
        ended = selector.select(WAIT)[0][0].fileobj
        selector.unregister(ended)
        # Nothing, where the system resets a connection whose data were not read.
        assert rest(ended)[:12] in (b"HTTP/1.1 503", b"")  # type: ignore[arg-type]


def test_room_for_bodies_holds_at_least_one() -> None:
    with pytest.raises(SettingsError, match=r"limits\.bodies is 5: .*limits\.upload, 10"):
        Limits(bodies=5)
    with pytest.raises(SettingsError, match=r"limits\.patience is nan"):
        Limits(patience=float("nan"))


# A server whose work never ends, in a process of its own.
STUCK = """
import os, sys, threading
from tests.conftest import small_clip_of
from tests.unit.serving.small import small_predictor
from dear.serving.limits import Limits
from dear.serving.server import address, listen, run
from dear.serving.service import Service

service = Service(small_predictor(small_clip_of()), Limits())

def stuck(*_):
    print("stuck", flush=True)
    threading.Event().wait()

if sys.argv[1] == "decoding":
    service.take = stuck
elif sys.argv[1] == "model":
    service.predictor.encode = stuck
elif sys.argv[1] == "loop":
    from dear.serving.middleware import SecurityMiddleware
    before = SecurityMiddleware.__call__

    async def blocked(self, scope, *rest):
        if scope["type"] == "http":
            stuck()
        await before(self, scope, *rest)

    SecurityMiddleware.__call__ = blocked
opened = listen("127.0.0.1", 0, None)
run(service, opened, host="127.0.0.1", token=None, page=True,
    ready=lambda: print(address(opened, "127.0.0.1"), flush=True))
print("ended in order", flush=True)
os._exit(0)  # what Python does at its end is not what is asked here
"""


@pytest.mark.parametrize(
    "where",
    ["loop", *(pytest.param(name, marks=pytest.mark.long) for name in ("decoding", "model", "slow client"))],
)
def test_to_be_told_to_stop_ends_it_in_time_whatever_it_does(where: str) -> None:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    server = subprocess.Popen(
        [sys.executable, "-c", STUCK, where],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert server.stdout is not None
    with server, ExitStack() as clients:
        address = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)  # said when it answers, not before
        data = png(picture())
        if where == "slow client":
            clients.enter_context(connect(address, HEAD % 1000 + b"abc"))
            assert httpx.get(f"{address}api/info", trust_env=False).status_code == 200  # both were accepted
        else:
            clients.enter_context(connect(address, HEAD % len(data) + data))
            assert server.stdout.readline() == "stuck\n"
        server.send_signal(signal.SIGTERM)
        try:
            out, told = server.communicate(timeout=WAIT)  # far more than it takes, far less than for ever
        except subprocess.TimeoutExpired:
            server.kill()
            raise
    assert server.returncode == 0, told
    in_order = where == "slow client"
    assert out == ("ended in order\n" if in_order else "")
    assert ("some requests were still under way" in told) is not in_order
    assert "Traceback" not in told
    assert LAST_RESORT + 2 * CLOSING_SECONDS < 5  # seconds: the longest that it can take


def body_of(parser: Parser, head: bytes, pieces: list[bytes]) -> int:
    """Bytes of a body that a parser gets in pieces."""
    size = 0
    for piece in [b"POST / HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n", *pieces]:
        parser.receive_data(piece)
        while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            size += len(event.data) if isinstance(event, h11.Data) else 0
    return size


def chunks(count: int, size: int) -> bytes:
    return (b"%x\r\n%s\r\n" % (size, b"x" * size)) * count


@pytest.mark.parametrize(("count", "size"), [(CHUNKS, 1), (2000, 1024), (CHUNKS + 1, 65), (3, 10**6)])
def test_honest_chunks_are_read(count: int, size: int) -> None:
    """CHUNKS + 1 of them have 1,024 bytes together if each has 65."""
    parser = Parser(h11.SERVER)
    sent = chunks(count, size) + b"0\r\n\r\n"
    assert body_of(parser, b"Transfer-Encoding: chunked", [sent]) == count * size


@pytest.mark.parametrize(("count", "size"), [(CHUNKS + 1, 1), (CHUNKS + 1, 60), (40_000, 1), (2000, 1000)])
def test_tiny_chunks_are_refused_at_once(count: int, size: int) -> None:
    parser = Parser(h11.SERVER)
    with pytest.raises(h11.RemoteProtocolError, match="too many chunks"):
        body_of(parser, b"transfer-encoding: Chunked", [chunks(count, size)])


def test_a_body_of_stated_length_may_come_byte_by_byte() -> None:
    """Each piece has come over the network by itself, and others are answered between two of them."""
    assert body_of(Parser(h11.SERVER), b"Content-Length: 1000", [b"x"] * 1000) == 1000


def test_tiny_chunks_end_their_connection(served: ExitStack) -> None:
    address = serve(served, Limits(patience=LONG))
    head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    opened = served.enter_context(connect(address, head + chunks(1000, 1)))
    assert rest(opened)[:12] in (b"HTTP/1.1 400", b"")  # nothing, where the system resets what was not read
    assert predict(address).status_code == 200


def test_what_is_no_http_after_a_refusal_leaves_no_traceback(
    served: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Head and broken chunk in one segment: the refusal was sent after the connection had its 400."""
    address = serve(served, Limits(patience=LONG))
    for host in (b"evil", b"localhost"):
        head = b"POST /api/predict HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % host
        opened = served.enter_context(connect(address, head + b"zz\r\n"))
        assert rest(opened).startswith(b"HTTP/1.1 400")
        late = served.enter_context(connect(address, head))  # the broken chunk comes after the answer
        if host == b"evil":
            assert late.recv(65536).startswith(b"HTTP/1.1 421")
        late.sendall(b"zz\r\n")
        rest(late)
    assert predict(address).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
