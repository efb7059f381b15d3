"""What surrounds every request: checks of origin, token and size, rates, headers for browsers, metrics."""

import asyncio
import hmac
import math
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from dear.serving.limits import Limits, Refused

COOKIE = "dear_token"
OPEN = frozenset(["/page.css", "/health"])
"""Paths that need no token, besides the login form: its style, and the sign that the server answers."""
LOGIN = Path(__file__).with_name("static") / "login.html"
METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
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
    """HTTP middleware. A token is sent as "Authorization: Bearer TOKEN", in a cookie, or as ?token= of the
    page, which sets the cookie; without it the page is replaced by a form that asks for it. A request made by
    a web page names that page's Origin, which must be this server's or ``origin``. Requests are counted by
    nothing that a client chooses, and with ``log`` each gets a line.
    """

    def __init__(self, limits: Limits, rate: Rate, token: str | None, origin: str | None, log: bool) -> None:
        self.limits, self.rate, self.token, self.log = limits, rate, token or "", log
        self.origin, self.running, self.registry = (origin or "").lower().rstrip("/"), 0, CollectorRegistry()
        labels, registry = ("method", "route", "status"), self.registry
        self.requests = Counter("dear_requests", "Requests answered.", labels, registry=registry)
        what = "Seconds from a request's head to its answer."
        self.seconds = Histogram("dear_request_seconds", what, ["route"], registry=registry)

    async def __call__(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        status, start = 500, time.perf_counter()
        self.running += 1
        try:
            if self.running > self.limits.connections:
                raise Refused(503, "busy", "the server has too many requests: try again in 2 s.", 2)
            self._check_origin(request)
            self.limits.check_size(int(request.headers.get("content-length", 0)))
            response = self._check_token(request) or await call_next(request)
            status = response.status_code
        except Refused as refused:
            response, status = respond(refused), refused.status
        except asyncio.CancelledError:  # the server stops, and its grace is over
            response, status = respond(Refused(503, "busy", "the server is stopping: try again later.")), 503
        finally:
            self.running -= 1
            self._count(request, status, time.perf_counter() - start)
        policy = POLICY_OF_DOCS if request.url.path == "/docs" else POLICY
        response.headers.update(HEADERS | {"content-security-policy": policy})
        return response

    def _count(self, request: Request, status: int, seconds: float) -> None:
        method = request.method if request.method in METHODS else "other"
        route = getattr(request.scope.get("route"), "path", "other")
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if self.log:
            line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {method} {route} {status} {1000 * seconds:.0f} ms"
            print(line, file=sys.stderr, flush=True)

    def _check_origin(self, request: Request) -> None:
        # Behind a TLS proxy the scheme differs; the name and port are those that the page was loaded from.
        origin, host = (request.headers.get(name, "").lower() for name in ("origin", "host"))
        if origin and origin not in (self.origin, f"http://{host}", f"https://{host}"):
            raise Refused(
                403, "origin", "another web page asks: behind a proxy, give its address with --origin."
            )

    def _check_token(self, request: Request) -> Response | None:
        """The answer to a visitor of the page without a token; None if the request may proceed. Raises
        Refused (401, and 429 after too many wrong tokens).
        """
        if not self.token or request.url.path in OPEN:
            return None
        client, is_login = f"login {client_of(request)}", (request.method, request.url.path) == ("GET", "/")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        sent = [bearer.strip() if scheme.lower() == "bearer" else "", request.cookies.get(COOKIE, "")]
        in_address = request.query_params.get("token", "") if is_login else ""
        if any([*sent, in_address]):
            self.rate.take(client, only_check=True)
            right = [hmac.compare_digest(text.encode(), self.token.encode()) for text in (*sent, in_address)]
            if any(right[:2]):
                return None
            if right[2]:
                # SameSite keeps other pages from using it; the redirect removes the token from the address.
                cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                return RedirectResponse("./", 303, {"set-cookie": cookie, "cache-control": "no-store"})
            self.rate.take(client)
        if not is_login:
            raise Refused(401, "token", "a token is required: send it as 'Authorization: Bearer TOKEN'.")
        page = LOGIN.read_text(encoding="utf-8").format("Wrong token." if in_address else "")
        return HTMLResponse(page, 401, {"cache-control": "no-store"})


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
