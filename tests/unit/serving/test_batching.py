"""Batches: what they hold, and what an error or a full queue does. Events, not times, decide."""

import threading
from collections.abc import Sequence

import pytest

from dear.serving.batching import Batcher
from dear.serving.limits import Refused

LONG = 30.0


def test_items_that_wait_go_together_and_results_to_their_owners() -> None:
    seen: list[list[int]] = []
    started, go = threading.Event(), threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        seen.append([*items])
        started.set()
        assert go.wait(LONG)
        return [item * 10 for item in items]

    batcher = Batcher(work, most=3, wait=0.0, waiting=7)
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
    batcher = Batcher(lambda items: [len(items)] * len(items), most=2, wait=LONG, waiting=7)
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

    batcher = Batcher(work, most=1, wait=0.0, waiting=2)
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
