"""DeAR on trunk and span equals DeAR written out in full: the same loss and the same gradients."""

import pytest
import torch
from torch import Tensor

from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.tiny import WordTokenizer
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear
from dear.roles.settings import CoreMask
from dear.roles.table import HeadRole, Role, RoleTable
from tests.conftest import MEAN, STD, WORDS, small_model
from tests.helpers.clips import usual_view
from tools.parity import naive

ATTRIBUTES = ["color", "object"]
CLASSES = ["red circle on the sea", "house", "green tree"]
ROLES: list[tuple[Role, str | None]] = [
    ("core", "color"), ("core", "object"), ("mixed", None), ("generalization", None), ("other-specialized",
    None), ("core", "object"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(("each", "beta"), [(1, 0.9), (2, 0.3)])
@pytest.mark.parametrize("form", ["exclusive", "eq9"])
def test_same_loss_and_gradients(
    dtype: torch.dtype, tolerance: float, each: int, beta: float, form: CoreMask
) -> None:
    model = small_model(dtype=dtype)
    view, words = usual_view(model, MEAN, STD), WordTokenizer(WORDS, 13)
    clip = to_clip(model, words, name="small", pretrained="random", preprocess=view).to(dtype)
    heads = tuple(HeadRole(4 + i // 3, i % 3, role, attribute) for i, (role, attribute) in enumerate(ROLES))
    table = RoleTable("by hand", clip.identity, tuple(ATTRIBUTES), heads)
    settings = DearSettings(
        first=8, beta=beta, tokens=each, text_tokens=3, token_std=0.5, alpha_cls=0.6, core_mask=form
    )
    method = Dear(clip, torch.Generator().manual_seed(5), settings, roles=table)
    assert (method.image_from, method.text_from) == (4, 3)  # 5 of 12 layers, rounded: 2 of 5 and 2 of 4
    method.set_classes(CLASSES, ["a photo of a {}"])

    generator = torch.Generator().manual_seed(7)
    images = torch.rand(2, 3, 20, 20, generator=generator, dtype=dtype)
    labels = torch.tensor([2, 0])
    got = method.loss(method.image_trunk(images), labels)["loss"]
    got.backward()

    named = {name: p.detach().clone().requires_grad_() for name, p in method.named_parameters()}
    masks = {
        layer: torch.stack(
            [naive.blocked(role, a, ATTRIBUTES, 26, each, form) for role, a in ROLES[3 * i : 3 * i + 3]]
        )
        for i, layer in enumerate((4, 5))
    }
    ids = clip.tokenize([f"a photo of a {name}" for name in CLASSES])
    want = naive.loss(
        model, clip.normalize_pixels(images), ids, labels, named, masks,
        image_first=4, text_first=3, beta=beta, each=each, lambda_reg=1.0, lambda_fusion=0.7,
    )  # fmt: skip
    want.backward()
    assert float(want) > 0.1
    assert abs(float(got) - float(want)) < tolerance * abs(float(want))
    for name, parameter in method.named_parameters():
        reference = named[name].grad
        assert reference is not None
        assert parameter.grad is not None
        assert _relative(parameter.grad, reference) < tolerance, name
    assert all(p.grad is None for p in model.parameters())


def _relative(got: Tensor, want: Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())
