"""Views of pictures: 8-bit pictures of any size in, squares of the model's size out; loaded ahead in a thread
and, with a GPU, pinned and copied to it asynchronously.

The test view is open_clip's own transform of the model, computed by Pillow from the full picture.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dear.backbone.preprocess import Interpolation, Preprocess
from dear.data.dataset import Images, Picture
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image
from dear.data.images.photos import LoadedImages, View
from dear.data.images.views import make_view

ATTEMPTS = 10
DRAWS = 2 * ATTEMPTS + 3
"""Random numbers per image: area and aspect ratio for each attempt, then top, left and flip."""
FLIP = 2 * ATTEMPTS + 2
RATIO = (3 / 4, 4 / 3)

DEPTH = 2
"""Batches that are loaded ahead."""
Item = TypeVar("Item")
Result = TypeVar("Result")
Move = Callable[[Tensor], Tensor]
"""Begins to copy a tensor to the device and returns the copy, which may not have arrived yet."""
Box = tuple[int, int, int, int]
"""top, left, height, width"""


def view_numbers(count: int, generator: torch.Generator) -> Float[Tensor, "item draw"]:
    """The uniform numbers in [0, 1) of so many random views: `DRAWS` each, whatever the size of a picture."""
    return torch.rand(count, DRAWS, generator=generator, dtype=torch.float64, device=generator.device)


def load_views(images: Images, indices: Int[Tensor, "batch"], view: View) -> Tensor:
    """A view of each image, stacked. The threads that decode image files make the views too, so that few
    whole photographs are in memory at a time.
    """
    images, indices = leave_subsets(images, indices)
    if isinstance(images, LoadedImages):
        return torch.stack(images.load(indices, view))
    return torch.stack([view(picture, row) for row, picture in enumerate(images.load(indices))])


def load_test_views(
    images: Images, indices: Int[Tensor, "batch"], preprocess: Preprocess
) -> UInt8[Tensor, "batch 3 size size"]:
    """The test views of images, in 8 bits: `to_unit` makes them numbers in [0, 1]."""
    return load_views(images, indices, lambda picture, _: eval_view(picture, preprocess))


def eval_view(picture: Picture, preprocess: Preprocess) -> UInt8[Tensor, "3 size size"]:
    """The test view of a picture (`make_view`)."""
    size = preprocess.size
    if picture.shape[-2:] == (size, size) and preprocess.short_side is None:
        return picture
    view = make_view(as_image(picture), preprocess)
    return torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous()


def train_view(
    picture: Picture,
    size: int,
    numbers: Sequence[float],
    scale: tuple[float, float] = (0.5, 1.0),
    interpolation: Interpolation = "bicubic",
) -> Float[Tensor, "3 size size"]:
    """A random part of a picture, resized (antialiased) and mirrored half of the time, in [0, 1].

    ``numbers`` are a row of `view_numbers`; ``scale`` bounds the part's share of the area.
    """
    top, left, height, width = crop_box(numbers, picture.shape[-2], picture.shape[-1], scale)
    view = _resized(picture[:, top : top + height, left : left + width], size, interpolation)
    return to_unit(view.flip(-1) if numbers[FLIP] < 0.5 else view)


def whole_view(
    picture: Picture, size: int, interpolation: Interpolation = "bicubic"
) -> Float[Tensor, "3 size size"]:
    """A whole picture, resized (antialiased) to a square whatever its aspect ratio, in [0, 1]."""
    return to_unit(_resized(picture, size, interpolation))


def to_unit(levels: Tensor) -> Float[Tensor, "*any"]:
    """8-bit levels to [0, 1]; bicubic filters overshoot at edges, so it clips."""
    return levels.to(torch.float32).div(255).clamp_(0, 1)


def crop_box(numbers: Sequence[float], height: int, width: int, scale: tuple[float, float]) -> Box:
    """The box of torchvision's RandomResizedCrop, from uniform numbers in [0, 1) in the order of `DRAWS`.

    Ten attempts at a box of random area (uniform) and aspect ratio (log-uniform) that fits; else the largest
    central box within the bounds of the ratio.
    """
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for attempt in range(ATTEMPTS):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * numbers[2 * attempt])
        ratio = math.exp(low + (high - low) * numbers[2 * attempt + 1])
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(numbers[2 * ATTEMPTS] * (height - tall + 1))
            left = int(numbers[2 * ATTEMPTS + 1] * (width - wide + 1))
            return top, left, tall, wide
    tall = round(width / RATIO[0]) if width / height < RATIO[0] else height
    wide = round(height * RATIO[1]) if width / height > RATIO[1] else width
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _resized(picture: Picture, size: int, interpolation: Interpolation) -> Float[Tensor, "3 size size"]:
    levels = picture.to(torch.float32)
    if picture.shape[-2:] == (size, size):
        return levels
    return F.interpolate(levels[None], (size, size), mode=interpolation, antialias=True)[0]


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


def ahead_on(
    device: str | torch.device,
    work: Callable[[Item, Move], Result],
    items: Iterable[Item],
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

    with closing(ahead(fetch, items)) as results:
        for result, copies, event in results:
            if event is not None:  # the stream, not this thread, waits for the copies
                stream = torch.cuda.current_stream(target)
                stream.wait_event(event)
                for tensor in copies:
                    tensor.record_stream(stream)  # its memory is not reused before that
            yield result


def prefetch(
    load: Callable[[Int[Tensor, "batch"]], Tensor],
    batches: Iterable[Int[Tensor, "batch"]],
    device: str | torch.device = "cpu",
) -> Generator[Float[Tensor, "batch 3 size size"], None, None]:
    """Yield the views that ``load`` gives for each batch of indices, in order, in [0, 1] and on the device,
    and load `DEPTH` batches ahead.

    At most `DEPTH` + 1 batches are in memory. Errors are raised when their batch is requested.
    """
    with closing(ahead_on(device, lambda indices, move: move(load(indices)), batches)) as loaded:
        for views in loaded:
            yield views if views.is_floating_point() else to_unit(views)


def prefetch_views(
    images: Images,
    batches: Iterable[Int[Tensor, "batch"]],
    preprocess: Preprocess,
    device: str | torch.device = "cpu",
) -> Generator[Float[Tensor, "batch 3 size size"], None, None]:
    """As `prefetch`, for the test views of images. Copied to the device in 8 bits."""
    return prefetch(lambda indices: load_test_views(images, indices, preprocess), batches, device)
