"""Load views ahead in a thread; with a GPU, pin them and copy them to it asynchronously."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.backbone.preprocess import Preprocess
from dear.data.dataset import Images
from dear.data.images.transforms import load_test_views

DEPTH = 2

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(
    work: Callable[[Item], Result], items: Iterable[Item], depth: int = DEPTH
) -> Generator[Result, None, None]:
    """Yield the results of `work`, in order, computed in a thread up to `depth` items ahead; items are taken
    in the calling thread. Errors are raised when their result is requested.
    """
    queue: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(1) as worker:
        try:
            for item in items:
                queue.append(worker.submit(work, item))
                if len(queue) > depth:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            for future in queue:
                future.cancel()


Move = Callable[[Tensor], Tensor]
"""Begins to copy a tensor to the device and returns the copy, which may not have arrived yet."""


def ahead_on(
    device: str | torch.device,
    work: Callable[[Item, Move], Result],
    items: Iterable[Item],
    depth: int = DEPTH,
) -> Generator[Result, None, None]:
    """As `ahead`, for work that calls the function it is given for each tensor of its result, so that copies
    to a GPU overlap with its computation. On a CPU that function returns the tensor itself.
    """
    target = torch.device(device)
    side = torch.cuda.Stream(target) if target.type == "cuda" else None

    def fetch(item: Item) -> tuple[Result, list[Tensor], torch.cuda.Event | None]:
        if side is None:
            return work(item, lambda tensor: tensor), [], None
        copies: list[Tensor] = []

        def move(tensor: Tensor) -> Tensor:
            copies.append(tensor.pin_memory().to(target, non_blocking=True))
            return copies[-1]

        with torch.cuda.stream(side):
            return work(item, move), copies, side.record_event()

    with closing(ahead(fetch, items, depth)) as results:
        for result, copies, event in results:
            if event is not None:  # the stream, not this thread, waits for the copies
                stream = torch.cuda.current_stream(target)
                stream.wait_event(event)
                for tensor in copies:
                    tensor.record_stream(stream)  # its memory is not reused before that
            yield result


def prefetch_views(
    images: Images,
    batches: Iterable[Int[Tensor, "batch"]],
    preprocess: Preprocess,
    device: str | torch.device = "cpu",
    depth: int = DEPTH,
) -> Generator[UInt8[Tensor, "batch 3 size size"], None, None]:
    """Yield the test views of each batch of indices, in order, on the device, and load `depth` batches ahead.

    At most `depth` + 1 batches are in memory. Errors are raised when their batch is requested.
    """

    def load(indices: Tensor, move: Move) -> Tensor:
        return move(load_test_views(images, indices, preprocess))

    return ahead_on(device, load, batches, depth)
