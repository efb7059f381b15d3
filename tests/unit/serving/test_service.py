"""The model's batches and what is refused before a picture is decoded."""

import asyncio

import pytest
import torch
from torch import Tensor

from dear.serving.limits import Limits, Refused
from tests.unit.serving.small import bomb, picture, png

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from dear.serving.service import Batcher, check_picture


def test_images_that_wait_go_together_and_results_to_their_owners() -> None:
    sizes = list[int]()

    def double(images: list[Tensor]) -> list[Tensor]:
        sizes.append(len(images))
        return [2 * image for image in images]

    async def submit() -> tuple[Batcher, list[Tensor]]:
        batcher = Batcher(double, 4, asyncio.Lock())  # type: ignore[arg-type]
        results = await asyncio.gather(*(batcher.submit(torch.tensor(number)) for number in range(11)))
        await batcher.submit(torch.tensor(11))
        return batcher, results

    batcher, results = asyncio.run(submit())
    assert [*map(int, results)] == [*range(0, 22, 2)]
    assert sizes == [4, 4, 3, 1]
    assert (batcher.images, batcher.batches, batcher.largest) == (12, 4, 4)


def test_an_error_reaches_its_batch_alone_and_who_has_left_stops_nothing() -> None:
    def invert(images: list[Tensor]) -> list[Tensor]:
        if any(not image for image in images):
            raise ZeroDivisionError
        return images

    async def submit() -> list[object]:
        batcher = Batcher(invert, 2, asyncio.Lock())  # type: ignore[arg-type]
        tasks = [asyncio.create_task(batcher.submit(torch.tensor(number))) for number in (0, 1, 2, 3, 4)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(submit())
    assert [type(outcome) for outcome in outcomes[:3]] == [ZeroDivisionError] * 2 + [asyncio.CancelledError]
    assert outcomes[3:] == [3, 4]


@pytest.mark.parametrize(
    ("data", "limits", "status"),
    [
        (b"", Limits(), 400),
        (b"words", Limits(), 415),
        (b"x" * 600_000, Limits(upload=0.5), 413),
        (bomb(), Limits(), 413),
        (bomb(4000, 1000), Limits(megapixels=3.9), 413),
    ],
)
def test_what_is_refused_by_its_header(data: bytes, limits: Limits, status: int) -> None:
    with pytest.raises(Refused) as refused:
        check_picture(data, limits)
    assert refused.value.status == status


def test_pictures_within_the_limits_are_taken() -> None:
    check_picture(png(picture()), Limits())
    check_picture(bomb(4000, 1000), Limits(megapixels=4))
