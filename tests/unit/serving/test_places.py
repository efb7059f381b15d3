"""Which request gets a place for its picture next. No time decides: the clock is set by hand."""

import asyncio

import pytest

from dear.serving.queues import Places


class Order:
    """Requests that keep a place until they are told to end, and the order in which they got it."""

    def __init__(self, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places, self.got = places, list[str]()
        self.ends = dict[str, asyncio.Event]()
        self.tasks = dict[str, asyncio.Task[None]]()
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    async def ask(self, *names: str) -> None:
        """Each name is a client and a number."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.ensure_future(self._keep(name))
            await asyncio.sleep(0)

    async def _keep(self, name: str) -> None:
        async with self.places.place(name[0]):
            self.got.append(name)
            await self.ends[name].wait()

    async def end(self, name: str, seconds: float = 1.0) -> None:
        self.now += seconds
        self.ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)


def test_many_requests_of_a_client_delay_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        order = Order(Places(2), monkeypatch)
        await order.ask(*(f"a{number}" for number in range(6)), "b0", "c0", "b1")
        assert order.got == ["a0", "a1"]
        await order.end("a0")
        await order.end("a1")
        assert order.got[2:] == ["b0", "c0"]
        await order.end("b0")  # a has had 1 + 1 seconds, b one
        await order.end("c0")
        assert order.got[4:] == ["b1", "a2"]

    asyncio.run(test())


def test_the_client_that_has_had_least_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        order = Order(Places(1), monkeypatch)
        await order.ask("a0", "a1", "a2", "b0", "b1", "b2")
        for name, seconds in (("a0", 5), ("b0", 1), ("b1", 3), ("b2", 9), ("a1", 1)):
            assert order.got[-1] == name
            await order.end(name, seconds)
        assert order.got[-1] == "a2"
        await order.end("a2")
        await order.ask("b9", "a9", "b8")  # nobody has had any: those without requests are forgotten
        await order.end("b9")
        assert order.got[-1] == "a9"

    asyncio.run(test())


@pytest.mark.parametrize("given", [False, True])
def test_a_request_that_goes_leaves_its_place(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits, or in the moment in which it is given a place."""

    async def test() -> None:
        order = Order(Places(1), monkeypatch)
        await order.ask("a0", "b0", "c0")
        if given:
            order.ends["a0"].set()
            while not order.tasks["a0"].done():
                await asyncio.sleep(0)
                order.tasks["b0"].cancel()
        else:
            order.tasks["b0"].cancel()
            await order.end("a0")
        await asyncio.gather(order.tasks["b0"], return_exceptions=True)
        await asyncio.sleep(0)
        assert order.tasks["b0"].cancelled()
        assert order.got == ["a0", "c0"]
        await order.end("c0")
        await order.ask("d0", "e0")
        assert order.got[2:] == ["d0"]

    asyncio.run(test())


def test_a_request_that_goes_does_not_disturb_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled in the pass of the event loop in which the other ends: it still stands in the queue."""

    async def test() -> None:
        order = Order(Places(1), monkeypatch)
        await order.ask("a0", "b0", "c0", "d0")
        order.ends["a0"].set()
        order.tasks["b0"].cancel()
        order.tasks["c0"].cancel()
        await order.tasks["a0"]
        await asyncio.gather(order.tasks["b0"], order.tasks["c0"], return_exceptions=True)
        await asyncio.sleep(0)
        assert order.got == ["a0", "d0"]
        await order.end("d0")
        assert (order.places._free, order.places._waiting, order.places._clients) == (1, [], {})

    asyncio.run(test())
