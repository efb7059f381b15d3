"""The towers compute what open_clip computes, wherever they are split; injection is equation 5 and 6."""

from collections.abc import Callable

import pytest
import torch
from open_clip.model import CLIP
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone import text as text_tower
from dear.backbone.attention import causal_bias
from dear.backbone.change import UNCHANGED, Injection
from dear.backbone.clip import Clip
from dear.backbone.loading.convert import to_towers
from dear.backbone.text import TextTrunk
from dear.errors import SettingsError

MakeModel = Callable[..., CLIP]
MakeClip = Callable[..., Clip]
GAP = 1e-5  # float32, largest difference between unit features


def images(size: int = 20, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64).to(dtype)


def prompts(context: int, end: int) -> Tensor:
    """Three prompts of different lengths, none as long as the context: low ids, then the end, then 0."""
    ids = torch.zeros(3, context, dtype=torch.long)
    generator = torch.Generator().manual_seed(2)
    for row, length in enumerate((3, 7, 5)):
        ids[row, :length] = torch.randint(1, end, (length,), generator=generator)
        ids[row, length] = end
    return ids


def assert_same_unit(one: Tensor, other: Tensor, gap: float = GAP) -> None:
    torch.testing.assert_close(normalize(one, dim=-1), normalize(other, dim=-1), rtol=0, atol=gap)


@pytest.mark.parametrize("options", [{}, {"quick_gelu": True}, {"layer_scale": 0.3}], ids=str)
@torch.no_grad()
def test_both_towers_equal_open_clip_exactly_at_every_split(
    make_small_model: MakeModel, options: dict[str, object]
) -> None:
    model = make_small_model(dtype=torch.float64, **options)
    image, text = to_towers(model)
    x, ids = images(dtype=torch.float64), prompts(13, 50)
    wanted_image, wanted_text = model.encode_image(x), model.encode_text(ids)
    torch.testing.assert_close(image(x), wanted_image, rtol=0, atol=1e-12)
    torch.testing.assert_close(text(ids), wanted_text, rtol=0, atol=1e-12)
    for first in range(1, 7):
        features = image.finish(image.span(image.trunk(x, first), first)[:, 0])
        torch.testing.assert_close(features, wanted_image, rtol=0, atol=1e-12)
    for first in range(1, 6):
        features = text.features(text.trunk(ids, first), first)
        torch.testing.assert_close(features, wanted_text, rtol=0, atol=1e-12)


@torch.no_grad()
def test_past_the_tower_one_token_of_each_prompt_is_kept(small_clip: Clip) -> None:
    """All tokens of 2,400 prompts took 4.8 GB, of which the features need one each."""
    text = small_clip.text
    ids = prompts(text.context_length, 50)
    trunk = text.trunk(ids, text.depth + 1)
    assert trunk.tokens.shape == (3, 1, 22)
    torch.testing.assert_close(text.features(trunk, text.depth + 1), text(ids))
    with pytest.raises(SettingsError, match="no effect from layer 5 on, since the tower has 4"):
        text.features(trunk, text.depth + 1, Injection(torch.zeros(2, 3, 22), beta=1.0, at=1))


@torch.no_grad()
def test_prompts_are_computed_in_parts(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest has 8 tokens: as many hidden values as two of this length have are allowed."""
    text, sizes = small_clip.text, list[int]()
    ids = prompts(text.context_length, 3).repeat(3, 1)[:5]
    together = text(ids)
    trunks = [text.trunk(ids, first) for first in range(1, text.depth + 2)]
    text.block(1).mlp.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    monkeypatch.setattr(text_tower, "MAX_HIDDEN_VALUES", 2 * 8 * text.block(1).mlp.c_fc.out_features)
    assert_same_unit(text(ids), together)
    assert sizes == [2, 2, 1]
    for first, whole in enumerate(trunks, start=1):
        in_parts = text.trunk(ids, first)
        torch.testing.assert_close(in_parts.tokens, whole.tokens)
        assert torch.equal(in_parts.end, whole.end)
        sizes.clear()
        assert_same_unit(text.features(in_parts, first), together)
        assert max(sizes, default=0) <= 2


def test_reading_some_tokens_equals_reading_all(make_small_clip: MakeClip) -> None:
    tower = make_small_clip(dtype=torch.float64).image
    tokens = tower.trunk(images(dtype=torch.float64), 4)
    generator = torch.Generator().manual_seed(3)
    bias = torch.randn(3, 26, 26, generator=generator, dtype=torch.float64)
    for one in (bias, bias[0], [bias, 2 * bias], None):
        full = tower.span(tokens, 4, bias=one)
        some = tower.span(tokens, 4, bias=one, read=torch.tensor([0, 11, 25]))
        torch.testing.assert_close(some, full[:, [0, 11, 25]], rtol=0, atol=1e-12)
    rows = torch.tensor([[2], [7]])
    full, some = tower.span(tokens, 4, bias=bias[0]), tower.span(tokens, 4, bias=bias[0], read=rows)
    torch.testing.assert_close(some[:, 0], torch.stack([full[0, 2], full[1, 7]]), rtol=0, atol=1e-12)
    past = tower.span(tokens, 6, read=rows)
    assert torch.equal(past[:, 0], torch.stack([tokens[0, 2], tokens[1, 7]]))


@torch.no_grad()
def test_each_layer_of_a_span_takes_its_own_bias(make_small_clip: MakeClip) -> None:
    tower = make_small_clip(dtype=torch.float64).image
    tokens = tower.trunk(images(dtype=torch.float64), 4)
    generator = torch.Generator().manual_seed(3)
    one, two = torch.randn(2, 3, 26, 26, generator=generator, dtype=torch.float64)
    expected = tower.blocks[4](tower.blocks[3](tokens, one), two)
    assert torch.equal(tower.span(tokens, 4, bias=[one, two]), expected)
    assert not torch.allclose(tower.span(tokens, 4, bias=[two, one]), expected)


@pytest.mark.parametrize(("at", "order"), [(None, "xxxrr"), (1, "xrrxx")])
@pytest.mark.parametrize("beta", [1.0, 0.0, 0.9])
def test_injection_by_hand(at: int | None, order: str, beta: float) -> None:
    raw = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    x = torch.arange(6.0).view(1, 3, 2)
    inject = Injection(raw, beta=beta, at=at)
    entered = inject.enter(x)
    places = [i for i, kind in enumerate(order) if kind == "r"]
    others = [i for i, kind in enumerate(order) if kind == "x"]
    assert torch.equal(entered[0, places], raw)
    assert torch.equal(entered[:, others], x)
    output = torch.full((1, 5, 2), 100.0)
    anchored = inject.anchor(output, 1)
    # beta x 10 + (1 - beta) x 100, and so on
    expected = {
        1.0: [[10.0, 20.0], [30.0, 40.0]],
        0.0: [[100.0, 100.0], [100.0, 100.0]],
        0.9: [[19.0, 28.0], [37.0, 46.0]],
    }[beta]
    torch.testing.assert_close(anchored[0, places], torch.tensor(expected))
    assert torch.equal(anchored[0, others], torch.full((3, 2), 100.0))


def test_injection_with_one_set_a_layer() -> None:
    tokens = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
    inject = Injection(tokens, beta=0.5)
    assert inject.enter(torch.zeros(2, 1, 2))[:, 1].tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert inject.anchor(torch.zeros(1, 2, 2), 2)[0, 1].tolist() == [2.5, 3.0]


def test_tokens_evolve_after_the_last_set() -> None:
    inject = Injection(torch.ones(2, 1, 3), beta=1.0)
    x = torch.full((1, 4, 3), 7.0)
    assert inject.anchor(x, 1)[0, 3].tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(inject.anchor(x, 2), x)


def test_injection_over_tokens_that_hold_the_places() -> None:
    x = torch.arange(10.0).view(1, 5, 2)
    inject = Injection(torch.tensor([[[-1.0, -2.0], [-3.0, -4.0]]]), beta=1.0, at=1, written=True)
    assert inject.added == 0
    assert inject.enter(x)[0].tolist() == [[0, 1], [-1, -2], [-3, -4], [6, 7], [8, 9]]
    last = Injection(torch.tensor([[-1.0, -2.0]]), beta=1.0, written=True)
    assert last.enter(x)[0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [-1, -2]]


@torch.no_grad()
def test_tokens_written_over_words_leave_the_end_where_it_is(make_small_clip: MakeClip) -> None:
    tower = make_small_clip(dtype=torch.float64).text
    ids = prompts(13, 50)
    raw = torch.randn(2, 2, 22, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x = tower.embed(ids)
    for step, block in enumerate(tower.blocks):
        if step < 2:
            x[:, 1:3] = raw[step]
        x = block(x, causal_bias(13, raw))
    expected = tower.finish(x[[0, 1, 2], [3, 7, 5]])
    inject = Injection(raw, beta=1.0, at=1, written=True)
    torch.testing.assert_close(tower.features(tower.trunk(ids, 1), 1, inject), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens_shape", [(2, 21), (3, 2, 21)])
@torch.no_grad()
def test_a_span_with_injection_is_layers_and_anchors_in_turn(
    make_small_clip: MakeClip, tokens_shape: tuple[int, ...]
) -> None:
    tower = make_small_clip(dtype=torch.float64).image
    trunk = tower.trunk(images(dtype=torch.float64), 3)
    raw = torch.randn(tokens_shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    layer = raw if raw.ndim == 3 else raw.expand(3, -1, -1)
    x = torch.cat([trunk, layer[0].expand(2, -1, -1)], dim=1)
    for step in range(3):
        if step > 0:
            x[:, 26:] = 0.9 * layer[step] + 0.1 * x[:, 26:]
        x = tower.blocks[2 + step](x)
    inject = Injection(raw, beta=0.9)
    torch.testing.assert_close(tower.span(trunk, 3, inject), x, rtol=0, atol=1e-12)
    read = tower.span(trunk, 3, inject, read=torch.tensor([0, 26, 27]))
    torch.testing.assert_close(read, x[:, [0, 26, 27]], rtol=0, atol=1e-12)


@torch.no_grad()
def test_text_injection_shifts_the_end_and_equals_the_whole_context(make_small_clip: MakeClip) -> None:
    tower = make_small_clip(dtype=torch.float64).text
    ids = prompts(13, 50)
    raw = torch.randn(2, 22, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x = tower.layers(tower.embed(ids), 1, 1, causal_bias(13, raw))
    x = torch.cat([x[:, :1], raw.expand(3, -1, -1), x[:, 1:]], dim=1)
    for step, block in enumerate(list(tower.blocks)[1:]):
        if step > 0:
            x[:, 1:3] = 0.7 * raw + (1 - 0.7) * x[:, 1:3]
        x = block(x, causal_bias(15, raw))
    expected = tower.finish(x[[0, 1, 2], [5, 9, 7]])
    features = tower.features(tower.trunk(ids, 2), 2, Injection(raw, beta=0.7, at=1))
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alike", [1, 3])
@pytest.mark.parametrize("entering", ["nothing", "inserted", "written", "after them"])
@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("first", [1, 4])
def test_prompts_that_begin_alike(
    make_small_clip: MakeClip,
    monkeypatch: pytest.MonkeyPatch,
    alike: int,
    entering: str,
    chunk: int,
    first: int,
) -> None:
    """Features and gradients are those of prompts taken each by itself, of three lengths and of one."""
    tower = make_small_clip(dtype=torch.float64).text
    ids = prompts(13, 50).roll(alike, dims=1)
    ids[:, :alike] = torch.tensor([48, 3, 11])[:alike]
    ids[:, alike] = torch.tensor([4, 5, 6])
    with torch.no_grad():
        trunk = tower.trunk(ids, first)
    assert trunk.prefix == alike
    raw = torch.randn(2, 2, 22, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weight = torch.randn(3, 17, generator=torch.Generator().manual_seed(6), dtype=torch.float64)

    def run(of: TextTrunk) -> tuple[Tensor, Tensor]:
        leaf = raw.clone().requires_grad_()
        inject = {
            "nothing": UNCHANGED,
            "inserted": Injection(leaf, beta=0.7, at=1),
            "written": Injection(leaf, beta=1.0, at=1, written=True),
            "after them": Injection(leaf, beta=0.7, at=4),
        }[entering]
        if inject is UNCHANGED:  # the input may have a gradient too
            leaf = of.tokens.clone().requires_grad_()
            of = TextTrunk(leaf, of.end, of.prefix)
        found = tower.features(of, first, inject, chunk)
        (found * weight).sum().backward()
        assert leaf.grad is not None
        return found.detach(), leaf.grad.sum(dim=0) if inject is UNCHANGED else leaf.grad

    if entering == "after them" or (entering == "written" and alike == 1):
        inside = Injection(raw, beta=1.0, at=1 if entering == "written" else 4, written=entering == "written")
        assert not trunk.has_prefix(inside)
    expected = run(TextTrunk(trunk.tokens, trunk.end))
    for worth in (0, text_tower.GROUP_WORTH):
        monkeypatch.setattr(text_tower, "GROUP_WORTH", worth)
        for got, wanted in zip(run(trunk), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("chunk", [0, 1, 2, 3])
@pytest.mark.parametrize("worth", [0, 2**19])
def test_groups_and_chunks_change_neither_features_nor_gradients(
    make_small_clip: MakeClip, monkeypatch: pytest.MonkeyPatch, worth: int, chunk: int
) -> None:
    """Against prompts one by one; gradients of injected tokens and of a trunk that is learned itself."""
    monkeypatch.setattr(text_tower, "GROUP_WORTH", worth)
    tower = make_small_clip(dtype=torch.float64).text
    held = tower.trunk(prompts(13, 50), 2)
    weights = torch.randn(3, 17, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = []
    for together in (True, False):
        raw = torch.randn(2, 22, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        inject, tokens = Injection(raw.requires_grad_(), beta=0.7, at=1), held.tokens.clone().requires_grad_()
        parts = [slice(0, 3)] if together else [slice(i, i + 1) for i in range(3)]
        features = torch.cat(
            [
                tower.features(TextTrunk(tokens[part], held.end[part]), 2, inject, chunk if together else 0)
                for part in parts
            ]
        )
        (features * weights).sum().backward()
        assert raw.grad is not None
        assert tokens.grad is not None
        found.append((features.detach(), raw.grad, tokens.grad))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-11)


def test_weights_are_shared_not_copied(make_small_model: MakeModel) -> None:
    model = make_small_model()
    image, text = to_towers(model)
    source = {tensor.data_ptr() for tensor in model.parameters()} - {model.logit_scale.data_ptr()}
    ours = {tensor.data_ptr() for tower in (image, text) for tensor in tower.parameters()}
    assert ours == source
    assert image.projection is model.visual.proj
