"""DeAR's options beyond the paper: off, nothing changes by a bit; on, they equal slow references."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.methods.dear.method import Dear, ramp
from dear.roles.table import HeadRole, RoleTable
from tests.conftest import MakeClip
from tests.helpers.methods import ORIGINAL, block_of, dear, role_table, two_images


@pytest.fixture
def clip(make_small_clip: MakeClip) -> Clip:
    return make_small_clip(dtype=torch.float64)


def moved(method: Dear, std: float = 1.0) -> Dear:
    """The method with its parameters moved away from where they start."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for one in method.trainable:
            one += std * torch.randn(one.shape, generator=generator, dtype=one.dtype)
    return method


def all_layers(clip: Clip) -> RoleTable:
    """Roles for the five layers of the tower."""
    rest = tuple(HeadRole(layer, head, "mixed") for layer in (1, 2, 3) for head in range(3))
    return replace(role_table(clip), heads=(*rest, *role_table(clip).heads))


class TestAnchoringByLayer:
    def test_a_ramp_by_hand(self) -> None:
        assert ramp(0.75, 0.25, 3) == (0.75, 0.5, 0.25)
        assert ramp(0.0, 1.0, 2) == (0.0, 1.0)
        assert ramp(0.9, 0.25, 1) == (0.25,)
        assert ramp(0.9, 0.25, 0) == ()

    @torch.no_grad()
    def test_the_span_layer_by_layer(self, clip: Clip) -> None:
        method = dear(clip, all_layers(clip), first=1, beta=0.9, beta_last=0.3)
        trunk, raw = method.image_trunk(two_images()), method.attribute_tokens.expand(2, -1, -1)
        x = torch.cat([trunk, raw], dim=1)
        for layer, beta in zip(range(1, 6), (1.0, 0.9, 0.7, 0.5, 0.3), strict=True):
            x = torch.cat([x[:, :ORIGINAL], beta * raw + (1 - beta) * x[:, ORIGINAL:]], dim=1)
            x = block_of(method, layer)(x, method.mask[layer - 1])
        want = [clip.image.finish(x[:, 0])]
        want += [clip.image.ln_final(x[:, i]) @ method.projection for i in (26, 27)]
        got = method.image_features(trunk)
        torch.testing.assert_close(got, normalize(torch.stack(want), dim=-1), rtol=0, atol=1e-12)
        usual = dear(clip, all_layers(clip), first=1, beta=0.9)
        assert (got - usual.image_features(trunk)).abs().max() > 1e-4
        assert torch.equal(method.text_features(), usual.text_features())


class TestReadOnly:
    def test_the_class_feature_is_the_frozen_one_whatever_was_trained(self, clip: Clip) -> None:
        method = moved(dear(clip, read_only=True))
        trunk = method.image_trunk(two_images())
        with torch.no_grad():
            torch.testing.assert_close(method.image_features(trunk)[0], method.frozen_image(trunk))
            usual = moved(dear(clip))
            assert (usual.image_features(trunk)[0] - method.frozen_image(trunk)).abs().max() > 1e-4

    def test_nothing_else_is_blocked(self, clip: Clip) -> None:
        """Rows of attribute tokens, and columns of original tokens, are the paper's."""
        usual, method = dear(clip, tokens=2).mask, dear(clip, tokens=2, read_only=True).mask
        assert torch.equal(method[:, :, ORIGINAL:], usual[:, :, ORIGINAL:])
        assert torch.equal(method[..., :ORIGINAL], usual[..., :ORIGINAL])
        assert (method[:, :, :ORIGINAL, ORIGINAL:] == float("-inf")).all()
        assert (usual[:, :, :ORIGINAL, ORIGINAL:] == 0).any()
