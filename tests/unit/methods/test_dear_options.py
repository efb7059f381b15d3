"""DeAR's options beyond the paper: off, nothing changes by a bit; on, they equal slow references."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from tests.unit.methods.test_dear import KINDS, ORIGINAL, block_of, dear, f_cls, frozen, images, table
from tests.unit.training.world import few, small_dear
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip
from dear.backbone.injection import Injection
from dear.backbone.precisions import Precision
from dear.errors import SettingsError
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear, ramp
from dear.methods.shared import cosine_distance
from dear.roles.mask import role_mask
from dear.roles.table import HeadRole, RoleTable
from dear.training.loop import train
from dear.training.settings import TrainSettings

MakeClip = Callable[..., Clip]
LABELS = torch.tensor([2, 0])
ALL_ON: dict[str, Any] = {"beta_last": 0.2, "gate": True, "soft_roles": True}


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

    @pytest.mark.parametrize(
        "options", [{"beta_last": 0.2}, {"gate": True}, {"read_only": True}, {"soft_roles": True}, ALL_ON]
    )
    def test_an_option_draws_nothing(self, options: dict[str, Any], clip: Clip) -> None:
        usual = dict(dear(clip).named_parameters())
        assert usual.keys() == {"attribute_tokens", "text_tokens", "projection", "fusion"}
        other, generator, before = dear(clip, **options), torch.Generator(), torch.Generator()
        assert all(torch.equal(dict(other.named_parameters())[name], one) for name, one in usual.items())
        for drawn, settings in ((before, DearSettings(first=8)), (generator, DearSettings(8, **options))):
            Dear(clip, table(clip), drawn.manual_seed(1), settings)
        assert torch.equal(generator.get_state(), before.get_state())

    def test_bundles_and_records_without_them_are_the_papers(self) -> None:
        new = ("beta_last", "gate", "soft_roles", "soft_open", "soft_rate")
        assert {name: DearSettings.defaults_of_old[name] for name in new} == {
            name: asdict(DearSettings())[name] for name in new
        }

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
            x = block_of(method, layer)(x, method.masks()[layer - 1])
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


class TestGate:
    @torch.no_grad()
    def test_it_starts_at_the_papers_fusion(self, clip: Clip) -> None:
        usual, gated = dear(clip), dear(clip, gate=True)
        trunk, text = usual.image_trunk(images()), usual.text_features()
        want = usual.logits(usual.image_features(trunk), text)
        got = gated.logits(gated.image_features(trunk), text)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        assert gated.features == ("cls", "color", "object", "frozen")
        assert gated.fusion_weights() is None  # there is none that all images share

    @torch.no_grad()
    def test_scores_by_hand(self, clip: Clip) -> None:
        method = moved(dear(clip, gate=True))
        trunk = method.image_trunk(images())
        image, text = method.image_features(trunk), method.text_features()
        torch.testing.assert_close(image[3], frozen(clip), rtol=0, atol=1e-12)
        got, evidence = method.logits(image, text), method.evidence(image, text)
        weights = set()
        for row in range(2):
            raw = [
                float(method.fusion[k])
                + math.fsum(float(a * b) for a, b in zip(method.gate[k], image[3, row], strict=True))
                / 17**0.5
                for k in range(3)
            ]
            alpha = [math.exp(one) / math.fsum(map(math.exp, raw)) for one in raw]
            weights.add(round(alpha[0], 6))
            for column in range(3):
                s = [float(clip.scale * image[k, row] @ text[column]) for k in range(3)]
                parts = [*(a * b for a, b in zip(alpha, s, strict=True)), 0.0]
                assert float(got[row, column]) == pytest.approx(math.fsum(parts), abs=1e-10)
                assert evidence[:, row, column].tolist() == pytest.approx(parts, abs=1e-10)
        assert len(weights) == 2  # each image has its own
        alone = method.logits(image, text, decoupled=True)
        assert torch.equal(alone, clip.scale * image[0] @ text.T)
        shown = method.evidence(image, text, decoupled=True)
        torch.testing.assert_close(shown.sum(dim=0), alone, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("form", ["linear", "log"])
    def test_the_fusion_loss_has_the_mean_over_the_batch(self, form: Any, clip: Clip) -> None:
        method = moved(dear(clip, gate=True, fusion_loss=form))
        trunk = method.image_trunk(images())
        with torch.no_grad():
            image = method.image_features(trunk)
            raw = method.fusion + frozen(clip) @ method.gate.T / 17**0.5  # batch feature
            mean = float(raw.softmax(dim=1)[:, 0].mean())
            ce = cross_entropy(method.logits(image, method.text_features()), LABELS)
        parts = method.loss(trunk, LABELS)
        want = 1 - mean if form == "linear" else -math.log(mean)
        assert float(parts["fusion"].detach()) == pytest.approx(want, abs=1e-12)
        assert float(parts["ce"].detach()) == pytest.approx(float(ce), abs=1e-12)
        given = method.loss(trunk, LABELS, method.frozen_image(trunk))["loss"]
        torch.testing.assert_close(given, parts["loss"], rtol=0, atol=1e-12)
        given.backward()
        assert method.gate.grad is not None
        assert (method.gate.grad.abs().sum(dim=1) > 0).all()

    @torch.no_grad()
    def test_a_step_moves_no_score_further_than_its_rate(self, clip: Clip) -> None:
        method, rate = dear(clip, gate=True), 0.3
        f0 = frozen(clip)
        for k in range(3):
            method.gate[k] = rate * f0[0].sign()  # the step of Adam that moves image 0 the most
        image = torch.stack([f0] * 4)
        method.fusion.zero_()
        method.gate[1:] = 0
        alpha = method.alpha_of(image)[:, 0]
        assert 0 < float((alpha[0] / alpha[1]).log()) <= rate

    def test_fusion_of_fixed_weights_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"dear\.gate is True, but dear\.learn_fusion is False"):
            DearSettings(gate=True, learn_fusion=False)


def soft_reference(method: Dear, x: Tensor, layer: int, each: int) -> Tensor:
    """A block with learned roles: heads one by one, with their softmax written out, scores edge by edge."""
    block, tokens = block_of(method, layer), x.shape[1]
    query, key, value = block.query_key_value(x)
    heads = []
    for head in range(3):
        theta = method.role_gates[layer - method.image_from, head].tolist()
        terms = torch.zeros(2, tokens, tokens, dtype=x.dtype)
        for q in range(tokens):
            for k in range(tokens):
                a = 0 if q < ORIGINAL else 1 + (q - ORIGINAL) // each
                b = 0 if k < ORIGINAL else 1 + (k - ORIGINAL) // each
                open_by = 1.0 if (a, b) == (0, 0) else 1 / (1 + math.exp(-theta[3 * a + b - 1]))
                score = (query[:, head, q] * key[:, head, k]).sum(dim=-1) / math.sqrt(7)
                terms[:, q, k] = open_by * score.exp()
        heads.append(terms / terms.sum(dim=-1, keepdim=True) @ value[:, head])
    x = x + block.ls_1(block.out_proj(torch.cat(heads, dim=-1)))
    return x + block.ls_2(block.mlp(block.ln_2(x)))  # type: ignore[no-any-return]


class TestSoftRoles:
    @torch.no_grad()
    @pytest.mark.parametrize("each", [1, 2])
    def test_features_equal_a_slow_reference(self, each: int, clip: Clip) -> None:
        method = moved(dear(clip, soft_roles=True, tokens=each), std=0.5)
        with torch.no_grad():  # anywhere between open and blocked, each edge its own
            theta = torch.randn(method.role_gates.shape, generator=torch.Generator().manual_seed(4))
            method.role_gates.copy_(3 * theta)
        trunk, raw = method.image_trunk(images()), method.attribute_tokens.expand(2, -1, -1)
        x = soft_reference(method, torch.cat([trunk, raw], dim=1), 4, each)
        x = torch.cat([x[:, :ORIGINAL], 0.9 * raw + 0.1 * x[:, ORIGINAL:]], dim=1)
        x = soft_reference(method, x, 5, each)
        want = [clip.image.finish(x[:, 0])]
        for start in (ORIGINAL, ORIGINAL + each):
            mean = x[:, start : start + each].mean(dim=1)
            want.append(clip.image.ln_final(mean) @ method.projection)
        got = method.image_features(trunk)
        torch.testing.assert_close(got, normalize(torch.stack(want), dim=-1), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("form", ["exclusive", "eq9"])
    @pytest.mark.parametrize("each", [1, 2])
    def test_gates_start_at_the_tables_roles(self, form: Any, each: int, clip: Clip) -> None:
        method = dear(clip, soft_roles=True, soft_open=0.75, tokens=each, core_mask=form)
        assert method.role_gates.shape == (2, 3, 8)
        hard = dear(clip, tokens=each, core_mask=form).masks()
        want = torch.where(hard == 0, 0.75, 0.25).double()
        want[:, :, :ORIGINAL, :ORIGINAL] = 1
        torch.testing.assert_close(method.masks().exp(), want, rtol=0, atol=1e-7)  # drawn in float32
        by_hand = {"core": [3, 1, 3, 3, 1, 1, 1, 3] if form == "exclusive" else [3, 1, 3, 3, 1, 3, 3, 1]}
        by_hand |= {"generalization": [1, 1, 1, 3, 3, 1, 3, 3], "mixed": [3] * 8}
        for head, (role, _) in enumerate(KINDS[:3]):  # the core head is of the first attribute
            quarters = (4 * method.role_gates[0, head].sigmoid()).tolist()
            assert quarters == pytest.approx(by_hand[role], abs=1e-6)

    def test_nearly_hard_gates_give_the_hard_mask(self, clip: Clip) -> None:
        """1 - 1e-7 is still below 1 in float32, in which they start."""
        soft, hard = (dear(clip, **options) for options in ({"soft_roles": True, "soft_open": 1 - 1e-7}, {}))
        torch.testing.assert_close(f_cls(soft), f_cls(hard), rtol=0, atol=1e-5)

    @torch.no_grad()
    def test_the_leak_where_all_heads_isolate(self, clip: Clip) -> None:
        """An original token's weights on attribute tokens are, of what an unmasked head gives them (p), at
        most a share of 1 - soft_open over 1 - p; features move in proportion to it.
        """
        roles = table(clip).uniform("generalization")
        gaps = {}
        for opening in (0.9, 0.99, 0.999):
            method = dear(clip, roles, soft_roles=True, soft_open=opening)
            x = torch.cat([method.image_trunk(images()), method.attribute_tokens.expand(2, -1, -1)], dim=1)
            query, key, _ = block_of(method, 4).query_key_value(x)
            scores = query @ key.transpose(-1, -2) / math.sqrt(7)
            free = scores.softmax(dim=-1)[:, :, :ORIGINAL, ORIGINAL:].sum(dim=-1)
            leaked = (scores + method.masks()[0]).softmax(dim=-1)[:, :, :ORIGINAL, ORIGINAL:].sum(dim=-1)
            assert (leaked > 0).all()
            assert (leaked <= (1 - opening) * free / (1 - free) * (1 + 1e-6)).all()
            gaps[opening] = float((f_cls(method) - frozen(clip)).abs().max())
        assert 0 < gaps[0.999] < gaps[0.99] < gaps[0.9] < 0.1
        assert gaps[0.99] / gaps[0.999] == pytest.approx(10, rel=0.1)

    def test_gradients_reach_every_gate_that_is_read(self, clip: Clip) -> None:
        method = moved(dear(clip, soft_roles=True), std=0.5)
        method.loss(method.image_trunk(images()), LABELS)["loss"].backward()
        assert method.role_gates.grad is not None
        assert (method.role_gates.grad != 0).all()

    def test_rates(self, clip: Clip) -> None:
        method = dear(clip, gate=True, soft_roles=True, soft_rate=7.0, fusion_rate=5.0)
        tokens, fusion, roles = method.parameter_groups()
        assert (tokens["rate"], fusion["rate"], roles["rate"]) == (1.0, 5.0, 7.0)
        assert fusion["weight_decay"] == roles["weight_decay"] == 0
        assert [id(p) for p in fusion["params"]] == [id(method.fusion), id(method.gate)]
        assert [id(p) for p in roles["params"]] == [id(method.role_gates)]
        assert {id(p) for g in (tokens, fusion, roles) for p in g["params"]} == {
            id(p) for p in method.trainable
        }


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
    assert changes.keys() >= {"gate", "role_gates"}
    assert min(changes.values()) > 0
    assert changes["role_gates"] > 3 * changes["gate"]  # at ten times the rate, by default


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta_last": 1.1}, r"dear\.beta_last is 1\.1: it must be null or from 0 to 1"),
        ({"beta_last": -0.1}, r"dear\.beta_last is -0\.1"),
        ({"beta_last": math.nan}, r"dear\.beta_last is nan"),
        ({"soft_open": 1.0}, r"dear\.soft_open is 1\.0: it must be between 0\.5 and 1, both excluded"),
        ({"soft_open": 0.5}, r"dear\.soft_open is 0\.5"),
        ({"soft_rate": 0.0}, r"dear\.soft_rate is 0\.0: it must be above 0"),
    ],
)
def test_values_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DearSettings(**options)


class TestReadOnly:
    @pytest.mark.parametrize("soft", [False, True])
    def test_the_class_feature_is_the_frozen_one_whatever_was_trained(self, soft: bool, clip: Clip) -> None:
        method = moved(dear(clip, read_only=True, soft_roles=soft))
        trunk = method.image_trunk(images())
        with torch.no_grad():
            torch.testing.assert_close(method.image_features(trunk)[0], method.frozen_image(trunk))
            usual = moved(dear(clip, soft_roles=soft))
            assert (usual.image_features(trunk)[0] - method.frozen_image(trunk)).abs().max() > 1e-4

    def test_nothing_else_is_blocked(self, clip: Clip) -> None:
        """Rows of attribute tokens, and columns of original tokens, are the paper's."""
        usual, method = dear(clip, tokens=2).masks(), dear(clip, tokens=2, read_only=True).masks()
        assert torch.equal(method[:, :, ORIGINAL:], usual[:, :, ORIGINAL:])
        assert torch.equal(method[..., :ORIGINAL], usual[..., :ORIGINAL])
        assert (method[:, :, :ORIGINAL, ORIGINAL:] == float("-inf")).all()
        assert (usual[:, :, :ORIGINAL, ORIGINAL:] == 0).any()
