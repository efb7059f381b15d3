"""The model's batches and what is refused before a picture is decoded."""

import asyncio
import io
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image
from torch import Tensor

from dear.serving.limits import Limits
from tests.helpers.server import bomb, picture, png

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from dear.data.images.decode import as_picture
from dear.serving.service import Batcher, decode_picture


def keep(features: Tensor) -> Tensor:
    return features


async def submit(
    batcher: Batcher,
    numbers: Sequence[int],
    leaves: int | None = None,
    finish: Callable[[Tensor], object] = keep,
) -> list[object]:
    """The results of numbers that come while the model is busy; one of them leaves before its turn."""
    free = threading.Event()
    batcher.thread.submit(free.wait)
    tasks = [asyncio.create_task(batcher.submit(torch.tensor(number), finish)) for number in numbers]
    await asyncio.sleep(0)
    if leaves is not None:
        tasks[leaves].cancel()
    await asyncio.sleep(0)
    free.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_images_that_wait_go_together_and_results_to_their_owners() -> None:
    sizes = list[int]()

    def double(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return 2 * images

    batcher = Batcher(double, 4, ThreadPoolExecutor(1))
    assert asyncio.run(submit(batcher, range(11))) == [*range(0, 22, 2)]
    assert asyncio.run(submit(batcher, [11])) == [22]
    assert sizes == [4, 4, 3, 1]
    assert (batcher.images, batcher.batches, batcher.largest) == (12, 4, 4)


def test_an_error_reaches_its_batch_alone_and_who_has_left_stops_nothing() -> None:
    def invert(images: Tensor) -> Tensor:
        if not images.all():
            raise ZeroDivisionError
        return images

    batcher = Batcher(invert, 2, ThreadPoolExecutor(1))
    outcomes = asyncio.run(submit(batcher, range(5), leaves=2))
    assert [type(outcome) for outcome in outcomes[:3]] == [ZeroDivisionError] * 2 + [asyncio.CancelledError]
    assert outcomes[3:] == [3, 4]


def test_each_image_is_finished_in_the_thread_of_the_model_and_fails_alone() -> None:
    threads = set[str]()

    def finish(features: Tensor) -> float:
        threads.add(threading.current_thread().name)
        return 6 / int(features)

    batcher = Batcher(keep, 4, ThreadPoolExecutor(1, thread_name_prefix="model"))
    outcomes = asyncio.run(submit(batcher, range(3), finish=finish))
    assert isinstance(outcomes[0], ZeroDivisionError)
    assert outcomes[1:] == [6, 3]
    assert threads == {"model_0"}


def test_pictures_within_the_limits_are_decoded() -> None:
    assert torch.equal(decode_picture(png(picture()), Limits()), as_picture(picture()))
    assert decode_picture(bomb(4000, 1000), Limits(megapixels=4)).shape == (3, 1000, 4000)


def test_a_large_jpeg_is_reduced_while_it_is_decoded() -> None:
    """Orange above blue, turned by its EXIF orientation: blue left of orange."""
    image, stream, exif = Image.new("RGB", (8192, 6144), (255, 128, 0)), io.BytesIO(), Image.Exif()
    image.paste((0, 0, 255), (0, 3072, 8192, 6144))
    exif[0x0112] = 6
    image.save(stream, "JPEG", exif=exif)
    pixels = decode_picture(stream.getvalue(), Limits())
    assert pixels.shape == (3, 2048, 1536)
    want = torch.tensor([[0, 0, 255], [255, 128, 0]])
    assert (pixels[:, 1000, [100, 1400]].T.int() - want).abs().max() < 4
