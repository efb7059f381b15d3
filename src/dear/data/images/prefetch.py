"""Pictures loaded ahead of their use, in a thread, pinned and on their way to the GPU where there is one."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Images, Pictures

DEPTH = 2

Loaded = tuple[Pictures, torch.cuda.Event | None]


def prefetch(
    images: Images,
    batches: Iterable[Int[Tensor, "batch"]],
    device: str | torch.device = "cpu",
    depth: int = DEPTH,
) -> Generator[Pictures, None, None]:
    """The pictures of each batch of indices, in order, on the device; `depth` more are loaded meanwhile.

    At most `depth` + 1 batches are in memory. A picture that cannot be read raises where its batch is asked
    for. Views made from pictures on a GPU are made there.
    """
    target, waiting = torch.device(device), iter(batches)
    # A stream of its own, so that copies run beside the computation.
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

    queue: deque[Future[Loaded]] = deque()
    with ThreadPoolExecutor(1) as loader:
        try:
            for indices in waiting:
                queue.append(loader.submit(fetch, indices))
                if len(queue) > depth:
                    yield _arrived(*queue.popleft().result())
            while queue:
                yield _arrived(*queue.popleft().result())
        finally:
            for future in queue:
                future.cancel()


def _arrived(pictures: Pictures, event: torch.cuda.Event | None) -> Pictures:
    """Pictures that what is computed next may use: it waits for their copy on the GPU, not here."""
    if event is not None:
        stream = torch.cuda.current_stream(pictures[0].device)
        stream.wait_event(event)
        for tensor in [pictures] if isinstance(pictures, Tensor) else pictures:
            tensor.record_stream(stream)  # its memory is not given to others before that
    return pictures
