"""What surrounds every request: checks of origin, token and size, and headers for browsers."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dear.serving.limits import Limits, Refused

COOKIE = "dear_token"
REVIEW = "/review"
"""The page of a review."""
PAGES = ("/", REVIEW)
OPEN = frozenset(["/page.css", "/health"])
"""Paths that need no token, besides the login form: its style, and the sign that the server answers."""
LOGIN = Path(__file__).with_name("static") / "login.html"
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


class Guard:
    """HTTP middleware. A token is sent as "Authorization: Bearer TOKEN", in a cookie, or as ?token= of the
    page, which sets the cookie; without it the page is replaced by a form that asks for it. A request made by
    a web page names that page's Origin, which must be this server's or ``origin``.
    """

    def __init__(self, limits: Limits, token: str | None, origin: str | None) -> None:
        self.limits, self.token, self.origin, self.running = limits, token or "", origin, 0

    async def __call__(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        self.running += 1
        try:
            if self.running > self.limits.connections:
                raise Refused(503, "busy", "the server has too many requests: try again in 2 s.", 2)
            self._check_origin(request)
            self.limits.check_size(int(request.headers.get("content-length", 0)))
            response = self._check_token(request) or await call_next(request)
        except Refused as refused:
            response = respond(refused)
        except asyncio.CancelledError:  # the server stops, and its grace is over
            response = respond(Refused(503, "busy", "the server is stopping: try again later."))
        finally:
            self.running -= 1
        policy = POLICY_OF_DOCS if _route(request) == "/docs" else POLICY
        response.headers.update(HEADERS | {"content-security-policy": policy})
        return response

    def _check_origin(self, request: Request) -> None:
        # Behind a TLS proxy the scheme differs; the name and port are those that the page was loaded from.
        origin, host = (request.headers.get(name, "").lower() for name in ("origin", "host"))
        if origin and origin not in (self.origin, f"http://{host}", f"https://{host}"):
            raise Refused(
                403, "origin", "another web page asks: behind a proxy, give its address with --origin."
            )

    def _check_token(self, request: Request) -> Response | None:
        """The answer to a visitor of the page without a token; None if the request may proceed. Raises
        Refused (401).
        """
        if not self.token or _route(request) in OPEN:
            return None
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        sent = [
            bearer.strip() if scheme.lower() == "bearer" else "",
            request.cookies.get(_cookie(request), ""),
        ]
        if any([self._is_token(text) for text in sent]):
            return None
        if request.method != "GET" or _route(request) not in PAGES:
            raise Refused(401, "token", "a token is required: send it as 'Authorization: Bearer TOKEN'.")
        in_address = request.query_params.get("token", "")
        if self._is_token(in_address):
            # SameSite keeps other pages from using it; the redirect removes the token from the address.
            path = _prefix(request) + "/"
            cookie = f"{_cookie(request)}={self.token}; HttpOnly; SameSite=Strict; Path={path}"
            place = f".{_route(request)}"
            return RedirectResponse(place, 303, {"set-cookie": cookie, "cache-control": "no-store"})
        page = LOGIN.read_text(encoding="utf-8").format("Wrong token." if in_address else "")
        return HTMLResponse(page, 401, {"cache-control": "no-store"})

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())


class AnswerHead:
    """Answers HEAD as GET; the server leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)


def _prefix(request: Request) -> str:
    """What a proxy has removed from the path of a request; the server puts it back (`server_of`)."""
    return str(request.scope.get("root_path", ""))


def _cookie(request: Request) -> str:
    """The name of the cookie: browsers send those of a host to all its ports, where other servers may be."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() else COOKIE


def _route(request: Request) -> str:
    return request.url.path.removeprefix(_prefix(request))


def respond(refused: Refused) -> JSONResponse:
    """The answer to a refused request."""
    headers = {"cache-control": "no-store"}
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    content = {"error": str(refused), "kind": refused.kind} | refused.facts
    return JSONResponse(content, refused.status, headers)
