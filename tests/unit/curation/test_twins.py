"""Images that are there twice, by hand: one is saved again in other sizes and brightness."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from dear.curation.twins import SAME, find_twins, thumbnail


def picture(seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 5, 5, generator=draw)
    return (200 * interpolate(coarse, (48, 64), mode="bilinear")[0]).byte()


def test_the_same_picture_in_another_class_or_part_is_found_once() -> None:
    pictures = [picture(seed) for seed in range(6)]
    small = interpolate(pictures[0][None].float(), (31, 43), mode="bilinear", antialias=True)[0]
    pictures[3] = (1.2 * small).clamp(max=255).byte()
    pictures[5] = pictures[1]
    features = normalize(torch.randn(6, 17, generator=torch.Generator().manual_seed(1)), dim=1)
    features[3], features[5] = features[0], features[1]
    loaded = list[int]()

    def load(item: int) -> Tensor:
        loaded.append(item)
        return pictures[item]

    groups = torch.tensor([0, 0, 0, 1, 1, 0])  # the copy of 1 is of its own class
    assert find_twins(features, groups, load) == [(0, 3)]
    assert sorted({*loaded}) == loaded  # each that is looked at is read once
    assert find_twins(features, torch.arange(6), load) == [(0, 3), (1, 5)]


def test_products_of_thumbnails_are_correlations() -> None:
    one, other = thumbnail(picture(1)), thumbnail(picture(2))
    expected = torch.corrcoef(torch.stack([one, other]))[0, 1]
    torch.testing.assert_close(one @ other, expected, rtol=0, atol=1e-9)
    assert float(one @ other) < SAME <= float(one @ thumbnail(255 - (255 - picture(1)) // 2))
