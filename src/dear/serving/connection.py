"""Connections with deadlines: slow clients are dropped, and the server stops in time. Builds on uvicorn.

Not hypercorn: its read timeouts also run while an answer is computed, it never drops a client that does not
take its answer, and it does not bound connections.
"""

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dear.serving.limits import Limits

GRACE = 2  # seconds that running requests have once the server is to stop
LAST_RESORT = 3.0  # seconds after which the server ends, whatever it is doing
SPARE = 128  # open files reserved for everything but connections
AT_ONCE = SPARE // 8  # connections accepted in a turn; those that are too many are closed a few turns later
NOTED = 60.0  # seconds between two lines that say that there are no files left
HEAD_BYTES = 2**14  # of a request line with its headers, as h11 has it
CHUNKS = 16  # of a chunked body, beside one for each kibibyte


class Server(uvicorn.Server):
    """Calls ``ready`` once requests are answered, and stops within ``LAST_RESORT`` seconds of a signal."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready
        self.last_resort = threading.Timer(LAST_RESORT, end_at_once)
        self.last_resort.daemon = True
        self._unstarted = [self.last_resort]

    async def startup(self, *args: Any, **kwargs: Any) -> None:
        asyncio.get_running_loop().set_exception_handler(NoFiles())
        await super().startup(*args, **kwargs)
        if self.started:
            self.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Only the first signal counts: it ends the server in time, and uvicorn answers a second Ctrl-C
        with a traceback.
        """
        try:
            timer = self._unstarted.pop()  # atomic: a signal may come while another is handled
        except IndexError:
            return
        timer.start()
        super().handle_exit(sig, frame)


class NoFiles:
    """Handles errors in an event loop as usual, but notes in a line, at most once a minute, that no files are
    left for connections: asyncio has a traceback for each attempt.
    """

    def __init__(self) -> None:
        self.noted = -NOTED

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif loop.time() - self.noted >= NOTED:
            self.noted = loop.time()
            print(
                f"dear: new connections wait ({error.strerror}): allow more with `ulimit -n`.",
                file=sys.stderr,
            )


def end_at_once() -> None:
    """End the process with normal exit behaviour, despite threads that would keep it alive."""
    sys.stdout.flush()
    os.write(2, b"dear: stopped; some requests were still under way.\n")
    os._exit(0)


class Parser(h11.Connection):
    """h11's parser, which refuses a chunked body of tiny chunks: each takes the event loop as long as one of
    a kibibyte, so that one client with chunks of a byte would stop all others.
    """

    _chunks: int | None = None  # that the body may still have, or None if it is not chunked
    _bytes = 0

    def next_event(self) -> Any:
        """The next event, as h11 has it. Raises RemoteProtocolError for too many chunks."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            self._chunks, self._bytes = (CHUNKS if chunked else None), 0
        elif isinstance(event, h11.Data) and self._chunks is not None:
            self._bytes += len(event.data)
            self._chunks -= 1
            if self._chunks + self._bytes // 1024 < 0:
                raise h11.RemoteProtocolError("too many chunks")
        return event


class Connection(H11Protocol):
    """HTTP/1.1 with deadlines for clients: a request must arrive, and a response be received, within
    ``limits.patience`` seconds. If there are too many clients, the one that has gone longest without sending
    a complete request is dropped, so that honest ones get through.
    """

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = Parser(h11.SERVER, self.config.h11_max_incomplete_event_size or HEAD_BYTES)
        self.patience, self.max_connections = limits.patience, max_connections(limits)
        self.since = 0.0  # when it began to wait for the client; while it waits the clock runs
        self.clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()
        if len(self.connections) > self.max_connections:
            waiting = [peer for peer in self.connections if isinstance(peer, Connection) and peer.clock]
            min(waiting, key=lambda peer: peer.since).give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop()
        self._start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless an answer has begun; the request that it was part of gets none."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def give_up(self) -> None:
        """Drop the client."""
        self._stop()
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Start the clock if it is the client's turn: to send a whole request, or to receive a response."""
        clients_turn = self.flow.write_paused or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if self.transport.is_closing() or not clients_turn:
            self._stop()
        elif self.clock is None:
            self._start()

    def _start(self) -> None:
        self.since = self.loop.time()
        self.clock = self.loop.call_later(self.patience, self._late)

    def _stop(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None

    def _late(self) -> None:
        self.clock = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self.conn.their_state is h11.SEND_BODY and not self.flow.write_paused:
            self._start()  # the middleware has the same deadline, and reports the reason
        else:
            self.give_up()


def max_connections(limits: Limits) -> int:
    """The number of connections that the limits and the system's open files allow."""
    try:
        import resource
    except ImportError:  # Windows
        return limits.connections
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(limits.connections, max(1, files - SPARE)) if files > 0 else limits.connections
