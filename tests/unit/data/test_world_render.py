"""Pixels: purity, masks of known area, textures of known pattern, styles; scenes as an image set."""

import math

import pytest
import torch

from dear.data.dataset import Images
from dear.data.world.factors import FACTORS, STYLES
from dear.data.world.plate import EXTENT, distance, drawn_mask, local_frame, signed_distance, texture, wave
from dear.data.world.render import WorldScenes, render
from dear.data.world.scene import Scene, draw_scenes


def clean(scene: Scene, **changes: torch.Tensor) -> Scene:
    """Photo style without noise, copies, letters or uneven light."""
    batch = len(scene)
    zeros, ones = torch.zeros(batch, dtype=torch.int64), torch.ones(batch, dtype=torch.int64)
    plain = {
        "style": zeros,
        "blur": zeros,
        "block": ones,
        "count": ones,
        "glyph": -ones,
        "noise": torch.zeros(batch),
        "gain": torch.ones(batch, 3),
        "gradient": torch.zeros(batch, 2),
        "tint": torch.zeros(batch, 3),
    }
    return scene.with_(**(plain | changes))


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


def test_signed_distance_of_a_circle():
    shape = FACTORS["shape"].values.index("circle")
    field = signed_distance(drawn_mask("shape", shape)).double()
    centres = (torch.arange(len(field), dtype=torch.float64) + 0.5) * (2 * EXTENT / len(field)) - EXTENT
    expected = torch.hypot(centres[:, None], centres[None, :]) - 0.93
    assert (field - expected).abs().max() < 0.02


@pytest.mark.parametrize("kind", ["shape", "object"])
def test_every_outline_fills_its_box_and_differs_from_the_others(kind):
    masks = torch.stack([drawn_mask(kind, value) for value in range(12)]).double()
    area = masks.mean((1, 2)) * EXTENT**2
    assert ((area > 0.15) & (area < 0.75)).all()
    for first in range(12):
        for second in range(first):
            union = torch.maximum(masks[first], masks[second]).sum()
            assert (masks[first] * masks[second]).sum() / union < 0.93, (first, second)  # circle, hexagon


def test_a_placed_outline_has_the_size_and_place_asked_for():
    grid = (torch.arange(96) + 0.5) / 96
    x, y = grid[None, :].expand(96, 96), grid[:, None].expand(96, 96)
    across, down = local_frame(x, y, torch.tensor([[0.4, 0.6]]), torch.tensor([0.0]))
    square = FACTORS["shape"].values.index("square")
    inside = distance("shape", torch.tensor([square]), across, down, torch.tensor([0.5]))[0] < 0
    assert float(x[inside].mean()) == pytest.approx(0.4, abs=0.005)
    assert float(y[inside].mean()) == pytest.approx(0.6, abs=0.005)
    assert float(inside.double().mean()) == pytest.approx((0.5 * 0.8) ** 2, rel=0.06)


def test_a_turn_by_a_quarter_moves_the_arrow_tip_down():
    grid = (torch.arange(96) + 0.5) / 96
    x, y = grid[None, :].expand(96, 96), grid[:, None].expand(96, 96)
    across, down = local_frame(x, y, torch.tensor([[0.5, 0.5]]), torch.tensor([0.25]))
    arrow = FACTORS["shape"].values.index("arrow")
    inside = distance("shape", torch.tensor([arrow]), across, down, torch.tensor([0.8]))[0] < 0
    rows = inside.sum(dim=1)
    assert rows[inside.any(dim=1)][-4:].double().mean() < 12, "a narrow tip at the bottom"
    assert rows[inside.any(dim=1)][:4].double().mean() > 25, "a broad shaft at the top"


def test_wave_is_a_sine():
    turns = torch.linspace(-2, 2, 401)
    assert (wave(turns) - torch.sin(turns * 2 * math.pi)).abs().max() < 0.0015


def test_textures_cover_the_share_that_their_patterns_give():
    grid = torch.arange(0, 24, 1 / 32) + 1 / 64
    across, down = grid[None, None, :].expand(1, 768, 768), grid[None, :, None].expand(1, 768, 768)
    share = {
        name: float(texture(torch.tensor([number]), across, down, 1 / 32).double().mean())
        for number, name in enumerate(FACTORS["texture"].values)
    }
    assert share["plain"] == 0
    assert share["striped"] == pytest.approx(0.5, abs=0.01)
    assert share["checkered"] == pytest.approx(0.5, abs=0.01)
    assert share["dotted"] == pytest.approx(math.pi * 0.33**2, abs=0.01)
    assert share["crosshatched"] == pytest.approx(1 - 0.72**2, abs=0.01)
    assert share["speckled"] == pytest.approx(0.36, abs=0.05)


def test_stripes_are_constant_along_and_alternate_across():
    grid = torch.arange(0, 3, 1 / 8) + 1 / 16
    across, down = grid[None, None, :].expand(1, 24, 24), grid[None, :, None].expand(1, 24, 24)
    stripes = texture(torch.tensor([FACTORS["texture"].values.index("striped")]), across, down, 1 / 64)[0]
    assert torch.equal(stripes, stripes[:1].expand(24, 24))
    assert stripes[0, :8].round().tolist() == [1, 1, 0, 0, 0, 0, 1, 1]


def test_an_image_does_not_depend_on_its_batch_and_another_seed_gives_another():
    images = render(draw_scenes(5, torch.arange(131)))
    assert images.shape == (131, 3, 48, 48)
    assert images.dtype == torch.uint8
    for number in (0, 64, 97):
        assert torch.equal(render(draw_scenes(5, torch.tensor([number])))[0], images[number])
    assert not torch.equal(render(draw_scenes(6, torch.tensor([97])))[0], images[97])


def test_no_two_images_are_equal():
    images = render(draw_scenes(5, torch.arange(131))).flatten(1)
    assert len(images.unique(dim=0)) == 131


def test_empty_batches_and_other_sizes():
    assert render(draw_scenes(5, torch.arange(0)), 13).shape == (0, 3, 13, 13)
    assert render(draw_scenes(5, torch.arange(3)), 61).shape == (3, 3, 61, 61)


@pytest.mark.parametrize(("name", "expected"), [("red", (224, 20, 26)), ("white", (247, 247, 247))])
def test_a_plain_plate_has_its_colour(name, expected):
    scene = clean(
        draw_scenes(5, torch.arange(3)),
        color=torch.full((3,), FACTORS["color"].values.index(name)),
        shape=torch.zeros(3, dtype=torch.int64),
        texture=torch.zeros(3, dtype=torch.int64),
        plate_centre=torch.full((3, 2), 0.5),
        plate_size=torch.full((3,), 0.9),
        icon_centre=torch.full((3, 2), 0.5),
    )
    # Above the icon and inside the circle: row 6 of 48, in the middle.
    assert (render(scene)[:, :, 6, 24].int() - torch.tensor(expected)).abs().max() <= 1


def test_a_sketch_is_grey_and_the_same_whatever_the_hue():
    scene = clean(draw_scenes(5, torch.arange(7)), style=torch.full((7,), STYLES.values.index("sketch")))
    images = render(scene)
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])


def test_every_value_of_every_factor_changes_the_picture():
    for name, factor in FACTORS.items():
        scene = clean(draw_scenes(5, torch.full((len(factor),), 2)), **{name: torch.arange(len(factor))})
        assert len(render(scene).flatten(1).unique(dim=0)) == len(factor), name


def test_blocks_blur_and_bars():
    scene = clean(draw_scenes(5, torch.arange(5)))
    blocks = render(scene.with_(block=torch.full((5,), 3)))
    assert torch.equal(blocks[:, :, ::3], blocks[:, :, 2::3])
    sharp, soft = render(scene).double(), render(scene.with_(blur=torch.full((5,), 3))).double()
    assert soft.diff(dim=-1).abs().mean() < 0.6 * sharp.diff(dim=-1).abs().mean()
    barred = render(scene.with_(bars=torch.full((5,), 0.4)))
    assert ((barred.double() - 76.5).abs() < 1).all(dim=1).double().mean() == pytest.approx(0.4, abs=0.06)


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
