"""Views against torchvision fed with the same numbers, against Pillow, and against values known by hand."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.transforms as reference
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torchvision.transforms.v2 import functional

from dear.data.images import transforms
from dear.data.images.transforms import (
    DRAWS,
    crop_box,
    eval_views,
    train_views,
    view_numbers,
    whole_views,
)

BICUBIC = functional.InterpolationMode.BICUBIC
SIZES = [(48, 48), (40, 61), (97, 31), (7, 53), (53, 7), (1, 1), (2, 3)]


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(count: int, seed: int = 1) -> list[list[float]]:
    return torch.rand(count, DRAWS, generator=seeded(seed), dtype=torch.float64).tolist()


class Uniform:
    """What `torch.empty(1)` is to torchvision: something to fill with the next number."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def uniform_(self, low: Any, high: Any) -> Tensor:
        return float(low) + (float(high) - float(low)) * torch.tensor(next(self.stream), dtype=torch.float64)


def torchvision_box(
    row: list[float], height: int, width: int, scale: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, ...]:
    """The box that torchvision's own code draws when its random calls give our numbers."""
    shape, place = iter(row[:20]), iter(row[20:22])
    fed = SimpleNamespace(
        tensor=torch.tensor,
        log=torch.log,
        exp=torch.exp,
        empty=lambda _: Uniform(shape),
        randint=lambda low, high, size: torch.tensor(low + int(next(place) * (high - low))).expand(size),
    )
    with monkeypatch.context() as patch:
        patch.setattr(reference, "torch", fed)
        image = torch.empty(3, height, width)
        return tuple(reference.RandomResizedCrop.get_params(image, [*scale], [3 / 4, 4 / 3]))


@pytest.mark.parametrize("scale", [(0.5, 1.0), (0.08, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_boxes_are_those_of_torchvision(
    height: int, width: int, scale: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in numbers(50):
        expected = torchvision_box(row, height, width, scale, monkeypatch)
        assert crop_box(row, height, width, scale) == expected


def test_a_box_by_hand() -> None:
    """Area 0.5 + 0.5 x 0.28 = 0.64 of 50 x 50, ratio 1 (the logarithms' middle): 40 x 40, 11 places each."""
    row = [0.28, 0.5, *[0.99] * 18, 0.5, 0.999, 0.0]
    assert crop_box(row, 50, 50, (0.5, 1.0)) == (5, 10, 40, 40)


def test_a_box_that_does_not_fit_is_drawn_again() -> None:
    """The whole area at ratio 4/3 is wider than a square; the second attempt is as above."""
    row = [0.9999, 0.9999, 0.28, 0.5, *[0.99] * 16, 0.5, 0.999, 0.0]
    assert crop_box(row, 50, 50, (0.5, 1.0)) == (5, 10, 40, 40)


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (10, 90, (0, 38, 10, 13)),  # 13 = round(10 x 4/3), (90 - 13) // 2 = 38
        (90, 12, (37, 0, 16, 12)),  # 16 = 12 / (3/4)
        (50, 50, (0, 0, 50, 50)),
    ],
)
def test_the_central_fallback(height: int, width: int, box: tuple[int, ...]) -> None:
    assert crop_box([0.9999] * DRAWS, height, width, (0.9, 1.0)) == box


def test_box_statistics() -> None:
    """Of a large square, most boxes fit at once: area and place spread as they should."""
    boxes = torch.tensor([crop_box(row, 1000, 1000, (0.1, 0.5)) for row in numbers(2000)]).double()
    top, left, height, width = boxes.unbind(1)
    assert (height * width / 1e6).mean() == pytest.approx(
        0.3, abs=0.01
    )  # uniform: sd 0.115 / sqrt(2000) = 0.003
    assert (width / height).log().mean() == pytest.approx(
        0.0, abs=0.02
    )  # uniform: sd 0.166 / sqrt(2000) = 0.004
    assert (top / (1000 - height)).mean() == pytest.approx(0.5, abs=0.03)
    assert (left / (1000 - width)).mean() == pytest.approx(0.5, abs=0.03)
    assert (width / height).min() > 0.745
    assert (width / height).max() < 1.345


def test_train_views_are_torchvisions_crops() -> None:
    images = [noise(k, 3, *size) for k, size in enumerate(SIZES)]
    rows = view_numbers(len(images), seeded(3)).tolist()
    views = train_views(images, 29, view_numbers(len(images), seeded(3)))
    assert views.shape == (len(images), 3, 29, 29)
    assert views.dtype == torch.float32
    assert {row[-1] < 0.5 for row in rows} == {True, False}
    for image, row, view in zip(images, rows, views, strict=True):
        box = crop_box(row, image.shape[1], image.shape[2], (0.5, 1.0))
        unit = image.double() / 255
        expected = functional.resized_crop(unit, *box, [29, 29], BICUBIC, antialias=True).clamp(0, 1)
        if row[-1] < 0.5:
            expected = functional.horizontal_flip(expected)
        torch.testing.assert_close(view.double(), expected, atol=1e-5, rtol=0)


def test_a_view_depends_on_its_place_in_the_stream_alone() -> None:
    images = noise(5, 5, 3, 19, 23)
    whole = train_views(images, 17, view_numbers(len(images), seeded(7)))
    stream = seeded(7)
    parts = [train_views(some, 17, view_numbers(len(some), stream)) for some in (images[:2], images[2:])]
    assert torch.equal(torch.cat(parts), whole)
    other = [noise(6, 3, 41, 13), *images[1:]]
    assert torch.equal(train_views(other, 17, view_numbers(len(other), seeded(7)))[1:], whole[1:])
    assert not torch.equal(train_views(images, 17, view_numbers(len(images), seeded(8))), whole)


def test_half_of_the_views_are_mirrored() -> None:
    """A ramp that rises to the right falls when mirrored: 400 views, 200 expected, standard deviation 10."""
    ramp = (torch.arange(19) * 13).to(torch.uint8).expand(400, 3, 17, 19)
    views = train_views(ramp, 11, view_numbers(len(ramp), seeded(1)))
    falling = int((views[:, 0, 5, 0] > views[:, 0, 5, -1]).sum())
    assert abs(falling - 200) < 40


def test_a_plain_picture_stays_plain() -> None:
    grey = torch.full((2, 3, 19, 23), 51, dtype=torch.uint8)
    torch.testing.assert_close(
        train_views(grey, 31, view_numbers(len(grey), seeded(1))), torch.full((2, 3, 31, 31), 0.2)
    )
    torch.testing.assert_close(eval_views(grey, 31), torch.full((2, 3, 31, 31), 0.2))


def test_overshoot_is_clipped() -> None:
    """Bicubic enlargement of noise leaves [0, 255] without the clipping."""
    images = noise(1, 2, 3, 7, 11)
    for views in (train_views(images, 53, view_numbers(2, seeded(1))), eval_views(images, 53)):
        assert views.min() == 0
        assert views.max() == 1


def test_pictures_of_the_right_size_are_only_stacked() -> None:
    images = noise(2, 5, 3, 13, 13)
    expected = torch.stack([image.to(torch.float32) / 255 for image in images])
    assert torch.equal(eval_views(images, 13), expected)
    assert torch.equal(eval_views([*images], 13), expected)


def test_the_centre_is_cut_out_without_resampling_when_the_short_side_fits() -> None:
    """17 - 13 = 4 too many columns, 2 at each side; 18 - 13 = 5 rows too many, round(2.5) = 2 above."""
    wide, tall = noise(3, 3, 13, 17), noise(4, 3, 18, 13)
    views = eval_views([wide, tall], 13)
    assert torch.equal(views[0], wide[:, :, 2:15].float() / 255)
    assert torch.equal(views[1], tall[:, 2:15].float() / 255)


@pytest.mark.parametrize(("height", "width"), [(40, 61), (97, 31), (7, 53), (19, 19), (2, 3)])
def test_eval_views_are_torchvisions_resize_and_centre_crop(height: int, width: int) -> None:
    image = noise(5, 3, height, width)
    expected = functional.resize(image.double() / 255, [29], BICUBIC, antialias=True).clamp(0, 1)
    expected = functional.center_crop(expected, [29, 29])
    torch.testing.assert_close(eval_views([image], 29)[0].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("height", "width"), [(40, 61), (97, 71)])
def test_eval_views_are_clips_own_preprocessing_but_for_rounding(height: int, width: int) -> None:
    """Pillow rounds to 8 bits after each of its two passes: a difference of a level and a half at most.

    The levels stay in the middle half: Pillow also clips between the passes, which shows in hard noise.
    """
    image = noise(6, 3, height, width) // 2 + 64
    size = (29, 29 * height // width) if height > width else (29 * width // height, 29)
    photo = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - 29) / 2), round((size[1] - 29) / 2)
    expected = torch.from_numpy(np.array(photo.crop((left, top, left + 29, top + 29)))).permute(2, 0, 1)
    assert (eval_views([image], 29)[0] * 255 - expected).abs().max() < 1.5


@pytest.mark.parametrize(("height", "width"), [(11, 97), (97, 11), (10, 97), (11, 89), (13, 1301)])
def test_a_thin_picture_is_its_middle(height: int, width: int) -> None:
    """The ends do not reach the centre square; cutting them off changes it by rounding of sizes alone."""
    picture = torch.arange(3 * height * width).view(3, height, width).mul(37).remainder(256).to(torch.uint8)
    smooth = F.avg_pool2d(picture.float(), 3, stride=1, padding=1).to(torch.uint8)
    short = min(height, width)
    size = 2 * short  # a whole number, so that both ways resize by the same factor
    whole = F.interpolate(smooth[None].float(), (2 * height, 2 * width), mode="bicubic", antialias=True)[0]
    top, left = height - short, width - short
    expected = whole[:, top : top + size, left : left + size].div(255).clamp(0, 1)
    assert torch.allclose(eval_views([smooth], size)[0], expected, atol=1e-5)


def test_a_very_thin_picture_takes_no_memory() -> None:
    made: list[int] = []

    class Counted(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor):
                made.append(found.numel())
            return found

    picture = torch.zeros(3, 1, 100_003, dtype=torch.uint8)
    with Counted():
        assert eval_views([picture], 16).shape == (1, 3, 16, 16)
    assert max(made) <= 3 * 16 * 16 * 9


def test_inputs_are_left_as_they_were() -> None:
    images = noise(7, 2, 3, 13, 13)
    before = images.clone()
    for _, size in itertools.product(range(2), (13, 11)):
        train_views(images, size, view_numbers(len(images), seeded(1)))
        eval_views(images, size).zero_()
    assert torch.equal(images, before)


@pytest.mark.parametrize("at_once", [1, 53 * 61 * 2, 2**20])
@pytest.mark.parametrize("rows_last", [False, True])
def test_pictures_of_one_size_together_are_as_each_alone(
    at_once: int, rows_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, in their order, however their bytes lie."""
    shapes = [(53, 61), (97, 31), (53, 61), (1, 9), (53, 61), (97, 31), (23, 23)]
    images = [noise(seed, height, width, 3).permute(2, 0, 1) for seed, (height, width) in enumerate(shapes)]
    images = images if rows_last else [image.contiguous() for image in images]
    rows = view_numbers(len(images), seeded(2))
    rows[2] = rows[0]  # parts of one size, too
    views = (
        lambda part, numbers: train_views(part, 23, numbers),
        lambda part, _: eval_views(part, 23),
        lambda part, _: whole_views(part, 23),
    )
    for view in views:
        alone = torch.cat([view(images[item : item + 1], rows[item : item + 1]) for item in range(7)])
        monkeypatch.setattr(transforms, "PIXELS_AT_ONCE", at_once)
        assert torch.equal(view(images, rows), alone)


def test_pictures_of_one_size_take_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    interpolate = F.interpolate

    def counted(pictures: Tensor, *args: Any, **keywords: Any) -> Tensor:
        batches.append(len(pictures))
        return interpolate(pictures, *args, **keywords)

    monkeypatch.setattr(transforms.F, "interpolate", counted)
    images = [noise(seed, 3, *shape) for seed, shape in enumerate([(53, 61), (31, 29), (53, 61), (53, 61)])]
    eval_views(images, 23)
    assert sorted(batches) == [1, 3]
    monkeypatch.setattr(transforms, "PIXELS_AT_ONCE", 2 * 53 * 61)
    batches.clear()
    whole_views(images, 23)
    assert sorted(batches) == [1, 1, 2]
