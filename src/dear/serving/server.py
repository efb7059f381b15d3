"""Listen at a port, and run the API and the page there."""

import re
import signal
import socket
from importlib.util import find_spec
from ipaddress import ip_address

from dear.errors import OutputError, SettingsError
from dear.serving.service import Service

BACKLOG = 1024
GRACE = 5  # seconds that requests under way have once it is to stop; an open page is one that never ends


def require_app() -> None:
    """Raise SettingsError where the extra `app` is not installed."""
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "gradio")):
        raise SettingsError("serving needs Gradio: pip install 'dear-vlm[app]'.")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """A socket at an address. Raises SettingsError for one that others reach without a token or that is none,
    OutputError if it cannot be had.
    """
    if not is_loopback(host) and not token:
        raise SettingsError(
            f"whoever reaches this machine could use {host}:{port}: give a token with --token or DEAR_TOKEN."
        )
    if token and not re.fullmatch(r"[\w.~-]+", token, re.ASCII):
        raise SettingsError("a token has letters, digits and . _ ~ - only.")
    if not 0 <= port < 2**16:
        raise SettingsError(f"port is {port}: it must be between 0 and 65535.")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"there is no host {host!r} ({getattr(error, 'strerror', error)}): give a name or an address of "
            "this machine with --host."
        ) from error
    try:
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(place)
        opened.listen(BACKLOG)
    except OSError as error:
        raise OutputError(
            f"cannot listen at {host}:{port} ({error.strerror or error}): another program may use the port. "
            "Choose another with --port."
        ) from error
    return opened


def address(opened: socket.socket, host: str) -> str:
    """Where people find it."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{opened.getsockname()[1]}/"


def run(service: Service, opened: socket.socket, *, host: str, token: str | None, page: bool) -> None:
    """Serve until the process is told to stop, by Ctrl-C or SIGTERM. To be called in the main thread."""
    import uvicorn

    from dear.serving.api import LOOPBACK, create_app

    app = create_app(service, token=token, hosts=LOOPBACK | {host} if is_loopback(host) else None)
    if page:
        from dear.serving.app import mount

        app = mount(app, service)
    # A client cannot name itself by a header: rates are of addresses.
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
    )
    # Once it has stopped in order, uvicorn raises the signal again that it was stopped by.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        uvicorn.Server(config).run(sockets=[opened])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
