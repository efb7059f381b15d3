"""Scenes: a pure function of (seed, index), and the held-out combinations."""

from dataclasses import fields

import pytest
import torch

from dear.data.world.factors import FACTORS, SIZES, held_out_pairs, is_held_out
from dear.data.world.scene import draw_scenes


def slow_is_held_out(color: int, shape: int, texture: int, item: int, place: int) -> bool:
    rules = ((color, shape, 3), (shape, texture, 5), (item, place, 1))
    return any((3 * first + 7 * second + offset) % 10 == 0 for first, second, offset in rules)


def test_each_factor_has_the_values_of_the_design():
    assert {name: len(factor) for name, factor in FACTORS.items()} == {
        "color": 12,
        "shape": 12,
        "texture": 8,
        "object": 12,
        "place": 10,
    }


@pytest.mark.parametrize("combinations", ["all", "pretraining", "held-out"])
def test_a_scene_does_not_depend_on_its_batch(combinations):
    together = draw_scenes(5, torch.arange(31), combinations=combinations)
    alone = draw_scenes(5, torch.tensor([17]), combinations=combinations)
    for field in fields(together):
        assert torch.equal(getattr(together, field.name)[17:18], getattr(alone, field.name)), field.name


def test_another_seed_gives_other_scenes():
    index = torch.arange(31)
    assert not torch.equal(draw_scenes(5, index).factors, draw_scenes(6, index).factors)


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


def test_about_one_pair_in_ten_is_held_out_and_no_value_loses_more_than_two_partners():
    for pair in held_out_pairs():
        first, second = pair.columns
        assert 0.08 <= len(pair.values) / (SIZES[first] * SIZES[second]) <= 0.12
        for column in range(2):
            assert pair.values[:, column].bincount().max() <= 2


def test_pretraining_shows_every_value_of_every_factor():
    factors = draw_scenes(7, torch.arange(4999), combinations="pretraining").factors
    for column, size in enumerate(SIZES):
        assert factors[:, column].bincount(minlength=size).min() > 0.6 * 4999 / size


def test_with_replaces_factors_by_name_and_fields_and_refuses_unknown_names():
    scene = draw_scenes(5, torch.arange(7))
    changed = scene.with_(place=torch.full((7,), 3), count=torch.full((7,), 2))
    assert changed.value("place").tolist() == [3] * 7
    assert changed.count.tolist() == [2] * 7
    assert torch.equal(changed.factors[:, :4], scene.factors[:, :4])
    assert not torch.equal(scene.value("place"), changed.value("place"))
    with pytest.raises(TypeError, match="colour"):
        scene.with_(colour=torch.zeros(7))
