"""What methods keep to on towers of other kinds than CLIP's own: without class token, with rotary embeddings,
with texts that are not causal or have no start token.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dear.adapters.attention import attention_maps
from dear.adapters.export import export
from dear.adapters.predictor import Predictor
from dear.backbone.attention import attention_weights
from dear.backbone.change import Injection, LowRank
from dear.backbone.clip import Clip
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.tiny import WordTokenizer
from dear.backbone.vision import VisionTower
from dear.errors import SettingsError
from dear.methods.base import Method
from dear.methods.optional import step_hooks
from dear.methods.registry import METHODS
from dear.roles.mask import role_mask
from tests.conftest import CONTEXT, MEAN, STD, WORDS
from tests.helpers.bundles import fitted
from tests.helpers.clips import usual_view
from tests.helpers.data import CLASSES
from tests.helpers.methods import LABELS, TEMPLATE, images, make, seeded, state, target, train
from tests.unit.backbone.shrunk import shrunk
from tools.parity import small

KINDS = {
    "rotary": "EVA02-B-16",
    "normalized last": "EVA02-E-14",
    "a mean": "ViT-L-14-CLIPA",
    "a mean without class token": "vit_medium_patch16_gap_256",
    "attention pool": "ViT-B-16-SigLIP",
    "attention pool, rotary": "PE-Core-B-16",
    "text not causal": "MobileCLIP2-L-14",
}
SIGLIP = "ViT-B-16-SigLIP"


class Bare:
    """A tokenizer without an end token (CLIPA's) or without a start token (SigLIP's)."""

    def __init__(self, words: WordTokenizer, start: bool) -> None:
        self.words, self.start = words, start

    def __call__(self, texts: str | Sequence[str]) -> Tensor:
        ids = self.words(texts)
        if self.start:
            return ids.masked_fill(ids == self.words.vocab_size - 1, 0)
        return torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], dim=1)


def clip_of(kind: str) -> Clip:
    """Of the sizes of the contract's small CLIP: 5 layers of 3 heads, 25 patches, 13 tokens of text."""
    words = WordTokenizer(WORDS, CONTEXT)
    sizes = {"vocab_size": words.vocab_size, "context_length": CONTEXT, "layers": 4}
    network = shrunk(kind, text=sizes, image=(20, 4, 5))
    own = getattr(network, "text", network)
    tokenizer = Bare(words, "CLIPA" in kind) if own is not network and own.pool_type == "last" else words
    if "CLIPA" in kind:
        tokenizer = Bare(words, True)
    return to_clip(
        network, tokenizer, name="small", pretrained="random", preprocess=usual_view(network, MEAN, STD)
    )


BOTH = [(SIGLIP, name) for name in METHODS] + [
    (kind, name) for kind in KINDS.values() if kind != SIGLIP for name in ("dear", "maple")
]


def _reached(parameter: torch.nn.Parameter) -> bool:
    return parameter.grad is not None and bool(parameter.grad.abs().max() > 0)


@pytest.mark.parametrize(("kind", "name"), BOTH)
def test_it_learns_and_leaves_the_frozen_weights_alone(kind: str, name: str) -> None:
    clip = clip_of(kind)
    method = make(name, clip)
    before = state(clip)
    features = method.image_features(method.read_out(method.image_trunk(images())))
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(features.shape[:-1]))
    if method.trainable:
        parts = method.loss(method.image_trunk(images()), LABELS, *target(method))
        step_hooks(method).backward(parts, small.unscaled)
        assert all(one.grad is not None for one in method.trainable)
        reached = [_reached(one) for one in method.trainable]
        losses = train(method, 5)
        assert losses[-1] < losses[0]
        # At the start zeros may stop a gradient, at the end a ReLU that is off.
        assert all(first or _reached(one) for first, one in zip(reached, method.trainable, strict=True))
    assert state(clip) == before


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@torch.no_grad()
def test_the_role_mask_is_kept(kind: str) -> None:
    """A head's attention is zero where its mask blocks, in each layer of the span and to both sides."""
    clip = clip_of(kind)
    method = make("dear", clip)
    tower, trunk = clip.image, method.image_trunk(images())
    for layer in range(method.image_from, tower.depth + 1):
        block, seen = tower.block(layer), list[Tensor]()
        attend = block.attend

        def watched(
            query: Tensor, key: Tensor, value: Tensor, bias: Tensor, seen: list[Tensor] = seen
        ) -> Tensor:
            shares = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + bias).softmax(dim=-1)
            seen.append(shares)
            return shares @ value

        block.attend = watched  # type: ignore[assignment]
        method.image_features(trunk)
        block.attend = attend
        mask = role_mask(
            method.roles, layer, tower.heads, 26, method.settings.tokens, method.settings.core_mask
        )  # type: ignore[attr-defined]
        if not tower.has_class_token:
            mask = mask[:, 1:, 1:]
        if seen[0].shape[2] != mask.shape[1]:
            mask = mask[:, method.read]  # type: ignore[index]
        assert seen[0].shape[1:] == mask.shape
        assert float(seen[0][:, mask == float("-inf")].max()) == 0
        assert float(seen[0][:, mask == 0].min()) > 0


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@torch.no_grad()
def test_injected_tokens_that_nothing_attends_to_change_nothing(kind: str) -> None:
    """In whatever place they are, the image tokens keep their places and rotations."""
    clip = clip_of(kind)
    tower = clip.image
    x = tower.trunk(images(), 3)
    plain = tower.span(x, 3, read=torch.tensor([0]))[:, 0]
    learned = torch.randn(2, tower.width, generator=seeded(1))
    for at in (None, 1, 7):
        first = 26 if at is None else at
        bias = torch.zeros(28, 28)
        bias[:, first : first + 2] = float("-inf")
        bias[first : first + 2, first : first + 2] = 0
        found = tower.span(x, 3, Injection(learned, 0.5, at=at), bias=bias, read=torch.tensor([0]))
        torch.testing.assert_close(found[:, 0], plain, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["PE-Core-B-16", "MobileCLIP2-L-14"])
def test_onnx(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    one = Predictor(fitted("dear", clip_of(kind))[0], clip=clip_of(kind))
    assert export(one, tmp_path / "m.onnx").difference < 1e-4


@torch.no_grad()
def class_attention(tower: VisionTower, images: Tensor, layers: Sequence[int]) -> Tensor:
    """Of each image, layer and head (counted from 1) the attention of the class token to the patches in the
    frozen tower; the mean over all patches as queries where the embedding is pooled.
    """
    x = tower.embed(images)
    first_patch = 1
    if not tower.has_class_token:
        x, first_patch = x[:, 1:], 0
    rotation = tower.rotations()
    maps: dict[int, Tensor] = {}
    for layer in range(1, max(layers) + 1):
        block = tower.block(layer)
        if layer in layers:
            query, key, _ = block.query_key_value(x, rotation=rotation)
            query = query[:, :, :1] if tower.pool is None else query[:, :, first_patch:]
            weights = attention_weights(query, key).mean(dim=2)
            maps[layer] = weights[:, :, first_patch:].unflatten(-1, (tower.side, tower.side))
        if layer < max(layers):
            x = block(x, rotation=rotation)
    return torch.stack([maps[layer] for layer in layers], dim=1)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_where_a_head_looks(kind: str) -> None:
    """Without learned tokens: the maps of the adapted model's zero-shot and of the frozen tower agree."""
    clip = clip_of(kind)
    pixels = images()[:1]
    zero_shot, adapted = make("zero-shot", clip), make("dear", clip)
    whole = class_attention(clip.image, clip.normalize_pixels(pixels), [2, 5])
    for at, layer in enumerate((2, 5)):
        found = attention_maps(zero_shot, pixels[0], layer, 1)["class"]
        torch.testing.assert_close(found, whole[0, at, 1], rtol=1e-4, atol=1e-6)
    maps = attention_maps(adapted, pixels[0], 5, 0)
    assert {*maps} == {"class", "color", "object"}
    assert all(one.shape == (5, 5) and 0 <= float(one.sum()) <= 1 + 1e-5 for one in maps.values())


def test_words_and_places_of_prompts_without_start_and_end() -> None:
    siglip, clipa = clip_of(SIGLIP), clip_of("ViT-L-14-CLIPA")
    assert (siglip.first_word, clipa.first_word) == (0, 1)
    for clip in (siglip, clipa):
        assert clip.words_in(["a photo of", "house"]).tolist() == [3, 1]
    coop = make("coop", siglip)
    prompts = coop.prompts_of_classes  # type: ignore[attr-defined]
    context = prompts.length
    assert prompts.order[1].tolist()[:4] == [context, context + 1, context + 2, 3]
    assert not prompts.tower.causal


@pytest.mark.parametrize("kind", ["EVA02-B-16", SIGLIP])
@pytest.mark.parametrize("change", ["tokens", "updates"])
def test_a_change_behind_the_last_layer_is_told(change: str, kind: str) -> None:
    """A method that leaves `image_from` and `text_from` at their defaults: its tokens were never read."""
    method = Method(clip_of(kind))
    method.set_classes(CLASSES, TEMPLATE)
    for tower, compute in (
        (method.clip.image, partial(method.class_feature, method.image_trunk(images()))),
        (method.clip.text, method.mean_over_templates),
    ):
        compute()
        weights = torch.zeros(1, 3, 2, tower.width)
        with pytest.raises(SettingsError, match=r"no effect from layer .* sets image_from and text_from"):
            compute(
                Injection(torch.zeros(2, tower.width), 1.0)
                if change == "tokens"
                else LowRank(weights, weights.mT, 1.0)
            )
