"""Pixels: purity, masks of known area, textures of known pattern, styles; scenes as an image set."""

import math

import pytest
import torch

from dear.data.dataset import Images
from dear.data.world.factors import FACTORS
from dear.data.world.plate import EXTENT, drawn_mask
from dear.data.world.render import WorldScenes, render
from dear.data.world.scene import draw_scenes


def mask_area(kind: str, name: str) -> float:
    """Area of a drawn outline, in units of its box of side 2."""
    return float(drawn_mask(kind, FACTORS[kind].values.index(name)).double().mean()) * (2 * EXTENT) ** 2 / 4


@pytest.mark.parametrize(
    ("name", "area"),
    [
        ("circle", math.pi / 4 * 0.93**2),
        ("square", 0.8**2),
        ("diamond", 0.72 / 2),
        ("oval", math.pi / 4 * 0.62),
        ("ring", math.pi / 4 * (1 - 0.62**2)),
        ("cross", (2 * 2 * 0.8 - 0.8**2) / 4),
        ("hexagon", 3 * math.sqrt(3) / 2 / 4),
    ],
)
def test_shapes_have_the_area_that_geometry_gives(name, area):
    assert mask_area("shape", name) == pytest.approx(area, abs=0.012)


def test_an_image_does_not_depend_on_its_batch_and_another_seed_gives_another():
    images = render(draw_scenes(5, torch.arange(99)))
    assert images.shape == (99, 3, 48, 48)
    assert images.dtype == torch.uint8
    for number in (0, 64, 97):
        assert torch.equal(render(draw_scenes(5, torch.tensor([number])))[0], images[number])
    assert not torch.equal(render(draw_scenes(6, torch.tensor([97])))[0], images[97])


def test_scenes_are_an_image_set() -> None:
    scenes = WorldScenes(7, 48)
    assert isinstance(scenes, Images)
    assert len(scenes) == 7
    assert scenes.factors.shape == (7, 5)
    assert torch.equal(scenes.labels, scenes.factors[:, 3])
    chosen = scenes.load(torch.tensor([5, 2]))
    assert chosen.shape == (2, 3, 48, 48)
    assert torch.equal(chosen, scenes.load(torch.arange(7))[[5, 2]])
    assert scenes.identity != WorldScenes(7, 48, seed=3).identity
