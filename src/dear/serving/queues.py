"""Three queues of work: `Batcher` computes requests that arrive together in one batch; `Turns` runs long
tasks in steps, and `Places` lets requests in: both those first whose client has had least.
"""

import asyncio
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from dear.serving.limits import Refused

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """One thread that processes up to ``max_batch`` items at once, waiting up to ``wait`` seconds for them.

    Attributes:
        items, batches, largest: Items and batches processed so far, and the size of the largest batch.
    """

    def __init__(
        self, work: Callable[[Sequence[Item]], Sequence[Result]], *, max_batch: int, wait: float, waiting: int
    ) -> None:
        self.work, self.max_batch, self.wait = work, max_batch, wait
        self.items = self.batches = self.largest = 0
        self._queue: queue.Queue[tuple[Item, Future[Result]] | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """Put an item into the next batch. Raises Refused (503) if too many are waiting already."""
        future: Future[Result] = Future()
        if self._queue.full():
            self._drop_cancelled()
        try:
            self._queue.put_nowait((item, future))
        except queue.Full:
            raise Refused(503, "the server is busy: try again soon.", {"Retry-After": "2"}) from None
        return future

    def _drop_cancelled(self) -> None:
        """Make room that requests of clients who have left take."""
        with self._queue.mutex:
            entries = self._queue.queue
            live = [entry for entry in entries if entry is None or not entry[1].cancelled()]
            entries.clear()
            entries.extend(live)
            self._queue.not_full.notify_all()

    @property
    def waiting(self) -> int:
        """About the number of items that wait."""
        return self._queue.qsize()

    def close(self, seconds: float | None = None) -> bool:
        """Stop the thread once waiting items are done; returns whether that happened within ``seconds``."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._collect()
            # A request whose client disconnected was cancelled while it waited.
            live = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
            if not live:
                continue
            try:
                results = self.work([item for item, _ in live])
            except BaseException as error:
                for _, future in live:
                    future.set_exception(error)
                continue
            self.items, self.batches = self.items + len(live), self.batches + 1
            self.largest = max(self.largest, len(live))
            for (_, future), result in zip(live, results, strict=True):
                future.set_result(result)

    def _collect(self) -> tuple[list[tuple[Item, Future[Result]]], bool]:
        """The next batch, and whether more may come."""
        first = self._queue.get()
        if first is None:
            return [], False
        batch, deadline = [first], time.monotonic() + self.wait
        while len(batch) < self.max_batch:
            try:
                entry = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if entry is None:
                return batch, False
            batch.append(entry)
        return batch, True


class Task(Generic[Result]):
    """A client's task of ``steps``, of which ``remaining`` are still to be done. The last step yields the
    result, the others None.
    """

    def __init__(self, client: str, steps: Iterator[Result | None], remaining: int, number: int) -> None:
        self.client, self.steps, self.remaining, self.number = client, steps, remaining, number
        self.future: Future[Result] = Future()

    def rank(self) -> tuple[int, int]:
        """The order of a client's tasks: the shortest first, and the oldest of equals."""
        return self.remaining, self.number


class Turns(Generic[Result]):
    """One thread for up to ``waiting`` tasks, such as lists of new class names: a request may bring one name
    or a thousand. It runs a step at a time: of the client that has had the fewest steps, and of its shortest
    task, so that short ones wait little. A client that comes has had as many as the one that has had the
    fewest. Of too many tasks the longest is refused (503), of the client that has most.
    """

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self._tasks = list[Task[Result]]()
        self._steps = dict[str, int]()  # by client, of those that have tasks
        self._numbers = itertools.count()
        self._open, self._changed = True, threading.Condition()
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._thread.start()

    def submit(self, client: str, steps: Iterator[Result | None], count: int) -> Future[Result]:
        """The result of a client's task of ``count`` steps, Refused for a task that gives way to others. A
        task whose future is cancelled is dropped.
        """
        with self._changed:
            task = Task(client, steps, count, next(self._numbers))
            self._drop_ended()
            self._steps.setdefault(client, min(self._steps.values(), default=0))
            self._tasks.append(task)
            dropped = None
            if len(self._tasks) > self.waiting:
                tasks = Counter(waiting.client for waiting in self._tasks)
                dropped = max(self._tasks, key=lambda waiting: (tasks[waiting.client], *waiting.rank()))
                self._tasks.remove(dropped)
            self._changed.notify()
        if dropped is not None:
            message = "too many new class names are waiting: try again soon."
            with suppress(InvalidStateError):
                dropped.future.set_exception(Refused(503, message, {"Retry-After": "10"}))
        return task.future

    def close(self, seconds: float | None = None) -> bool:
        """Stop the thread after its current step; returns whether that happened within ``seconds``."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                result = next(task.steps)
            except BaseException as error:
                with suppress(InvalidStateError):  # the client has gone
                    task.future.set_exception(error)
                continue
            task.remaining -= 1
            with self._changed:
                if task.client in self._steps:
                    self._steps[task.client] += 1
            if result is not None:
                with suppress(InvalidStateError):
                    task.future.set_result(result)
            del task, result  # while it waits, the thread holds nothing of the last task

    def _next(self) -> Task[Result] | None:
        """The task whose step is next; None at the end."""
        with self._changed:
            while self._open:
                self._drop_ended()
                if self._tasks:
                    return min(self._tasks, key=lambda task: (self._steps[task.client], *task.rank()))
                self._changed.wait()
            return None

    def _drop_ended(self) -> None:
        """Forget tasks that have ended, and clients without any."""
        self._tasks = [task for task in self._tasks if not task.future.done()]
        clients = {task.client for task in self._tasks}
        self._steps = {client: steps for client, steps in self._steps.items() if client in clients}


@dataclass
class _Client:
    """A client: its requests that wait or have a place, the places, and the seconds that it has had some."""

    requests: int = 0
    places: int = 0
    seconds: float = 0.0


class Places:
    """``count`` places for the work of requests, in an event loop. A free one goes to the client that has the
    fewest and has had them for the shortest time, and to the oldest request of it: many requests of a client
    delay only its own. A client without requests is forgotten.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._clients = dict[str, _Client]()
        self._waiting = list[tuple[_Client, asyncio.Future[None]]]()

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it within."""
        entry = self._clients.setdefault(client, _Client())
        entry.requests += 1
        try:
            await self._take(entry)
            start = time.monotonic()
            try:
                yield
            finally:
                entry.seconds += time.monotonic() - start
                self._give_back(entry)
        finally:
            entry.requests -= 1
            if not entry.requests:
                del self._clients[client]

    async def _take(self, entry: _Client) -> None:
        if self._free:
            self._free -= 1
            entry.places += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting = [waiting for waiting in self._waiting if waiting[1] is not turn]
            else:  # it was given a place in this very moment
                self._give_back(entry)
            raise

    def _give_back(self, entry: _Client) -> None:
        entry.places -= 1
        # A request that is cancelled in this pass of the event loop has not removed itself yet.
        self._waiting = [waiting for waiting in self._waiting if not waiting[1].done()]
        if not self._waiting:
            self._free += 1
            return
        chosen = min(self._waiting, key=lambda waiting: (waiting[0].places, waiting[0].seconds))
        self._waiting.remove(chosen)
        chosen[0].places += 1
        chosen[1].set_result(None)
