"""The gate before every request: host, token, rate and size; and what a page may load."""

import asyncio
import hmac
import json
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dear.serving.limits import MIB, Limits, Rate, Refused, check_upload

COOKIE = "dear_token"
FORM_ROOM = MIB // 8  # bytes around a file in a form
# The page loads nothing from elsewhere. Gradio's own scripts are in the page and build functions from text.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
DOOR = """<!doctype html><html lang="en"><meta charset="utf-8"><title>dear</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<body style="font-family: system-ui, sans-serif; margin: 2rem auto; max-width: 24rem; padding: 0 1rem">
<h1>dear</h1><form><p><label>Token <input type="password" name="token" autofocus required></label>
<button>Open</button></p></form><p role="alert">{}</p>"""


class Guard:
    """ASGI middleware. Refusals are one JSON object with "error" and "kind"; without the token, the page is
    a form that asks for it.

    A token comes as "Authorization: Bearer TOKEN", in a cookie, or as ?token= of the page, which is answered
    with the cookie. ``hosts`` are the names in the Host header that are answered, so that no web page reaches
    a local server under a name of its own; None answers to all.
    """

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None, hosts: frozenset[str] | None) -> None:
        self.app, self.limits, self.token, self.hosts = app, limits, token, hosts
        self.rate = Rate(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets: there are none
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
            self._check_host(headers)
            if not await self._let_in(scope, headers, answer):
                return
            if scope["method"] not in ("GET", "HEAD"):
                self.rate.take(scope["client"][0] if scope["client"] else "")
            await self.app(scope, self._counted(headers, receive), answer)
        except Refused as refused:
            if not started:
                await respond(answer, refused)
        except asyncio.CancelledError:  # the server stops, and has waited for long enough
            if not started:
                await respond(answer, Refused(503, "the server stops: try again later."))
            elif not ended:
                await send({"type": "http.response.body"})

    def _check_host(self, headers: dict[str, str]) -> None:
        name = (
            headers.get("host", "").rsplit(":", 1)[0]
            if headers.get("host", "")[-1:] != "]"
            else headers["host"]
        )
        if self.hosts is not None and name.strip("[]").lower() not in self.hosts:
            raise Refused(421, "this server answers to localhost only: open it under that name.")

    async def _let_in(self, scope: Scope, headers: dict[str, str], send: Send) -> bool:
        """Whether the request may go on; else it was answered."""
        if self.token is None:
            return True
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._right(headers.get("authorization", "").removeprefix("Bearer ").strip()):
            return True
        try:
            jar = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            jar = SimpleCookie()
        if COOKIE in jar and self._right(jar[COOKIE].value):
            return True
        if scope["method"] != "GET" or scope["path"] != "/":
            raise Refused(401, "a token is needed: send it as 'Authorization: Bearer TOKEN'.", BEARER)
        if asked and self._right(asked):
            # SameSite keeps other pages from using it; the address loses the token.
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            await _send(send, 303, b"", {"location": "./", "set-cookie": cookie})
            return False
        self.rate.take(f"door {scope['client'][0] if scope['client'] else ''}")
        page = DOOR.format("That is not the token." if asked else "")
        await _send(send, 401, page.encode(), {"content-type": "text/html; charset=utf-8"})
        return False

    def _right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self.token or "").encode())

    def _counted(self, headers: dict[str, str], receive: Receive) -> Receive:
        """``receive`` that refuses a body that is too long: by its header at once, else when it is."""
        told = headers.get("content-length", "")
        check_upload(max(0, int(told) - FORM_ROOM) if told.isdigit() else 0, self.limits)
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            check_upload(max(0, size - FORM_ROOM), self.limits)
            return message

        return counted


BEARER = {"WWW-Authenticate": "Bearer"}


async def respond(send: Send, refused: Refused) -> None:
    """Answer a refusal as JSON."""
    body = json.dumps({"error": str(refused), "kind": type(refused).__name__}, ensure_ascii=False)
    await _send(send, refused.status, body.encode(), {"content-type": "application/json", **refused.headers})


async def _send(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    all_headers = _encoded({**headers, "content-length": str(len(body)), "cache-control": "no-store"})
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
