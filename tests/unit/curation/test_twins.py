"""Pictures that are there twice, by hand: saved again in another size and light, in another class or part."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from dear.curation.twins import find_twins
from dear.data.images.thumbnails import thumbnail


def picture(seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 5, 5, generator=draw)
    return (200 * interpolate(coarse, (48, 64), mode="bilinear")[0]).byte()


def thumbnails(pictures: list[Tensor]) -> Tensor:
    return torch.stack([*map(thumbnail, pictures)])


def test_the_same_picture_in_another_class_or_part_is_found_once() -> None:
    pictures = [picture(seed) for seed in range(9)]
    small = interpolate(pictures[0][None].float(), (31, 43), mode="bilinear", antialias=True)[0]
    pictures[3] = (1.2 * small).clamp(max=255).byte()
    pictures[5] = pictures[1]
    labels = torch.tensor([0, 0, 0, 1, 1, 0, 0, 1, 2])  # the copy of 1 is of its own class
    sides = torch.tensor([0, 0, 0, 0, 0, 1, 1, 0, 0])  # but not on its side
    assert find_twins(thumbnails(pictures), labels, torch.zeros(9, dtype=torch.long)) == [(0, 3)]
    assert find_twins(thumbnails(pictures), labels, sides) == [(0, 3), (1, 5)]


def test_each_picture_is_named_with_the_most_alike_of_its_versions() -> None:
    pictures = [picture(seed) for seed in range(12)]
    versions = [(pictures[0].float() * scale).byte() for scale in (0.9, 0.8)]
    labels = torch.tensor([0, *[1] * 11, 1, 0])
    pairs = find_twins(thumbnails([*pictures, *versions]), labels, torch.zeros(14, dtype=torch.long))
    assert {item for pair in pairs for item in pair} == {0, 12, 13}
    assert all(labels[first] != labels[second] for first, second in pairs)


def test_frames_that_moved_are_near_duplicates_but_not_there_twice() -> None:
    """Four of 64 pixels farther, with another corner: more than saving again does."""
    wide = interpolate(picture(3)[None].float(), (48, 96), mode="bilinear")[0].byte()
    frames = [wide[:, :, :64], wide[:, :, 4:68].clone()]
    frames[1][:, :20, :20] = 255 - frames[1][:, :20, :20]
    others = [picture(seed) for seed in range(10, 20)]
    labels = torch.tensor([0, 1, *[0] * 10])
    assert find_twins(thumbnails([*frames, *others]), labels, torch.zeros(12, dtype=torch.long)) == []


def test_photographs_under_one_camera_are_not_there_twice() -> None:
    scene = picture(1).float()
    noise = [torch.randn(scene.shape, generator=torch.Generator().manual_seed(seed)) for seed in range(30)]
    photographs = [(scene + 3 * part).clamp(0, 255).byte() for part in noise]
    labels, sides = torch.arange(30) % 2, torch.arange(30) // 20
    assert find_twins(thumbnails(photographs), labels, sides) == []


def test_nothing_is_compared_with_nothing() -> None:
    for count in (0, 1):
        few = thumbnails([picture(1)])[:count]
        assert find_twins(few, torch.arange(count), torch.zeros(count, dtype=torch.long)) == []
