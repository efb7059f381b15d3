"""Checks before every request: host, origin, token, rate, size and time; and what a page may load."""

import asyncio
import hmac
import json
import re
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dear.serving.bodies import Bodies
from dear.serving.limits import FORM_ROOM, Limits, Rate, Refused, check_upload

COOKIE = "dear_token"
OPEN = frozenset(["/page.css", "/health"])
"""Paths that need no token, besides the login form: its style, and the sign that the server answers."""
HEADER_BYTES = 2**15  # of all names and values of a request
HOST = re.compile(r"(?:\[([0-9a-f]*:[0-9a-f:.]*)\]|([^\[\]:@/?#\s]+))(?::[0-9]{1,5})?")
"""The Host header in lower case: an IPv6 address in brackets or a name, and a port if any."""
# Only files of this server and images that the page creates; text never becomes code or markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
BUG = "internal server error, see the server's log; other requests may succeed."
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>dear</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css">
<body class="door"><h1>dear</h1><form><label>Token
<input type="password" name="token" autocomplete="current-password" autofocus required></label>
<button>Open</button></form><p role="alert">{}</p>"""


class SecurityMiddleware:
    """ASGI middleware. Refusals are one JSON object with "error" and "kind"; without the token, the page is
    replaced by a form that asks for it.

    A token is sent as "Authorization: Bearer TOKEN", in a cookie, or as ?token= of the page, which sets the
    cookie. ``hosts`` are the accepted names in the Host header, so that no web page reaches a local server
    under another name (DNS rebinding); None accepts all. A request made by a web page names that page's
    Origin, which must be this server's or ``origin``.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        rate: Rate,
        token: str | None,
        hosts: frozenset[str] | None,
        origin: str | None = None,
    ) -> None:
        self.app, self.limits, self.token, self.hosts, self.origin = app, limits, token, hosts, origin
        self.rate, self.bodies = rate, Bodies(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        started = ended = False

        async def answer(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *_encoded(HEADERS)]
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
                raise Refused(431, f"the headers take more than {HEADER_BYTES:,} bytes: send fewer cookies.")
            self._check_host(headers)
            self._check_origin(headers)
            if not await self._authorized(scope, headers, answer):
                return
            if scope["method"] not in ("GET", "HEAD"):
                self.rate.take(client_of(scope))
            self._check_length(headers)
            with self.bodies.body() as body:
                await self.app(_without_cookies(scope), self.bodies.counted(body, receive), answer)
        except Refused as refused:
            if not started:
                await respond(answer, refused)
        except asyncio.CancelledError:  # the server is stopping, and the grace period is over
            if not started:
                await respond(answer, Refused(503, "the server is stopping: try again later."))
            elif not ended:
                await send({"type": "http.response.body"})
        except Exception:  # a bug, which only the log describes
            if not started:
                await respond(answer, Refused(500, BUG))
            raise

    def _check_host(self, headers: dict[str, str]) -> None:
        host = HOST.fullmatch(headers.get("host", "").lower()[:300])
        if self.hosts is not None and (host is None or (host[1] or host[2]) not in self.hosts):
            raise Refused(421, "this server only answers to localhost: open it under that name.")

    def _check_origin(self, headers: dict[str, str]) -> None:
        origin = headers.get("origin", "").lower()
        if not origin or origin == self.origin:
            return
        # Behind a TLS proxy the scheme differs; the name and port are those that the page was loaded from.
        scheme, _, host = origin.partition("://")
        if scheme not in ("http", "https") or host != headers.get("host", "").lower():
            raise Refused(
                403,
                "the request comes from another server's web page: behind a proxy, give its address with "
                "--origin.",
            )

    async def _authorized(self, scope: Scope, headers: dict[str, str], send: Send) -> bool:
        """True if the request may proceed; otherwise it has been answered. Wrong tokens are limited per
        client, and after too many of them no token is checked.
        """
        if self.token is None or scope["path"] in OPEN:
            return True
        is_login = scope["method"] == "GET" and scope["path"] == "/"
        query = parse_qs(scope["query_string"].decode("latin-1")) if is_login else {}
        query_token = query.get("token", [""])[0]
        tokens = [token for token in (_bearer(headers), _cookie(headers)) if token]
        bucket = f"login {client_of(scope)}"
        if tokens or query_token:
            self.rate.check(bucket)
        if any(map(self._is_token, tokens)):
            return True
        if query_token and self._is_token(query_token):
            # SameSite keeps other pages from using it; the redirect removes the token from the address.
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            await _send(send, 303, b"", {"location": "./", "set-cookie": cookie})
            return False
        if tokens or query_token:
            self.rate.take(bucket)
        if not is_login:
            raise Refused(401, "a token is required: send it as 'Authorization: Bearer TOKEN'.", BEARER)
        page = LOGIN.format("Wrong token." if query_token else "")
        await _send(send, 401, page.encode(), {"content-type": "text/html; charset=utf-8"})
        return False

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), (self.token or "").encode())

    def _check_length(self, headers: dict[str, str]) -> None:
        """Refuse a body that declares too large a size."""
        declared = headers.get("content-length", "")
        size = int(declared[:20]) if declared[:20].isascii() and declared[:20].isdigit() else 0
        check_upload(max(0, size - FORM_ROOM), self.limits)


def client_of(scope: Scope) -> str:
    """A client's address, by which its work is counted."""
    return str(scope["client"][0]) if scope["client"] else ""


def _bearer(headers: dict[str, str]) -> str:
    scheme, _, value = headers.get("authorization", "").strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def _without_cookies(scope: Scope) -> Scope:
    """The scope for the app, whose framework parses cookies for every route: Python's own parser takes
    seconds for 60 kB of escapes in quotes. Only the check of the token reads a cookie.
    """
    headers = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    return {**scope, "headers": headers}


def _cookie(headers: dict[str, str]) -> str:
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.partition("=")
        if name.strip() == COOKIE:
            return value.strip()
    return ""


BEARER = {"WWW-Authenticate": "Bearer"}


async def respond(send: Send, refused: Refused) -> None:
    """Send a refusal as JSON."""
    body = json.dumps({"error": str(refused), "kind": refused.kind}, ensure_ascii=False)
    await _send(send, refused.status, body.encode(), {"content-type": "application/json", **refused.headers})


async def _send(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    all_headers = _encoded({**headers, "content-length": str(len(body)), "cache-control": "no-store"})
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
