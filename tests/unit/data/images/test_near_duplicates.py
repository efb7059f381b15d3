"""Near-duplicates among drawings whose copies are known, and among pictures that only share a scene."""

import tracemalloc
from io import BytesIO
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance
from torch import Tensor

from dear.data.images import near_duplicates
from dear.data.images.decode import decode
from dear.data.images.forms import picture_of
from dear.data.images.near_duplicates import (
    NEIGHBORS,
    estimate_dimension,
    find_near_duplicates,
    required_ratio,
)
from dear.data.images.thumbnails import (
    SIDE,
    are_flat,
    coarse_features,
    picture_distances,
    thumbnail,
)


def photograph(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """A smooth colored background with five shapes."""
    draw = Random(seed)
    coarse = np.random.default_rng(seed).integers(40, 216, (4, 5, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(5):
        x, y, side = draw.randrange(size[0]), draw.randrange(size[1]), draw.randrange(10, 50)
        color = tuple(draw.randrange(256) for _ in range(3))
        (pen.ellipse if draw.random() < 0.5 else pen.rectangle)([x, y, x + side, y + side], fill=color)
    return image


def small(image: Image.Image) -> Tensor:
    return thumbnail(picture_of(image.convert("RGB")))


def saved(image: Image.Image, quality: int) -> Image.Image:
    content = BytesIO()
    image.save(content, "JPEG", quality=quality)
    return Image.open(content)


def noisy(image: Image.Image, seed: int, deviation: float = 3.0) -> Image.Image:
    pixels = np.asarray(image, float)
    pixels = pixels + np.random.default_rng(seed).normal(0, deviation, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def find(images: list[Image.Image], labels: list[int] | None = None) -> list[list[int]]:
    thumbnails = torch.stack([*map(small, images)])
    found = find_near_duplicates(thumbnails, torch.tensor(labels or [0] * len(images)))
    return [[*group] for group in found.groups]


CHANGES = {
    "saved at 60": lambda image: saved(image, 60),
    "saved at 95": lambda image: saved(image, 95),
    "reduced": lambda image: image.resize((100, 75)),
    "doubled": lambda image: image.resize((320, 240)),
    "other proportions": lambda image: image.resize((150, 125)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
    "cropped by 2%": lambda image: image.crop((3, 2, 157, 118)),
    "cropped by 5%": lambda image: image.crop((6, 4, 154, 116)),
    "the next frame": lambda image: noisy(image.transform(image.size, 0, (1, 0, 2, 0, 1, -1)), 1),
}  # fmt: skip


@pytest.mark.parametrize("change", [*CHANGES])
def test_another_version_of_a_picture_is_found_among_others(change: str) -> None:
    images = [photograph(seed) for seed in range(24)]
    pairs = [[seed, 24 + seed] for seed in range(6)]
    assert find(images) == []
    assert find([*images, *(CHANGES[change](image) for image in images[:6])]) == pairs


def test_all_versions_of_a_picture_are_one_group() -> None:
    images = [photograph(seed) for seed in range(20)]
    versions = [change(images[3]) for change in CHANGES.values()]
    assert find([*images, *versions]) == [[3, *range(20, 30)]]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_neither_the_order_nor_equal_pictures_matter(seed: int) -> None:
    """The groups are the same in another order, and a picture that is there again joins its group."""
    images = [photograph(number) for number in range(12)]
    thumbnails = torch.stack([*map(small, [*images, *(saved(image, 75) for image in images[:4])])])
    order = [*range(16), seed % 16]
    Random(seed).shuffle(order)
    found = find_near_duplicates(thumbnails[order], torch.zeros(17, dtype=torch.long)).groups
    pictures = sorted(sorted({order[place] for place in group}) for group in found)
    expected = [[number, 12 + number] for number in range(4)]
    again = seed % 16
    assert pictures == sorted(expected + ([[again]] if 4 <= again < 12 else []))
    assert sum(map(len, found)) == 8 + (1 if again in (*range(4), *range(12, 16)) else 2)


def disc(color: tuple[int, int, int]) -> Image.Image:
    image = Image.new("RGB", (64, 64), (235, 235, 235))
    ImageDraw.Draw(image).ellipse([16, 16, 48, 48], fill=color)
    return image


def test_discs_of_two_colors_are_two_pictures() -> None:
    red, green = small(disc((200, 40, 40))), small(disc((40, 150, 60)))
    gray = [picture.float().mean(dim=0).flatten() for picture in (red, green)]
    assert torch.corrcoef(torch.stack(gray))[0, 1] > 0.99
    pair = torch.stack([red, green])
    assert float(picture_distances(pair, torch.tensor([0]), torch.tensor([[1]]))) > 0.4
    colors = [(red, green, blue) for red in (10, 170) for green in (20, 160) for blue in (0, 180)]
    assert find([*map(disc, colors)], [number % 2 for number in range(8)]) == []


def test_parts_under_one_camera_are_not_copies_but_their_copies_are() -> None:
    """Sixty photographs of a scene, in seven kinds of light, or in one and three saved again."""
    scene = photograph(1, (320, 240))
    images = [ImageEnhance.Brightness(noisy(scene, seed)).enhance(0.95 + seed % 7 / 60) for seed in range(60)]
    labels = [number % 2 for number in range(60)]
    thumbnails = torch.stack([*map(small, images)])
    found = find_near_duplicates(thumbnails, torch.tensor(labels))
    assert found.groups == []
    assert found.scene == 60
    assert find_near_duplicates(thumbnails, torch.zeros(60, dtype=torch.long)).scene == 0  # in one class
    images = [saved(noisy(scene, seed), 90) for seed in range(60)]
    copies = [saved(image, 95) for image in images[:3]]
    assert find([*images, *copies], [*labels, *labels[:3]]) == [[0, 60], [1, 61], [2, 62]]


def test_a_chain_of_likenesses_is_no_group() -> None:
    """A hundred windows on a wide picture, each two pixels farther: neighbors are alike, ends are not."""
    wide = photograph(7, (400, 80))
    windows = [wide.crop((2 * number, 0, 2 * number + 100, 80)) for number in range(100)]
    others = [photograph(seed) for seed in range(20, 60)]
    groups = find([*windows, *others])
    assert max(map(len, groups), default=0) <= 10
    assert find([*windows, *others, saved(others[0], 75)])[-1] == [100, 140]


def test_bursts_larger_than_the_list_of_neighbors_stay_whole() -> None:
    """Each frame's nearest others are all of its burst, half of which is moved by two pixels."""
    count = 3 * NEIGHBORS
    images = [
        noisy(photograph(clip).transform((160, 120), 0, (1, 0, frame % 2 * 2, 0, 1, 0)), frame)
        for clip in range(6)
        for frame in range(count)
    ]
    expected = [[*range(count * clip, count * clip + count)] for clip in range(6)]
    assert find(images, [number // count // 2 for number in range(6 * count)]) == expected


def test_a_burst_in_two_classes_is_a_group_unless_it_is_most_of_the_data() -> None:
    frames = [noisy(photograph(1), seed) for seed in range(12)]
    others = [photograph(seed) for seed in range(10, 70)]
    labels = [number % 2 for number in range(72)]
    assert find([*frames, *others], labels) == [[*range(12)]]
    assert find([*frames, *others[:12]], labels[:24]) == []
    assert find([*frames, *others[:12]], [0] * 12 + labels[:12]) == [[*range(12)]]


def test_blank_pictures_are_not_compared() -> None:
    blank = [Image.new("RGB", (50, 40), (level, level, level)) for level in (0, 255, 255, 128)]
    thumbnails = torch.stack([*map(small, blank)])
    assert are_flat(thumbnails).all()
    assert find(blank) == []
    assert find([*blank, photograph(1), photograph(1)]) == [[4, 5]]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_pictures(count: int) -> None:
    thumbnails = torch.zeros(count, 3, SIDE, SIDE, dtype=torch.half)
    for number in range(count):
        thumbnails[number] = small(photograph(number))
    assert find_near_duplicates(thumbnails, torch.arange(count)).groups == []


def test_memory_grows_with_images_not_with_pairs() -> None:
    """Of frames that are all alike: twice as many need at most two and a half times the memory of numpy and
    Python.
    """
    peaks = list[int]()
    for count in (1000, 2000):
        scene = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)) * 200
        noise = torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
        thumbnails = (scene + noise).half()
        tracemalloc.start()
        found = find_near_duplicates(thumbnails, torch.arange(count) % 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found.scene == count
    assert peaks[1] <= 2.5 * peaks[0]


def test_pairs_that_are_measured_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, distances = list[int](), near_duplicates.picture_distances

    def counted(thumbnails: Tensor, items: Tensor, others: Tensor) -> Tensor:
        measured.append(others.numel())
        return distances(thumbnails, items, others)

    monkeypatch.setattr(near_duplicates, "picture_distances", counted)
    scene = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)) * 200
    noise = torch.randn(500, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    find_near_duplicates((scene + noise).half(), torch.arange(500) % 2)
    assert sum(measured) < 500 * (NEIGHBORS + 4)


def test_the_dimension_of_points_and_what_it_asks_for() -> None:
    """Points drawn evenly from a ball of 2 and of 6 dimensions; ratios by hand: (400 / 0.8) ** (1 / D)."""
    for dimension in (2, 6):
        draw = np.random.default_rng(1)
        points = draw.normal(size=(4000, dimension))
        radii = draw.random((4000, 1)) ** (1 / dimension)
        points *= radii / np.linalg.norm(points, axis=1, keepdims=True)
        lengths = np.sort(np.linalg.norm(points[:400, None] - points, axis=2), axis=1)[:, 1:6]
        assert abs(estimate_dimension(lengths) - dimension) < 0.15 * dimension  # type: ignore[operator]
    assert required_ratio(2.0, 400, 1.2) == pytest.approx(500**0.5)
    assert required_ratio(10.0, 400, 1.2) == pytest.approx(500**0.1)
    assert required_ratio(100.0, 400, 1.2) == 1.2


def test_light_shift_and_zoom_explain_a_picture_and_its_negative_does_not() -> None:
    images = [photograph(1), photograph(2)]
    pixels = np.asarray(images[0], float)
    images += [
        Image.fromarray((0.5 * pixels + 60).astype(np.uint8)),
        Image.fromarray((255 - pixels).astype(np.uint8)),
        images[0].crop((8, 6, 160, 120)),
    ]
    thumbnails = torch.stack([*map(small, images)])
    other, light, negative, cropped = picture_distances(
        thumbnails, torch.tensor([0]), torch.tensor([[1, 2, 3, 4]])
    )[0].tolist()
    assert light < 0.02
    assert cropped < 0.2
    assert other > 0.7
    assert negative == pytest.approx(1)
    plain = 1 - float(coarse_features(thumbnails[[0]]) @ coarse_features(thumbnails[[4]]).T)
    assert cropped**2 < plain / 2  # without the shift and zoom


def test_a_jpeg_that_is_decoded_in_part_has_the_same_thumbnail(tmp_path: Path) -> None:
    photograph(3, (1000, 750)).save(tmp_path / "a.jpg", quality=92)
    file = tmp_path / "a.jpg"
    pair = torch.stack([thumbnail(decode(file)), thumbnail(decode(file, coarse=True))])
    assert float(picture_distances(pair, torch.tensor([0]), torch.tensor([[1]]))) < 0.02
