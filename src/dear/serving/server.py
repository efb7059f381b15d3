"""Listen on a port, and run the API and the page there."""

import atexit
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple, Self

from dear.errors import OutputError, SettingsError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
GRACE = 2  # seconds that running requests have once the server is to stop
LAST_RESORT = 1.0  # seconds after that until the process ends, whatever it computes
HEAD_BYTES = 2**14  # of a request line with its headers
KEEP_ALIVE = 150
"""Seconds that a connection may idle: longer than proxies keep it (Caddy 120, nginx 60), who then close it.
A server that closes first loses a request that is on its way.
"""


def is_loopback(host: str) -> bool:
    """True for an address that is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def check_token(host: str, port: int, token: str | None) -> None:
    """Raise SettingsError for an address that others can reach without a token, and for a token that no
    header can hold.
    """
    if not is_loopback(host) and not token:
        raise SettingsError(
            f"anyone on the network could use {host}:{port}: give a token with --token or DEAR_TOKEN."
        )
    if token and not re.fullmatch(r"[\w.~-]+", token, re.ASCII):
        raise SettingsError("a token may contain only letters, digits and . _ ~ -")


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """A socket listening on an address. Raises SettingsError as `check_token`, OutputError if it is
    unavailable.
    """
    check_token(host, port, token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise OutputError(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', error)}): give an address of this "
            "machine with --host, and a port that no other program uses with --port."
        ) from error


class PublicAddress(NamedTuple):
    """Where clients reach a server: the origin, as browsers send it, its host name, and the path before every
    path of the server, "" without one.
    """

    origin: str
    host: str
    prefix: str

    @classmethod
    def parse(cls, address: str) -> Self:
        """Split an address. Raises SettingsError for one that is none."""
        match = re.fullmatch(r"((?i:https?)://([^/?#@:\s]+)(?::\d+)?)((?:/[\w.~-]+)*)/?", address, re.ASCII)
        if match is None:
            raise SettingsError(
                f"origin is {address!r}: it must be like https://clip.example or https://example.org/clip."
            )
        return cls(match[1].lower(), match[2].lower(), match[3])


def trusted_hosts(host: str, public: PublicAddress | None) -> tuple[str, ...] | None:
    """The names under which a server answers, so that no web page reaches a local one by a name of its own;
    None, for any, if others can reach it.
    """
    return (*LOOPBACK, host.lower(), *([public.host] if public else [])) if is_loopback(host) else None


def server_of(
    app: "FastAPI", prefix: str = "", started: Callable[[], None] = lambda: None
) -> "uvicorn.Server":
    """A server of the API, at addresses with a ``prefix`` that a proxy has removed from paths. ``started`` is
    called once it answers requests and signals. Its connections are not limited, since idle ones cost little:
    requests are.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                started()

    config = uvicorn.Config(
        app,
        root_path=prefix,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    return Server(config)


def run(
    app: "FastAPI", opened: socket.socket, prefix: str = "", started: Callable[[], None] = lambda: None
) -> None:
    """Serve, as `server_of`, until the process is stopped by Ctrl-C or SIGTERM, and end it soon after. Must
    be called in the main thread.
    """
    with suppress(KeyboardInterrupt):
        # After a graceful stop uvicorn raises again the signal that it was stopped by.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        server_of(app, prefix, started).run(sockets=[opened])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    last_resort = threading.Timer(LAST_RESORT, end_at_once)
    last_resort.daemon = True
    last_resort.start()
    # Unloading torch takes Python seconds at exit; do not make whoever stopped the server wait for it.
    atexit.register(end_at_once)


def end_at_once() -> None:
    """End the process at once, after flushing all output."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
