"""Requests that the server cancels when it stops are answered in order."""

import asyncio
from typing import Any

import pytest

from dear.serving.limits import Limits, Rate

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from dear.serving.middleware import SecurityMiddleware

START = {"type": "http.response.start", "status": 200}
PART, LAST = {"type": "http.response.body", "more_body": True}, {"type": "http.response.body"}


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [([], [503, None]), ([START, PART], [200, None, None]), ([START, LAST], [200, None])],
)
def test_an_answer_that_is_cancelled_is_ended_once(
    sent: list[dict[str, Any]], statuses: list[int | None]
) -> None:
    told = list[dict[str, Any]]()

    ready = asyncio.Event()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for message in sent:
            await send(dict(message))
        ready.set()
        await asyncio.Event().wait()

    async def stopped() -> None:
        async def send(message: Any) -> None:
            told.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
        work = asyncio.create_task(
            SecurityMiddleware(app, Limits(), Rate(0), None, None)(scope, asyncio.Event().wait, send)
        )  # type: ignore[arg-type]
        await ready.wait()
        work.cancel()
        await work

    asyncio.run(stopped())
    assert [message.get("status") for message in told] == statuses
    assert not told[-1].get("more_body", False)
