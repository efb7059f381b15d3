"""What surrounds every request: the checks of origin, token, rate and size, headers for browsers, metrics."""

import asyncio
import hmac
import math
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dear.serving.limits import MIB, Limits, Refused
from dear.serving.service import Batcher

COOKIE = "dear_token"
OPEN = frozenset(["/page.css", "/health"])
"""Paths that need no token, besides the login form: its style, and the sign that the server answers."""
LOGIN = Path(__file__).with_name("static") / "login.html"
FORM_ROOM = MIB // 8  # bytes around the files of a form
METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # upper bounds of the buckets of durations
# Only files of this server and images that the page creates; text never becomes code or markup.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
POLICY_OF_DOCS = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Rate:
    """What each client may do ``limit`` times in a window of ``seconds``; 0 for no limit."""

    def __init__(self, limit: int, seconds: int = 60) -> None:
        self.limit, self._window = limit, RateLimitItemPerSecond(max(1, limit), seconds)
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def take(self, client: str, *, only_check: bool = False) -> None:
        """Count something that a client does. Raises Refused (429)."""
        allow = self._limiter.test if only_check else self._limiter.hit
        if self.limit and not allow(self._window, client):
            reset = self._limiter.get_window_stats(self._window, client).reset_time
            wait = max(1, math.ceil(reset - time.time()))
            raise Refused(429, "rate", f"more than {self.limit} a minute: try again in {wait} s.", wait)


class Guard:
    """ASGI middleware. A token is sent as "Authorization: Bearer TOKEN", in a cookie, or as ?token= of the
    page, which sets the cookie; without it the page is replaced by a form that asks for it. A request made by
    a web page names that page's Origin, which must be this server's or ``origin``.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, rate: Rate, token: str | None, origin: str | None
    ) -> None:
        self.app, self.limits, self.rate, self.token = app, limits, rate, token
        self.origin = (origin or "").lower().rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, size = Request(scope), 0

        async def receive_bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            self._check_size(size)
            return message

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                policy = POLICY_OF_DOCS if scope["path"] == "/docs" else POLICY
                MutableHeaders(scope=message).update(HEADERS | {"content-security-policy": policy})
            await send(message)

        try:
            self._check_origin(request)
            response = self._check_token(request)
            self._check_size(int(request.headers.get("content-length", 0)))
        except Refused as refused:
            response = respond(refused)
        await (response or self.app)(scope, receive_bounded, send_secured)

    def _check_size(self, size: int) -> None:
        if size > self.limits.upload_bytes + FORM_ROOM:
            raise Refused(413, "too-large", f"the upload is larger than {self.limits.upload:g} MiB.")

    def _check_origin(self, request: Request) -> None:
        # Behind a TLS proxy the scheme differs; the name and port are those that the page was loaded from.
        origin, host = (request.headers.get(name, "").lower() for name in ("origin", "host"))
        if origin and origin not in (self.origin, f"http://{host}", f"https://{host}"):
            message = (
                "the request comes from another web page: behind a proxy, give its address with --origin."
            )
            raise Refused(403, "origin", message)

    def _check_token(self, request: Request) -> Response | None:
        """The answer to the login form or to a visitor of the page without a token; None if the request may
        proceed. Raises Refused (401, and 429 after too many wrong tokens).
        """
        path, client = request.url.path, f"login {client_of(request)}"
        if self.token is None or path in OPEN:
            return None
        is_login = request.method == "GET" and path == "/"
        in_address = request.query_params.get("token", "") if is_login else ""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        tokens = [bearer.strip() if scheme.lower() == "bearer" else "", request.cookies.get(COOKIE, "")]
        if in_address or any(tokens):
            self.rate.take(client, only_check=True)
            if any(map(self._is_token, tokens)):
                return None
            if self._is_token(in_address):
                # SameSite keeps other pages from using it; the redirect removes the token from the address.
                cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                return RedirectResponse("./", 303, {"set-cookie": cookie, "cache-control": "no-store"})
            self.rate.take(client)
        if not is_login:
            raise Refused(401, "token", "a token is required: send it as 'Authorization: Bearer TOKEN'.")
        page = LOGIN.read_text(encoding="utf-8").format("Wrong token." if in_address else "")
        return HTMLResponse(page, 401, {"cache-control": "no-store"})

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), (self.token or "").encode())


class Metrics(Collector):
    """What is counted, in Prometheus' form. Nothing in it is chosen by a client: routes are templates."""

    def __init__(self, batches: Batcher) -> None:
        self.batches, self.registry = batches, CollectorRegistry()
        labels, registry = ("method", "route", "status"), self.registry
        self.requests = Counter("dear_requests", "Requests answered.", labels, registry=registry)
        what = "Seconds from a request's head to the end of its answer."
        self.seconds = Histogram("dear_request_seconds", what, ["route"], buckets=SECONDS, registry=registry)
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The counts of the model's batches."""
        for name, count in (("images", self.batches.images), ("batches", self.batches.batches)):
            yield CounterMetricFamily(f"dear_{name}", f"{name.title()} that went through the model.", count)


class Observer:
    """ASGI middleware around all others: it counts each request and, with ``log``, writes a line about it."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: bool) -> None:
        self.app, self.metrics, self.log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, start = 0, time.perf_counter()

        async def send_watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, send_watched)
        except asyncio.CancelledError:  # the server stops, and its grace is over
            if not status:
                stopping = Refused(503, "busy", "the server is stopping: try again later.")
                await respond(stopping)(scope, receive, send_watched)
        finally:
            seconds = time.perf_counter() - start
            method = scope["method"] if scope["method"] in METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            if self.log:
                now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
                line = f"{now} {method} {route} {status} {1000 * seconds:.0f} ms"
                print(line, file=sys.stderr, flush=True)


def client_of(request: Request) -> str:
    """A client's address, by which its requests are counted."""
    return request.client.host if request.client else ""


def respond(refused: Refused) -> JSONResponse:
    """The answer to a refused request."""
    headers = {"cache-control": "no-store"}
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    return JSONResponse({"error": str(refused), "kind": refused.kind}, refused.status, headers)
