"""Long tasks in steps: one thread runs a step of the shortest task at a time, so that short ones wait little.

Lists of new class names are such tasks: a request may bring one name or a thousand.
"""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, TypeVar

from dear.serving.limits import Refused

Result = TypeVar("Result")


class Task(Generic[Result]):
    """A task's steps, of which ``left`` are still to be done; the last one yields the result, others None."""

    def __init__(self, steps: Iterator[Result | None], left: int, number: int) -> None:
        self.steps, self.left, self.number = steps, left, number
        self.future: Future[Result] = Future()

    def rank(self) -> tuple[int, int]:
        """What is done first: the shortest, and the oldest of several."""
        return self.left, self.number


class Turns(Generic[Result]):
    """One thread for up to ``waiting`` tasks; of more than that the longest is refused (503)."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self._tasks = list[Task[Result]]()
        self._numbers = itertools.count()
        self._open, self._changed = True, threading.Condition()
        self._thread = threading.Thread(target=self._run, name="turns", daemon=True)
        self._thread.start()

    def submit(self, steps: Iterator[Result | None], count: int) -> Future[Result]:
        """The result of a task of ``count`` steps, Refused for a task that gives way to shorter ones. A task
        whose future is cancelled is dropped.
        """
        with self._changed:
            task = Task(steps, count, next(self._numbers))
            self._tasks = [*(other for other in self._tasks if not other.future.done()), task]
            dropped = max(self._tasks, key=Task.rank) if len(self._tasks) > self.waiting else None
            if dropped is not None:
                self._tasks.remove(dropped)
            self._changed.notify()
        if dropped is not None:
            with suppress(InvalidStateError):
                dropped.future.set_exception(
                    Refused(
                        503, "too many new class names are waiting: try again soon.", {"Retry-After": "10"}
                    )
                )
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
            task.left -= 1
            if result is not None:
                with suppress(InvalidStateError):
                    task.future.set_result(result)
            del task, result  # while it waits, the thread holds nothing of what it did

    def _next(self) -> Task[Result] | None:
        """The task whose step is next; None at the end."""
        with self._changed:
            while self._open:
                self._tasks = [task for task in self._tasks if not task.future.done()]
                if self._tasks:
                    return min(self._tasks, key=Task.rank)
                self._changed.wait()
            return None
