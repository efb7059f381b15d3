"""The frozen CLIP: identity, features, class prompts, where spans begin."""

from hashlib import sha256
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from dear.backbone.clip import Clip, Identity, span_start, tensors_hash
from dear.backbone.loading.convert import to_clip
from tests.conftest import MakeClip, MakeModel
from tests.helpers.clips import usual_view


def test_identity_names_the_weights(small_clip: Clip, make_small_clip: MakeClip) -> None:
    assert small_clip.identity == make_small_clip().identity
    assert small_clip.identity == make_small_clip(dtype=torch.float64).identity
    assert small_clip.identity.sha256 != make_small_clip(seed=1).identity.sha256
    assert str(Identity("ViT-B-16", "openai", "0123456789abcdef")) == "ViT-B-16/openai [0123456789ab]"


KINDS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("at_once", [7, 2**20])
def test_the_hash_is_that_of_whole_tensors(
    kind: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dear.backbone.clip.VALUES_AT_ONCE", at_once)
    drawn = (
        300 * torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ).abs()
    whole = drawn.clamp(max=120).to(kind)
    state = {
        "all": whole, "b": whole[0, 0, 0], "a": whole[:0], "turned": whole.permute(2, 0, 1),
        "part": whole[1:, ::2, 3:], "repeated": whole[:1].expand(4, 5, 7),
        "grad": nn.Parameter(drawn.float()),
    }  # fmt: skip
    slow = sha256()
    for name in sorted(state):
        tensor = state[name].detach().to(torch.float32).contiguous()
        slow.update(f"{name}{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    assert tensors_hash(state) == slow.hexdigest()


def test_it_is_frozen_and_in_evaluation(small_clip: Clip) -> None:
    assert not any(parameter.requires_grad for parameter in small_clip.parameters())
    assert not any(module.training for module in small_clip.modules())
    assert set(small_clip.state_dict()).isdisjoint({"mean", "std"})
    assert (small_clip.image_size, small_clip.scale.shape) == (20, ())


@torch.no_grad()
def test_class_features_are_the_unit_mean_of_unit_features(small_clip: Clip) -> None:
    features = small_clip.class_features(["red_house", "tree"], ["a photo of {}", "the {}"])
    photo = normalize(small_clip.encode_text(["a photo of red house", "a photo of tree"]), dim=-1)
    plain = normalize(small_clip.encode_text(["the red house", "the tree"]), dim=-1)
    torch.testing.assert_close(features, normalize((photo + plain) / 2, dim=-1))


def test_a_tokenizers_cache_of_words_is_bounded(make_small_model: MakeModel) -> None:
    import open_clip

    tokenizer = open_clip.SimpleTokenizer(context_length=9)
    model = make_small_model()
    view = usual_view(model, (0.0,) * 3, (1.0,) * 3)
    clip = to_clip(model, tokenizer, name="small", pretrained="none", preprocess=view)
    other = open_clip.SimpleTokenizer(context_length=9)
    words = ["x" * 60, *map("".join, product("bcd", repeat=3))]
    tokenizer.cache.update({str(number): "" for number in range(9_990)})
    for texts in (words, words, [f"<start_of_text> {words[3]} again"]):
        assert torch.equal(clip.tokenize(texts), other(texts))
    assert len(tokenizer.cache) == 10_000
    assert "x" * 60 not in tokenizer.cache


@pytest.mark.parametrize(
    ("depth", "first", "start"),
    [
        (12, 9, 9),
        (24, 9, 17),
        (6, 9, 5),
        (1, 9, 1),
        (2, 9, 2),
        (3, 9, 3),
        (24, 5, 9),
        (12, 1, 1),
        (12, 12, 12),
    ],
)
def test_a_span_keeps_its_share_of_the_tower(depth: int, first: int, start: int) -> None:
    assert span_start(depth, first) == start
