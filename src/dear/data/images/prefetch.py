"""Load pictures ahead in a thread; with a GPU, pin them and copy them to it asynchronously."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Images, Pictures

DEPTH = 2

Loaded = tuple[Pictures, torch.cuda.Event | None]
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


def prefetch(
    images: Images,
    batches: Iterable[Int[Tensor, "batch"]],
    device: str | torch.device = "cpu",
    depth: int = DEPTH,
) -> Generator[Pictures, None, None]:
    """Yield the pictures of each batch of indices, in order, on the device, and load `depth` batches ahead.

    At most `depth` + 1 batches are in memory. Errors are raised when their batch is requested. Views of
    pictures on a GPU are computed there.
    """
    target = torch.device(device)
    # A separate stream, so that copies overlap with the computation.
    side = torch.cuda.Stream(target) if target.type == "cuda" else None

    def fetch(indices: Int[Tensor, "batch"]) -> Loaded:
        pictures = images.load(indices)
        if side is None:
            return pictures, None
        with torch.cuda.stream(side):
            moved: Pictures = (
                pictures.pin_memory().to(target, non_blocking=True)
                if isinstance(pictures, Tensor)
                else [picture.pin_memory().to(target, non_blocking=True) for picture in pictures]
            )
            return moved, side.record_event()

    with closing(ahead(fetch, batches, depth)) as loaded:
        for pictures, event in loaded:
            yield _arrived(pictures, event)


def _arrived(pictures: Pictures, event: torch.cuda.Event | None) -> Pictures:
    """The pictures, safe for use by later GPU work: the stream, not this thread, waits for their copy."""
    if event is not None:
        stream = torch.cuda.current_stream(pictures[0].device)
        stream.wait_event(event)
        for tensor in [pictures] if isinstance(pictures, Tensor) else pictures:
            tensor.record_stream(stream)  # its memory is not reused before that
    return pictures
