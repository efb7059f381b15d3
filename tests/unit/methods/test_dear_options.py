"""DeAR's options beyond the paper: off, nothing changes by a bit; on, they equal slow references."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip
from dear.backbone.injection import Injection
from dear.methods.dear.method import Dear, ramp
from dear.methods.shared import cosine_distance
from dear.roles.mask import role_mask
from dear.roles.table import HeadRole, RoleTable
from tests.conftest import MakeClip
from tests.unit.methods.test_dear import ORIGINAL, block_of, dear, images, table


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
    return replace(table(clip), heads=(*rest, *table(clip).heads))


class TestOff:
    def test_scores_and_loss_are_the_papers_to_the_bit(self, clip: Clip) -> None:
        """Computed here with one beta, the table's mask and one weight for each feature."""
        method, tower, labels = dear(clip, tokens=2), clip.image, torch.tensor([2, 0])
        trunk = method.image_trunk(images())
        bias = [role_mask(method.roles, layer, 3, ORIGINAL, 2).double() for layer in (4, 5)]
        read = torch.tensor([0, *range(ORIGINAL, ORIGINAL + 4)])
        with torch.no_grad():
            inject = Injection(method.attribute_tokens, 0.9)
            out = tower.span(trunk, 4, bias=list(bias), inject=inject, read=read)
            mean = out[:, 1:].unflatten(1, (2, 2)).mean(dim=2).transpose(0, 1)
            of_attributes = tower.ln_final(mean) @ method.projection
            image = normalize(torch.cat([tower.finish(out[:, 0])[None], of_attributes]), dim=-1)
            text = method.mean_over_templates(Injection(method.text_tokens, 0.9, at=1))
            alpha = method.fusion.softmax(dim=0)
            scores = clip.scale * torch.einsum("k,kbe->be", alpha, image) @ text.T
            reg = cosine_distance(image[0], method.frozen_image(trunk))
            reg = reg + cosine_distance(text, method.frozen_text)
            loss = cross_entropy(scores, labels) + 1.0 * reg + 0.7 * (1 - alpha[0])
            assert torch.equal(method.image_features(trunk), image)
            assert torch.equal(method.logits(image, method.text_features()), scores)
            assert torch.equal(method.loss(trunk, labels)["loss"], loss)
        assert method.features == ("cls", "color", "object")
        assert method.parameter_groups() == [{"params": method.trainable, "rate": 1.0}]


class TestAnchoringByLayer:
    def test_a_ramp_by_hand(self) -> None:
        assert ramp(0.75, 0.25, 3) == (0.75, 0.5, 0.25)
        assert ramp(0.0, 1.0, 2) == (0.0, 1.0)
        assert ramp(0.9, 0.25, 1) == (0.25,)
        assert ramp(0.9, 0.25, 0) == ()

    @torch.no_grad()
    def test_the_span_layer_by_layer(self, clip: Clip) -> None:
        method = dear(clip, all_layers(clip), first=1, beta=0.9, beta_last=0.3)
        trunk, raw = method.image_trunk(images()), method.attribute_tokens.expand(2, -1, -1)
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
        trunk = method.image_trunk(images())
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
