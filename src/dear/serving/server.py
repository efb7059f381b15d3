"""Listen on a port, and run the API and the page there."""

import re
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import urlsplit

from dear.errors import OutputError, SettingsError, installation
from dear.serving.service import CLOSING_SECONDS, Service

BACKLOG = 1024
MODULES = ("fastapi", "prometheus_client", "python_multipart", "uvicorn")  # of the extra `app`
WORKER = "AnyIO worker thread"  # name of the framework's worker threads


def require_app() -> None:
    """Raise SettingsError if the extra `app` is not installed."""
    if any(find_spec(name) is None for name in MODULES):
        raise SettingsError(f"serving needs {', '.join(MODULES)}: {installation('app')}.")


def is_loopback(host: str) -> bool:
    """True for an address that is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """A socket listening on an address. Raises SettingsError for an invalid address or one that others can
    reach without a token, OutputError if it is unavailable.
    """
    if not is_loopback(host) and not token:
        raise SettingsError(
            f"anyone on the network could use {host}:{port}: give a token with --token or DEAR_TOKEN."
        )
    if token and not re.fullmatch(r"[\w.~-]+", token, re.ASCII):
        raise SettingsError("a token may contain only letters, digits and . _ ~ -")
    if not 0 <= port < 2**16:
        raise SettingsError(f"port is {port}: it must be between 0 and 65535.")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"there is no host {host!r} ({getattr(error, 'strerror', error)}): give a name or an address of "
            "this machine with --host."
        ) from error
    try:
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(target)
        opened.listen(BACKLOG)
    except OSError as error:
        raise OutputError(
            f"cannot listen on {host}:{port} ({error.strerror or error}): another program may be using "
            "the port. Choose another with --port."
        ) from error
    return opened


def address(opened: socket.socket, host: str) -> str:
    """The URL to open in a browser."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{opened.getsockname()[1]}/"


def run(
    service: Service,
    opened: socket.socket,
    *,
    host: str,
    token: str | None,
    page: bool,
    origin: str | None = None,
    access_log: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the process is stopped by Ctrl-C or SIGTERM; ``ready`` is called once it answers. Must be
    called in the main thread, and may end the process if running work does not finish in time.
    """
    import uvicorn

    from dear.serving.api import LOOPBACK, create_app
    from dear.serving.connection import AT_ONCE, GRACE, Connection, Server, end_at_once
    from dear.serving.metrics import log_access

    if access_log:
        log_access()
    hosts = LOOPBACK | {host.lower()} | ({urlsplit(origin).hostname or ""} if origin else set())
    app = create_app(
        service, token=token, hosts=hosts if is_loopback(host) else None, origin=origin, page=page
    )
    config = uvicorn.Config(
        app,
        http=partial(Connection, limits=service.limits),  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # rates are per address, so clients must not name themselves by a header
        timeout_graceful_shutdown=GRACE,
        backlog=AT_ONCE,
    )

    def queueing() -> None:
        opened.listen(BACKLOG)  # asyncio has made the system's queue as short
        ready()

    server = Server(config, queueing)
    # After a graceful stop uvicorn raises again the signal that it was stopped by.
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.run(sockets=[opened])
    except KeyboardInterrupt:
        pass
    finally:
        server.last_resort.cancel()
        signal.signal(signal.SIGTERM, handler)
    if not (service.close() and _threads_ended()):
        end_at_once()


def _threads_ended() -> bool:
    """True once no request thread runs: Python would wait for it at exit."""
    workers = [thread for thread in threading.enumerate() if thread.name == WORKER]
    for worker in workers:
        worker.join(CLOSING_SECONDS)
        if worker.is_alive():
            return False
    return True


def checked_origin(text: str | None) -> str | None:
    """The origin that browsers send for a public address. Raises SettingsError."""
    if text is None:
        return None
    match = re.fullmatch(r"(https?://[^/?#@\s]+)/?", text.lower(), re.ASCII)
    if match is None:
        raise SettingsError(f"origin is {text!r}: it must be like https://clip.example, without a path.")
    return match[1]
