"""Views against torchvision fed with the same numbers, against Pillow, and against values known by hand."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.transforms as reference
from open_clip import transform as open_clip_transform
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional

from dear.backbone.loading.transformers_format import read_preprocess
from dear.backbone.preprocess import Preprocess
from dear.data.images.decode import as_image
from dear.data.images.transforms import DRAWS, crop_box, eval_view, view_numbers
from tests.helpers.clips import train_views

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


MODES: list[dict[str, Any]] = [
    {},
    {"interpolation": "bilinear"},
    {"resize_mode": "squash"},
    {"resize_mode": "squash", "interpolation": "bilinear"},
    {"resize_mode": "longest", "fill_color": 7},
]


@pytest.mark.parametrize("settings", MODES, ids=lambda settings: "-".join(map(str, settings.values())))
@pytest.mark.parametrize("size", [224, 240])
@pytest.mark.parametrize(("height", "width"), [(427, 640), (113, 97), (91, 700), (337, 337)])
def test_the_test_view_is_open_clips_own(
    height: int, width: int, size: int, settings: dict[str, Any]
) -> None:
    """To the level, of pictures that are larger and smaller than the model's."""
    picture = noise(5, 3, height, width)
    transform = open_clip_transform.image_transform_v2(
        open_clip_transform.PreprocessCfg(size=size, mean=(0, 0, 0), std=(1, 1, 1), **settings),
        is_train=False,
    )
    expected = transform(Image.fromarray(picture.permute(1, 2, 0).numpy()))
    view = eval_view(picture, Preprocess.from_open_clip(size, settings))
    assert torch.equal(view, (expected * 255).round().to(torch.uint8))


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("clip", {}),
        ("clip", {"size": {"shortest_edge": 37}, "crop_size": {"height": 37, "width": 37}, "resample": 2}),
        ("clip", {"size": {"shortest_edge": 53}, "crop_size": {"height": 37, "width": 37}}),
        ("siglip", {"size": {"height": 37, "width": 37}}),
        ("siglip", {"size": {"height": 37, "width": 37}, "resample": 2}),
    ],
)
@pytest.mark.parametrize(("height", "width"), [(97, 142), (142, 97), (23, 31)])
def test_the_test_view_is_that_of_transformers(
    kind: str, content: dict[str, Any], height: int, width: int
) -> None:
    """Rounding between its two passes is other than Pillow's: a level now and then."""
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor"}[kind])
    picture, size = noise(6, 3, height, width), 37 if content else 224
    made = processor(**content, do_normalize=False)(picture, return_tensors="pt")["pixel_values"][0]
    saved = json.loads(processor(**content).to_json_string())
    view = eval_view(picture, read_preprocess(size, kind, saved, "preprocessor_config.json"))
    assert view.shape == made.shape
    assert (view - made * 255).square().mean().sqrt() < 0.6


@pytest.mark.parametrize(("height", "width"), [(11, 97), (97, 11), (10, 97), (11, 89), (13, 1301)])
def test_a_thin_picture_is_its_middle(height: int, width: int) -> None:
    """The ends do not reach the center square: cutting them off changes nothing."""
    picture = noise(3, 3, height, width)
    size = 2 * min(height, width)  # a whole number, so that both ways resize by the same factor
    whole = as_image(picture).resize((2 * width, 2 * height), Image.Resampling.BICUBIC)
    left, top = (whole.width - size) // 2, (whole.height - size) // 2
    expected = np.asarray(whole.crop((left, top, left + size, top + size)))
    assert np.array_equal(eval_view(picture, Preprocess(size)).permute(1, 2, 0).numpy(), expected)
