"""Work in other threads for requests that may be cancelled, as when their client leaves."""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool

Result = TypeVar("Result")


async def in_thread(work: Callable[[], Result]) -> Result:
    """The result of ``work`` in a thread of the framework. If the task is cancelled, work that has not begun
    is skipped, and work that has begun is waited for: until it ends, the caller keeps its place, and its
    images count.
    """
    beginning = Future[None]()

    def unless_cancelled() -> Result:
        if not beginning.set_running_or_notify_cancel():
            raise CancelledError
        return work()

    running = asyncio.ensure_future(run_in_threadpool(unless_cancelled))
    return await _to_its_end(running, lambda: beginning.cancel() and running.cancel())


async def of_queue(future: Future[Result]) -> Result:
    """The result of an item in the queue of another thread; the same holds of its work."""
    return await _to_its_end(asyncio.wrap_future(future), future.cancel)


async def _to_its_end(work: asyncio.Future[Result], skip: Callable[[], bool]) -> Result:
    """The result of ``work``, which is not cancelled with the task, since its thread would go on. ``skip``
    drops work that has not begun, and returns whether it did.
    """
    work.add_done_callback(lambda work: work.cancelled() or work.exception())  # nobody may ask for it
    try:
        await asyncio.wait([work])
    except asyncio.CancelledError:
        if not skip():
            await asyncio.wait([work])
        raise
    return work.result()
