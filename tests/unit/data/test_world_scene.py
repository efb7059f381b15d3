"""Scenes: a pure function of (seed, index) by splitmix64, combinations held out; captions; pixels."""

import math
import zlib
from dataclasses import fields

import pytest
import torch

from dear.data.dataset import Images
from dear.world.factors import FACTOR_NAMES, FACTORS, is_held_out
from dear.world.hashing import Stream, signed, splitmix64
from dear.world.plate import EXTENT, drawn_mask
from dear.world.render import WorldScenes, render
from dear.world.scene import draw_scenes
from tools.captions import describe, plain_prompts, words_of, world_words


def slow_is_held_out(color: int, shape: int, texture: int, item: int, place: int) -> bool:
    rules = ((color, shape, 3), (shape, texture, 5), (item, place, 1))
    return any((3 * first + 7 * second + offset) % 10 == 0 for first, second, offset in rules)


@pytest.mark.parametrize("combinations", ["all", "pretraining", "held-out"])
def test_a_scene_does_not_depend_on_its_batch(combinations):
    together = draw_scenes(5, torch.arange(31), combinations=combinations)
    alone = draw_scenes(5, torch.tensor([17]), combinations=combinations)
    for field in fields(together):
        assert torch.equal(getattr(together, field.name)[17:18], getattr(alone, field.name)), field.name


def test_held_out_rule_equals_the_slow_one():
    factors = draw_scenes(3, torch.arange(997)).factors
    assert is_held_out(factors).tolist() == [slow_is_held_out(*row) for row in factors.tolist()]


def test_pretraining_never_shows_a_held_out_pair_and_held_out_always_does():
    index = torch.arange(4999)
    assert not is_held_out(draw_scenes(7, index, combinations="pretraining").factors).any()
    assert is_held_out(draw_scenes(7, index, combinations="held-out").factors).all()
    share = is_held_out(draw_scenes(7, index).factors).double().mean()
    assert 0.24 < share < 0.30
    assert not is_held_out(torch.zeros(1, 5, dtype=torch.int64)).any(), (
        "the fallback of pretraining is allowed"
    )


MASK = (1 << 64) - 1


def slow_splitmix64(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def slow_bits(seed: int, index: int, slot: str, column: int) -> int:
    item = slow_splitmix64((slow_splitmix64(seed & MASK) + index) & MASK)
    return slow_splitmix64((item + zlib.crc32(slot.encode()) + column) & MASK)


def test_splitmix64_is_the_published_one():
    # The first outputs of splitmix64 from state 1234567, as in the Rosetta Code task on it.
    state = torch.tensor([1234567])
    outputs = [int(splitmix64(state + signed(step * 0x9E3779B97F4A7C15))) & MASK for step in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_bits_uniforms_and_integers_equal_plain_integers():
    seed, index = -3, torch.tensor([0, 5, 1 << 40])
    stream = Stream(seed, index)
    for row, number in enumerate(index.tolist()):
        for column in range(2):
            bits = slow_bits(seed, number, "a slot", column)
            assert int(stream.bits("a slot", 2)[row, column]) & MASK == bits
            assert float(stream.uniforms("a slot", 2)[row, column]) == (bits >> 40) / 2**24
            assert int(stream.integers("a slot", 7, 2)[row, column]) == ((bits >> 32) * 7) >> 32


INDEX = torch.arange(1009)
SCENE = draw_scenes(5, INDEX)
CAPTIONS = describe(SCENE, 5, INDEX)


def mentions(text: str, factor: str, value: int) -> bool:
    """Whether a text contains a word (or phrase) of a value, as whole words."""
    padded = f" {' '.join(words_of(text))} "
    return any(f" {' '.join(words_of(word))} " in padded for word in FACTORS[factor].words[value])


def test_named_factors_are_mentioned_with_the_right_value():
    """And no others."""
    rows = zip(CAPTIONS.texts, CAPTIONS.named.tolist(), SCENE.factors.tolist(), strict=True)
    for text, named, values in rows:
        for factor, flag, value in zip(FACTOR_NAMES, named, values, strict=True):
            found = [value for value in range(len(FACTORS[factor])) if mentions(text, factor, value)]
            assert value in found if flag else not found, (text, factor)


def test_plain_prompts():
    assert plain_prompts("color")[1] == "a photo of a orange thing."
    assert plain_prompts("place")[0] == "a photo taken at the beach."
    assert plain_prompts("texture")[2] == "a photo of something dotted."
    known = set(world_words())
    for factor in FACTOR_NAMES:
        prompts = plain_prompts(factor)
        assert len(set(prompts)) == len(FACTORS[factor])
        assert all(set(words_of(prompt)) <= known for prompt in prompts)


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
