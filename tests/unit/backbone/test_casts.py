"""Frozen weights are cast once, trained and changed ones anew; float32 is left alone."""

import copy

import pytest
import torch
from torch import Tensor, nn

from dear.backbone.casts import CastLinear


@pytest.fixture
def layer() -> CastLinear:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 5).requires_grad_(False))
    CastLinear.adopt(module)
    assert isinstance(module[0], CastLinear)
    return module[0]


def casts(layer: CastLinear) -> tuple[Tensor, Tensor | None]:
    with torch.autocast("cpu", torch.bfloat16):
        return layer.cast_once(layer.weight, layer.bias)


def test_a_frozen_weight_is_cast_once(layer: CastLinear) -> None:
    weight, bias = casts(layer)
    assert weight.dtype == torch.bfloat16
    assert torch.equal(weight, layer.weight.bfloat16())
    assert casts(layer)[0] is weight
    assert casts(layer)[1] is bias


def test_the_result_is_that_of_autocast_and_of_float32(layer: CastLinear) -> None:
    x = torch.randn(3, 7)
    plain = nn.Linear(7, 5).requires_grad_(False)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), plain(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), plain(x))


@pytest.mark.parametrize("change", ["in place", "data"])
def test_a_changed_weight_is_cast_again(layer: CastLinear, change: str) -> None:
    before = casts(layer)[0]
    with torch.no_grad():
        if change == "in place":
            layer.weight.mul_(2)
        else:
            layer.weight.data = layer.weight * 2
    assert torch.equal(casts(layer)[0], before * 2)


def test_a_trained_weight_keeps_its_gradient(layer: CastLinear) -> None:
    layer.requires_grad_(True)
    assert casts(layer)[0] is layer.weight
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.ones(1, 7)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.eq(1).all()


def test_casts_of_inference_serve_training(layer: CastLinear) -> None:
    with torch.inference_mode():
        casts(layer)
    x = torch.ones(1, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    assert x.grad is not None


def test_a_copy_has_no_casts(layer: CastLinear) -> None:
    weight = casts(layer)[0]
    assert casts(copy.deepcopy(layer))[0] is not weight
    assert layer.state_dict().keys() == {"weight", "bias"}
