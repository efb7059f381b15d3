"""Batch requests: those that arrive within some milliseconds go through the model together."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

from dear.serving.limits import Refused

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """One thread that processes up to ``most`` items at once, waiting up to ``wait`` seconds for them."""

    def __init__(
        self, work: Callable[[Sequence[Item]], Sequence[Result]], *, most: int, wait: float, waiting: int
    ) -> None:
        self.work, self.most, self.wait = work, most, wait
        self.items = self.batches = self.largest = 0  # done so far
        self._queue: queue.Queue[tuple[Item, Future[Result]] | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """Put an item into the next batch. Raises Refused (503) if too many are waiting already."""
        future: Future[Result] = Future()
        try:
            self._queue.put_nowait((item, future))
        except queue.Full:
            raise Refused(503, "the server is busy: try again soon.", {"Retry-After": "2"}) from None
        return future

    def close(self, seconds: float | None = None) -> bool:
        """Stop the thread once waiting items are done; returns whether that happened within ``seconds``."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._collect()
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
        batch, until = [first], time.monotonic() + self.wait
        while len(batch) < self.most:
            try:
                entry = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if entry is None:
                return batch, False
            batch.append(entry)
        return batch, True
