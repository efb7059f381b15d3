"""A client who leaves: work in threads cannot be stopped, so its place and its body count until it ends."""

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dear.backbone.clip import Clip
from dear.serving.limits import Limits
from dear.serving.service import Service
from tests.unit.serving.small import picture, png, small_predictor

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
import anyio
import httpx

from dear.serving import api, middleware
from dear.serving.bodies import Bodies
from dear.serving.clients import Clients
from dear.serving.limits import Rate
from dear.serving.threads import in_thread
from tests.unit.serving.test_batch import AT_ONCE, Gate, form_of
from tests.unit.serving.test_names import LONG, Neighbour, until

LIMITS = Limits(wait=0, rate=0, decoders=2)


class Blocked:
    """An operation of a service that counts its calls, and goes on once ``go`` is set."""

    def __init__(self, service: Service, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.go = 0, threading.Event()
        operation = getattr(service, name)

        def blocked(*arguments: Any) -> Any:
            self.calls += 1
            assert self.go.wait(LONG)
            return None if name == "thumbnail" else operation(*arguments)

        monkeypatch.setattr(service, name, blocked)


class Leaver:
    """A client of an app, who sends a form of images and leaves when told to; with what the app counts."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = asyncio.Event()
        self.clients, self.bodies = Clients(service.limits, Rate(0)), Bodies(service.limits)
        monkeypatch.setattr(api, "Clients", lambda *_: self.clients)
        monkeypatch.setattr(middleware, "Bodies", lambda _: self.bodies)
        self.app = api.create_app(service)

    def ask(
        self, route: str, query: str, images: Sequence[bytes], address: str = "127.0.0.2"
    ) -> asyncio.Future[None]:
        request = httpx.Request("POST", "http://localhost", files=form_of(images))
        messages = iter([{"type": "http.request", "body": request.read()}])

        async def receive() -> Any:
            for message in messages:
                return message
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            pass

        kind = request.headers["content-type"].encode()
        scope = {"type": "http", "method": "POST", "path": f"/api/{route}", "query_string": query.encode()}
        scope |= {"headers": [(b"host", b"localhost"), (b"content-type", kind)], "http_version": "1.1"}
        return asyncio.ensure_future(self.app(scope | {"client": (address, 1)}, receive, send))

    async def leave(self) -> None:
        """Leave, and let the event loop do all that follows from it."""
        self.left.set()
        for _ in range(100):
            await asyncio.sleep(0)


@pytest.fixture
def service(small_clip: Clip) -> Service:
    return Service(small_predictor(small_clip), LIMITS)


@pytest.mark.parametrize(
    ("name", "route", "query", "places"),
    [
        ("take", "batch", "", "decoding"),
        ("classify", "batch", "", "computing"),
        ("thumbnail", "neighbours", "thumbnails=true", "decoding"),
    ],
)
def test_running_work_keeps_its_place_and_its_body(
    service: Service, name: str, route: str, query: str, places: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """290 clients who left had as many threads, which stood before everyone else for 67 s."""
    monkeypatch.setattr(service, "neighbours", lambda *_: [Neighbour("a.png")] * 3)
    blocked = Blocked(service, name, monkeypatch)

    async def test() -> None:
        leaver = Leaver(service, monkeypatch)
        free = getattr(leaver.clients, places)._free
        request = leaver.ask(route, query, [png(picture())])
        await until(lambda: blocked.calls == 1)
        await leaver.leave()
        assert not request.done()
        assert getattr(leaver.clients, places)._free == free - 1
        assert leaver.bodies.size > len(png(picture()))
        assert leaver.clients._requests.total() == 1
        blocked.go.set()
        await request
        assert getattr(leaver.clients, places)._free == free
        assert (leaver.bodies.size, leaver.clients._requests.total()) == (0, 0)

    asyncio.run(test())
    assert blocked.calls == 1  # the other thumbnails are not made


@pytest.mark.parametrize("route", ["predict", "batch"])
def test_clients_take_turns_in_scoring(service: Service, route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CoCoOp encodes all classes for each image: 31 of one client stood before another's for 81 s."""
    order, go, classify = list[int](), threading.Event(), service.classify

    def scored(features: Any, vocabulary: Any, top: int) -> Any:
        order.append(top)
        assert go.wait(LONG)
        return classify(features, vocabulary, top)

    monkeypatch.setattr(service, "classify", scored)

    async def test() -> None:
        server = Leaver(service, monkeypatch)
        waiting = server.clients.scoring
        requests = [server.ask(route, f"top={number}", [png(picture())]) for number in (1, 2, 3)]
        await until(lambda: len(waiting._waiting) == 2)
        requests.append(server.ask(route, "top=9", [png(picture())], "127.0.0.3"))
        await until(lambda: len(waiting._waiting) == 3)
        go.set()
        await asyncio.gather(*requests)

    asyncio.run(test())
    assert order[1] == 9
    assert sorted(order) == [1, 2, 3, 9]


def test_images_in_the_model_keep_their_place(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(service)

    async def test() -> None:
        leaver = Leaver(service, monkeypatch)
        free = leaver.clients.computing._free
        request = leaver.ask("batch", "", [png(picture())])
        await until(lambda: gate.seen == 1)
        await leaver.leave()
        assert not request.done()
        assert leaver.clients.computing._free == free - 1
        gate.open.set()
        await request
        assert leaver.clients.computing._free == free

    asyncio.run(test())


def test_pictures_that_wait_are_not_decoded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(service, "take", monkeypatch)

    async def test() -> None:
        leaver = Leaver(service, monkeypatch)
        request = leaver.ask("batch", "", [png(picture(seed)) for seed in range(7)])
        await until(lambda: blocked.calls == LIMITS.decoders)
        assert len(leaver.clients.decoding._waiting) == AT_ONCE - LIMITS.decoders
        await leaver.leave()
        assert leaver.clients.decoding._waiting == []
        assert leaver.clients.decoding._free == 0
        blocked.go.set()
        await request
        assert leaver.clients.decoding._free == LIMITS.decoders

    asyncio.run(test())
    assert blocked.calls == LIMITS.decoders


def test_work_that_has_not_begun_is_skipped() -> None:
    """It waits for a thread, of which there is one."""
    begun, go, calls = threading.Event(), threading.Event(), list[str]()

    def work() -> str:
        calls.append("first")
        begun.set()
        assert go.wait(LONG)
        return "done"

    async def test() -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        first = asyncio.ensure_future(in_thread(work))
        await until(begun.is_set)
        second = asyncio.ensure_future(in_thread(lambda: calls.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        go.set()
        assert await first == "done"

    asyncio.run(test())
    assert calls == ["first"]


def test_an_error_after_the_client_left_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # asyncio notes errors that nobody asked for when their tasks are freed
    caplog.clear()
    begun, go = threading.Event(), threading.Event()

    def broken() -> None:
        begun.set()
        assert go.wait(LONG)
        raise ValueError("broken")

    async def test() -> None:
        task = asyncio.ensure_future(in_thread(broken))
        await until(begun.is_set)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())
    gc.collect()
    assert caplog.records == []
