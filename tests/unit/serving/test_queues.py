"""Batches: what they hold, and what an error or a full queue does. Turns: which step is next, what gives way,
what is dropped. Events, not times, decide.
"""

import threading
from collections.abc import Iterator, Sequence

import pytest

from dear.serving.limits import Refused
from dear.serving.queues import Batcher, Turns

LONG = 30.0


def test_items_that_wait_go_together_and_results_to_their_owners() -> None:
    seen: list[list[int]] = []
    started, go = threading.Event(), threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        seen.append([*items])
        started.set()
        assert go.wait(LONG)
        return [item * 10 for item in items]

    batcher = Batcher(work, max_batch=3, wait=0.0, waiting=7)
    first = batcher.submit(0)
    assert started.wait(LONG)
    rest = [batcher.submit(item) for item in range(1, 6)]
    gone = batcher.submit(99)
    assert gone.cancel()
    go.set()
    assert [future.result(LONG) for future in (first, *rest)] == [0, 10, 20, 30, 40, 50]
    batcher.close()
    assert seen == [[0], [1, 2, 3], [4, 5]]
    assert (batcher.items, batcher.batches, batcher.largest) == (6, 3, 3)


def test_a_batch_waits_for_more() -> None:
    batcher = Batcher(lambda items: [len(items)] * len(items), max_batch=2, wait=LONG, waiting=7)
    futures = [batcher.submit(item) for item in range(4)]
    assert [future.result(LONG) for future in futures] == [2, 2, 2, 2]
    batcher.close()


def test_a_full_queue_refuses_and_an_error_reaches_its_batch_alone() -> None:
    started, go = threading.Event(), threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        started.set()
        assert go.wait(LONG)
        if 1 in items:
            raise ValueError("one")
        return [*items]

    batcher = Batcher(work, max_batch=1, wait=0.0, waiting=2)
    first = batcher.submit(0)
    assert started.wait(LONG)
    second, third = batcher.submit(1), batcher.submit(2)
    with pytest.raises(Refused, match="busy") as refused:
        batcher.submit(3)
    assert refused.value.status == 503
    go.set()
    assert (first.result(LONG), third.result(LONG)) == (0, 2)
    with pytest.raises(ValueError, match="one"):
        second.result(LONG)
    batcher.close()


def test_cancelled_items_leave_their_room_in_a_full_queue() -> None:
    """Those of clients who left, while a batch is computed, had everyone else refused."""
    started, go = threading.Event(), threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        started.set()
        assert go.wait(LONG)
        return [*items]

    batcher = Batcher(work, max_batch=1, wait=0.0, waiting=3)
    first = batcher.submit(0)
    assert started.wait(LONG)
    others = [batcher.submit(item) for item in (1, 2, 3)]
    assert others[0].cancel()
    assert others[2].cancel()
    last = [batcher.submit(item) for item in (4, 5)]
    with pytest.raises(Refused, match="busy"):
        batcher.submit(6)
    go.set()
    assert [future.result(LONG) for future in (first, others[1], *last)] == [0, 2, 4, 5]
    assert batcher.close(LONG)


class Steps:
    """Tasks of named steps; the first one waits until ``go`` is set."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.done = list[str]()

    def first(self, count: int) -> Iterator[str | None]:
        self.begun.set()
        assert self.go.wait(LONG)
        yield from self.of("first", count)

    def of(self, name: str, count: int) -> Iterator[str | None]:
        for step in range(1, count + 1):
            self.done.append(f"{name} {step}")
            yield name if step == count else None


def test_the_shortest_task_is_next_and_the_oldest_of_several() -> None:
    steps, turns = Steps(), Turns[str](7)
    first = turns.submit("a client", steps.first(3), 3)
    assert steps.begun.wait(LONG)
    others = [
        turns.submit("a client", steps.of(name, count), count)
        for name, count in (("c", 5), ("a", 1), ("b", 1))
    ]
    steps.go.set()
    assert [future.result(LONG) for future in (first, *others)] == ["first", "c", "a", "b"]
    assert turns.close(LONG)
    assert steps.done == ["first 1", "a 1", "b 1", "first 2", "first 3", "c 1", "c 2", "c 3", "c 4", "c 5"]


def test_clients_take_turns_however_many_tasks_they_have() -> None:
    """One that sent many short lists of names held up all longer ones of others."""
    steps, turns = Steps(), Turns[str](99)
    first = turns.submit("one", steps.first(1), 1)
    assert steps.begun.wait(LONG)
    tasks = [turns.submit("one", steps.of("a", 1), 1) for _ in range(9)]
    tasks.append(turns.submit("two", steps.of("b", 3), 3))
    steps.go.set()
    for task in (first, *tasks):
        task.result(LONG)
    assert turns.close(LONG)
    # The second came when the first had had none, so it has three in turn with it.
    assert steps.done[:6] == ["first 1", "b 1", "a 1", "b 2", "a 1", "b 3"]


def test_a_client_that_comes_has_no_debts_of_others_to_wait_for() -> None:
    steps, turns = Steps(), Turns[str](99)
    tasks = [turns.submit("one", steps.of("a", 20), 20)]
    tasks[0].result(LONG)
    tasks.append(turns.submit("one", steps.first(6), 6))
    assert steps.begun.wait(LONG)
    tasks += [turns.submit("one", steps.of("a", 2), 2), turns.submit("two", steps.of("b", 3), 3)]
    steps.done.clear()
    steps.go.set()
    for task in tasks:
        task.result(LONG)
    assert turns.close(LONG)
    assert steps.done[:5] == ["first 1", "b 1", "a 1", "b 2", "a 2"]


def test_of_too_many_that_of_the_client_with_most_gives_way() -> None:
    steps, turns = Steps(), Turns[str](4)
    first = turns.submit("one", steps.first(2), 2)
    assert steps.begun.wait(LONG)
    tasks = [turns.submit("one", steps.of("a", count), count) for count in (1, 3, 1)]
    honest = turns.submit("two", steps.of("b", 9), 9)
    with pytest.raises(Refused, match="too many new class names"):
        tasks[1].result(LONG)
    steps.go.set()
    assert [task.result(LONG) for task in (first, tasks[0], tasks[2], honest)] == ["first", "a", "a", "b"]
    assert turns.close(LONG)


def test_of_too_many_the_longest_gives_way_even_if_it_has_begun() -> None:
    steps, turns = Steps(), Turns[str](2)
    first = turns.submit("a client", steps.first(9), 9)
    assert steps.begun.wait(LONG)
    second, third = (
        turns.submit("a client", steps.of("b", 5), 5),
        turns.submit("a client", steps.of("c", 2), 2),
    )
    fourth = turns.submit("a client", steps.of("d", 7), 7)
    for refused in (first, fourth):
        with pytest.raises(Refused, match="too many new class names") as error:
            refused.result(LONG)
        assert error.value.status == 503
    steps.go.set()
    assert (second.result(LONG), third.result(LONG)) == ("b", "c")
    assert turns.close(LONG)
    assert "first 2" not in steps.done


def test_a_cancelled_task_is_dropped_and_an_error_ends_its_task_alone() -> None:
    def broken() -> Iterator[str | None]:
        yield None
        raise ValueError("broken")

    steps, turns = Steps(), Turns[str](7)
    first = turns.submit("a client", steps.first(2), 2)
    assert steps.begun.wait(LONG)
    gone, error, last = (
        turns.submit("a client", steps.of("gone", 3), 3),
        turns.submit("a client", broken(), 2),
        None,
    )
    assert gone.cancel()
    assert first.cancel()
    steps.go.set()
    with pytest.raises(ValueError, match="broken"):
        error.result(LONG)
    last = turns.submit("a client", steps.of("last", 1), 1)
    assert last.result(LONG) == "last"
    assert turns.close(LONG)
    assert steps.done == ["first 1", "last 1"]
