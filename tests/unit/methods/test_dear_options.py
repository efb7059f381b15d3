"""DeAR's options beyond the paper: off, nothing changes by a bit; on, they equal slow references."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.choice import Precision
from dear.backbone.clip import Clip
from dear.backbone.injection import Injection
from dear.errors import SettingsError
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear, ramp
from dear.methods.shared import cosine_distance
from dear.roles.mask import role_mask
from dear.roles.table import HeadRole, RoleTable
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.unit.methods.test_dear import ORIGINAL, block_of, dear, f_cls, images, table
from tests.unit.training.world import few, small_dear

MakeClip = Callable[..., Clip]
LABELS = torch.tensor([2, 0])
ALL_ON: dict[str, Any] = {"beta_last": 0.2, "read_only": True}


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
        method, tower = dear(clip, tokens=2), clip.image
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
            loss = cross_entropy(scores, LABELS) + 1.0 * reg + 0.7 * (1 - alpha[0])
            assert torch.equal(method.image_features(trunk), image)
            assert torch.equal(method.logits(image, method.text_features()), scores)
            assert torch.equal(method.loss(trunk, LABELS)["loss"], loss)
        assert method.features == ("cls", "color", "object")
        assert method.parameter_groups() == [{"params": method.trainable, "rate": 1.0}]

    @pytest.mark.parametrize("options", [{"beta_last": 0.2}, {"read_only": True}, ALL_ON])
    def test_an_option_draws_nothing(self, options: dict[str, Any], clip: Clip) -> None:
        usual = dict(dear(clip).named_parameters())
        assert usual.keys() == {"attribute_tokens", "text_tokens", "projection", "fusion"}
        other, generator, before = dear(clip, **options), torch.Generator(), torch.Generator()
        assert all(torch.equal(dict(other.named_parameters())[name], one) for name, one in usual.items())
        for drawn, settings in ((before, DearSettings(first=8)), (generator, DearSettings(8, **options))):
            Dear(clip, table(clip), drawn.manual_seed(1), settings)
        assert torch.equal(generator.get_state(), before.get_state())

    def test_the_fingerprint_has_them(self, clip: Clip) -> None:
        settings = dear(clip, **ALL_ON).fingerprint_fields()["settings"]
        assert settings.items() >= ALL_ON.items()


class TestAnchoringByLayer:
    def test_a_ramp_by_hand(self) -> None:
        assert ramp(0.75, 0.25, 3) == (0.75, 0.5, 0.25)
        assert ramp(0.0, 1.0, 2) == (0.0, 1.0)
        assert ramp(0.9, 0.25, 1) == (0.25,)
        assert ramp(0.9, 0.25, 0) == ()

    def test_each_layer_takes_its_own(self) -> None:
        x, raw = torch.tensor([[[8.0, 8.0], [2.0, 6.0]]]), torch.tensor([[4.0, 2.0]])
        inject = Injection(raw, (0.5, 0.25))
        assert inject.anchor(x, 1).tolist() == [[[8, 8], [3, 4]]]
        assert inject.anchor(x, 2).tolist() == [[[8, 8], [2.5, 5]]]

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

    def test_the_same_at_the_end_changes_no_bit(self, clip: Clip) -> None:
        one, two = (dear(clip, all_layers(clip), first=1, beta=0.7, beta_last=end) for end in (None, 0.7))
        assert torch.equal(f_cls(one), f_cls(two))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_all_of_them_train(precision: Precision, small_clip: Clip) -> None:
    method = small_dear(small_clip, **ALL_ON)
    start = {name: one.detach().clone() for name, one in method.named_parameters()}
    settings = TrainSettings(epochs=3, batch=3, lr=1e-2, precision=precision)
    history = train(method, few(), settings, seed=1)
    assert history[-1]["loss"] < history[0]["loss"]
    changes = {
        name: float((one - start[name]).detach().abs().max()) for name, one in method.named_parameters()
    }
    assert changes.keys() == {"attribute_tokens", "text_tokens", "projection", "fusion"}
    assert min(changes.values()) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta_last": 1.1}, r"dear\.beta_last is 1\.1: it must be null or from 0 to 1"),
        ({"beta_last": -0.1}, r"dear\.beta_last is -0\.1"),
        ({"beta_last": math.nan}, r"dear\.beta_last is nan"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DearSettings(**options)


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
