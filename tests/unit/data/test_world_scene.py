"""Scenes: a pure function of (seed, index), and the held-out combinations."""

from dataclasses import fields

import pytest
import torch

from dear.data.world.factors import is_held_out
from dear.data.world.scene import draw_scenes


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
