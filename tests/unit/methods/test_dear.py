"""DeAR's exact properties in float64, and its features, scores and loss by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.attention import attention_weights
from dear.backbone.clip import Clip, Identity
from dear.errors import RoleTableError
from dear.limits import LimitError
from dear.methods.dear.method import Dear
from dear.roles.settings import CoreMask
from dear.roles.table import HeadRole
from dear.roles.variants import with_role
from tests.conftest import MakeClip
from tests.helpers.data import CLASSES
from tests.helpers.methods import KINDS, ORIGINAL, block_of, dear, role_table, two_images


@pytest.fixture
def clip(make_small_clip: MakeClip) -> Clip:
    return make_small_clip(dtype=torch.float64)


def test_masks_are_bounded_before_they_are_made(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's model may have 128 heads and 4,096 patches, whose masks take gigabytes."""
    values = 2 * 3 * (ORIGINAL + 2) ** 2  # layers 4 and 5, three heads, a token for each of two attributes
    monkeypatch.setenv("DEAR_LIMIT_MASK_VALUES", str(values))
    assert dear(clip, tokens=1).mask.numel() == values
    monkeypatch.setenv("DEAR_LIMIT_MASK_VALUES", str(values - 1))
    monkeypatch.setattr("dear.methods.dear.method.role_mask", lambda *_: pytest.fail("a mask was made"))
    with pytest.raises(LimitError, match=rf"{values:,} values in the masks .* DEAR_LIMIT_MASK_VALUES"):
        dear(clip, tokens=1)


@torch.no_grad()
def f_cls(method: Dear) -> Tensor:
    return method.image_features(method.image_trunk(two_images()))[0]


@torch.no_grad()
def frozen(clip: Clip) -> Tensor:
    return normalize(clip.encode_image(clip.normalize_pixels(two_images())), dim=-1)


def random_layer_input(tokens: int, seed: int) -> Tensor:
    return torch.randn(2, tokens, 21, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestIsolation:
    @pytest.mark.parametrize("tokens", [1, 2])
    def test_all_heads_isolated_keeps_the_class_feature(self, tokens: int, clip: Clip) -> None:
        for std in (0.02, 1.0, 50.0):
            isolated = dear(
                clip, with_role(role_table(clip), "generalization"), tokens=tokens, token_std=std, beta=0.3
            )
            torch.testing.assert_close(f_cls(isolated), frozen(clip), rtol=0, atol=1e-12)

    def test_mixed_heads_and_roles_change_it(self, clip: Clip) -> None:
        for roles in (with_role(role_table(clip), "mixed"), role_table(clip)):
            assert (f_cls(dear(clip, roles)) - frozen(clip)).abs().max() > 1e-3

    @torch.no_grad()
    def test_a_core_head_sees_its_own_attribute_only(self, clip: Clip) -> None:
        method = dear(clip, tokens=2)
        x = torch.cat([random_layer_input(ORIGINAL, 5), random_layer_input(4, 7)], dim=1)
        for layer, head, own in ((4, 0, "color"), (5, 0, "object")):
            block, mask = block_of(method, layer), method.mask[layer - 4]  # type: ignore[index]
            before = block.head_outputs(x, mask)[:, head]
            for attribute, start in (("color", ORIGINAL), ("object", ORIGINAL + 2)):
                changed = x.clone()
                changed[:, start : start + 2] += random_layer_input(2, 13)
                rest = [
                    t for t in range(30) if not start <= t < start + 2
                ]  # a changed token is its own query
                gap = (block.head_outputs(changed, mask)[:, head] - before)[:, rest].abs().max()
                assert gap > 1e-3 if attribute == own else gap < 1e-12

    @torch.no_grad()
    @pytest.mark.parametrize("form", ["exclusive", "eq9"])
    def test_blocked_weights_are_exactly_zero(self, clip: Clip, form: CoreMask) -> None:
        method = dear(clip, core_mask=form)
        x = random_layer_input(ORIGINAL + 2, 5)
        for step, layer in enumerate((4, 5)):
            query, key, _ = block_of(method, layer).query_key_value(x)
            weights = attention_weights(query, key, method.mask[step])  # type: ignore[index]
            for head, (role, attribute) in enumerate(KINDS[3 * step : 3 * step + 3]):
                for q in range(ORIGINAL + 2):
                    for k in range(ORIGINAL + 2):
                        if role in ("generalization", "other-specialized"):
                            blocked = (q < ORIGINAL) != (k < ORIGINAL)
                        else:
                            own = ORIGINAL + (attribute == "object")
                            blocked = role == "core" and k >= ORIGINAL and k != own
                            if role == "core" and form == "exclusive" and q >= ORIGINAL and q != own:
                                blocked = k != q
                        assert bool((weights[:, head, q, k] == 0).all()) == blocked
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 28, dtype=torch.float64))


class TestFusion:
    def test_weights_start_at_alpha_cls(self, clip: Clip) -> None:
        weights = dear(clip, alpha_cls=0.64).fusion_weights()
        assert weights == pytest.approx({"cls": 0.64, "color": 0.18, "object": 0.18})

    def test_fusion_can_be_kept_where_it_starts(self, clip: Clip) -> None:
        names = {n for n, p in dear(clip, learn_fusion=False).named_parameters() if p.requires_grad}
        assert names == {"attribute_tokens", "text_tokens", "projection"}

    def test_fusion_has_a_rate_of_its_own_if_asked(self, clip: Clip) -> None:
        usual, own = dear(clip), dear(clip, fusion_rate=50.0)
        assert usual.parameter_groups() == [{"params": usual.trainable, "rate": 1.0}]
        assert own.parameter_groups()[1] == {"params": [own.fusion], "rate": 50.0, "weight_decay": 0.0}
        assert len(dear(clip, fusion_rate=50.0, learn_fusion=False).parameter_groups()) == 1


class TestFeatures:
    @torch.no_grad()
    def test_by_hand_from_the_span(self, clip: Clip) -> None:
        """Equation 10: CLIP's projection for the class token, the trained one for the mean of an
        attribute's tokens.
        """
        method = dear(clip, tokens=2, copy_projection=False)
        assert not torch.equal(method.projection, clip.image.projection)
        trunk = method.image_trunk(two_images())
        x = torch.cat([trunk, method.attribute_tokens.expand(2, -1, -1)], dim=1)
        x = block_of(method, 4)(x, method.mask[0])  # type: ignore[index]
        x = torch.cat([x[:, :26], 0.9 * method.attribute_tokens + 0.1 * x[:, 26:]], dim=1)
        x = block_of(method, 5)(x, method.mask[1])  # type: ignore[index]
        want = [clip.image.ln_final(x[:, 0]) @ clip.image.projection]
        want += [clip.image.ln_final((x[:, i] + x[:, i + 1]) / 2) @ method.projection for i in (26, 28)]
        got = method.image_features(trunk)
        torch.testing.assert_close(got, normalize(torch.stack(want), dim=-1), rtol=0, atol=1e-12)

    def test_the_projection_starts_as_a_copy(self, clip: Clip) -> None:
        method = dear(clip)
        assert torch.equal(method.projection, clip.image.projection)
        assert method.projection.data_ptr() != clip.image.projection.data_ptr()

    @torch.no_grad()
    def test_several_templates_are_averaged(self, clip: Clip) -> None:
        method = dear(clip)
        each = []
        for template in ("a photo of a {}", "the {}"):
            method.set_classes(CLASSES, [template])
            each.append((method.text_features(), method.frozen_text))
        method.set_classes(CLASSES, ["a photo of a {}", "the {}"])
        for got, one, two in zip((method.text_features(), method.frozen_text), *each, strict=True):
            want = (one + two) / 2
            torch.testing.assert_close(got, want / want.norm(dim=1, keepdim=True), rtol=0, atol=1e-12)
            assert (got - one).abs().max() > 1e-3

    @torch.no_grad()
    def test_without_text_tokens_the_text_is_the_frozen_one(self, clip: Clip) -> None:
        method = dear(clip, text_tokens=0)
        torch.testing.assert_close(method.text_features(), method.frozen_text, rtol=0, atol=1e-12)
        assert (dear(clip, text_tokens=1).text_features() - method.frozen_text).abs().max() > 1e-3


class TestLoss:
    @pytest.mark.parametrize("form", ["linear", "log"])
    def test_parts_by_hand(self, form: Any, clip: Clip) -> None:
        method = dear(clip, lambda_reg=3.0, lambda_fusion=0.5, fusion_loss=form, alpha_cls=0.64)
        trunk, labels = method.image_trunk(two_images()), [2, 0]
        with torch.no_grad():
            image, text = method.image_features(trunk).tolist(), method.text_features().tolist()
            teacher = frozen(clip).tolist()
            frozen_text = clip.class_features(CLASSES, ["a photo of a {}"]).tolist()
            got = {name: float(value) for name, value in method.loss(trunk, torch.tensor(labels)).items()}
        alpha, scale = [0.64, 0.18, 0.18], float(clip.scale)

        def cos(a: list[float], b: list[float]) -> float:
            return math.fsum(x * y for x, y in zip(a, b, strict=True))

        ce = 0.0
        for row, label in enumerate(labels):
            logits = [scale * sum(alpha[k] * cos(image[k][row], t) for k in range(3)) for t in text]
            ce -= (logits[label] - math.log(sum(math.exp(v) for v in logits))) / 2
        reg = sum(1 - cos(image[0][row], teacher[row]) for row in range(2)) / 2
        reg += sum(1 - cos(text[c], frozen_text[c]) for c in range(3)) / 3
        fusion = 0.36 if form == "linear" else -math.log(0.64)
        want = {"ce": ce, "reg": reg, "fusion": fusion, "loss": ce + 3 * reg + 0.5 * fusion}
        assert reg > 1e-3
        assert got == pytest.approx(want, abs=1e-6)  # the fusion's start is drawn in float32


class TestSettings:
    def test_first_layers(self, clip: Clip) -> None:
        # J = 9 leaves a third of the layers: 5 / 3 and 4 / 3, rounded; J = 1 all of them.
        rest = tuple(HeadRole(layer, head, "mixed") for layer in (1, 2, 3) for head in range(3))
        whole = replace(role_table(clip), heads=(*role_table(clip).heads, *rest))
        starts = {
            first: (m.image_from, m.text_from)
            for first in (1, 8, 9, 12)
            for m in [dear(clip, whole, first=first)]
        }
        assert starts == {1: (1, 1), 8: (4, 3), 9: (4, 4), 12: (5, 4)}

    def test_roles_of_other_weights(self, clip: Clip) -> None:
        other = replace(role_table(clip), weights=Identity("small", "other", "0" * 64))
        with pytest.raises(RoleTableError, match="belongs to small/other"):
            dear(clip, other)
        assert dear(clip, other, roles_from_other_weights=True).roles is other

    def test_roles_without_attributes_or_layers(self, clip: Clip) -> None:
        with pytest.raises(RoleTableError, match="has no core attribute"):
            dear(clip, replace(with_role(role_table(clip), "mixed"), attributes=()))
        with pytest.raises(RoleTableError, match="does not fit layer 3"):
            dear(clip, first=5)
