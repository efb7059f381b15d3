"""Pictures loaded ahead of their use, in a thread, pinned and on their way to the GPU where there is one."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Images, Pictures

DEPTH = 2


def load_ahead(
    images: Images,
    batches: Iterable[Int[Tensor, "batch"]],
    device: str | torch.device = "cpu",
    depth: int = DEPTH,
) -> Iterator[Pictures]:
    """The pictures of each batch of indices, in order, on the device; `depth` more are loaded meanwhile.

    At most `depth` + 1 batches are in memory. A picture that cannot be read raises where its batch is asked
    for. Views made from pictures on a GPU are made there.
    """
    target, waiting = torch.device(device), iter(batches)

    def fetch(indices: Int[Tensor, "batch"]) -> Pictures:
        pictures = images.load(indices)
        if target.type != "cuda":
            return pictures
        if isinstance(pictures, Tensor):
            return pictures.pin_memory().to(target, non_blocking=True)
        return [picture.pin_memory().to(target, non_blocking=True) for picture in pictures]

    queue: deque[Future[Pictures]] = deque()
    with ThreadPoolExecutor(1) as loader:
        try:
            for indices in waiting:
                queue.append(loader.submit(fetch, indices))
                if len(queue) > depth:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            for future in queue:
                future.cancel()
