"""Bodies in memory: if there is no room, the one that has been arriving for longest gives way."""

import asyncio
from contextlib import ExitStack

import pytest

from dear.serving.limits import MIB, Limits, Refused

pytest.importorskip("python_multipart", reason="the extra `app` is not installed")
from starlette.types import Message

from dear.serving.bodies import Bodies

LIMITS = Limits(upload=1, bodies=3, patience=600.0)
PART = MIB - 1000


async def arrive(bodies: Bodies, stack: ExitStack, *, complete: bool) -> "asyncio.Task[list[Message]]":
    """A request whose first part has come; unless that is all, the rest never does."""
    body = stack.enter_context(bodies.body())
    parts: asyncio.Queue[Message] = asyncio.Queue()
    parts.put_nowait({"type": "http.request", "body": b"\0" * PART, "more_body": not complete})
    receive = bodies.counted(body, parts.get)

    async def read() -> list[Message]:
        messages = [await receive()]
        while messages[-1]["more_body"]:
            messages.append(await receive())
        return messages

    task = asyncio.create_task(read())
    await settle()
    return task


async def settle() -> None:
    """Let the event loop do all that follows."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_the_oldest_of_those_that_arrive_give_way() -> None:
    async def scenario() -> None:
        bodies = Bodies(LIMITS)
        with ExitStack() as stack:
            slow = [await arrive(bodies, stack, complete=False) for _ in range(5)]
            assert [task.done() for task in slow] == [True, True, False, False, False]
            honest = await arrive(bodies, stack, complete=True)
            assert len((await honest)[0]["body"]) == PART
            assert [task.done() for task in slow] == [True, True, True, False, False]
            for task in slow[:3]:
                with pytest.raises(Refused, match="no room") as refused:
                    await task
                assert refused.value.status == 503
            assert bodies.size == 3 * PART
            for task in slow[3:]:
                task.cancel()
        assert bodies.size == 0

    asyncio.run(scenario())


def test_complete_bodies_do_not_give_way() -> None:
    """They are being answered: the newcomer is refused."""

    async def scenario() -> None:
        bodies = Bodies(LIMITS)
        with ExitStack() as stack:
            for task in [await arrive(bodies, stack, complete=True) for _ in range(3)]:
                await task
            with pytest.raises(Refused, match="no room"):
                await (await arrive(bodies, stack, complete=True))
            assert bodies.size == 3 * PART

    asyncio.run(scenario())
