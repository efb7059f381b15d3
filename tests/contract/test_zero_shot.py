"""Zero-shot classification: open_clip's own scores, no training, and the methods that start from it."""

import pytest
import torch
from torch.nn.functional import normalize

from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.tiny import WordTokenizer
from dear.methods.registry import build_method
from tests.conftest import MEAN, STD, WORDS, MakeModel
from tests.helpers.clips import usual_view
from tests.helpers.data import CLASSES
from tests.helpers.methods import MakeClip, images, make


@torch.no_grad()
def test_zero_shot_is_open_clips_own_cosine(make_small_model: MakeModel) -> None:
    model = make_small_model(dtype=torch.float64)
    tokenizer = WordTokenizer(WORDS, 13)
    clip = to_clip(
        model, tokenizer, name="small", pretrained="random", preprocess=usual_view(model, MEAN, STD)
    ).to(torch.float64)
    method = make("zero-shot", clip)
    pixels = images(torch.float64)
    standard = (pixels - torch.tensor(MEAN).view(3, 1, 1).double()) / torch.tensor(STD).view(3, 1, 1).double()
    ids = tokenizer([f"a photo of a {name}" for name in CLASSES])
    want = normalize(model.encode_image(standard), dim=-1) @ normalize(model.encode_text(ids), dim=-1).T
    got = method.logits(method.image_features(method.image_trunk(pixels)), method.text_features())
    torch.testing.assert_close(got, model.logit_scale.exp() * want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["coop", "cocoop"])
def test_a_context_of_plain_words_is_zero_shot(name: str, make_small_clip: MakeClip) -> None:
    """Before training, with the words "a photo of a" and without the shift by the image."""
    clip = make_small_clip(dtype=torch.float64)
    method = build_method(name, clip, torch.Generator())
    method.set_classes(CLASSES, ["a photo of a {}."])
    if name == "cocoop":
        torch.nn.init.zeros_(method.get_parameter("meta_net.2.weight"))
        torch.nn.init.zeros_(method.get_parameter("meta_net.2.bias"))
    zero = build_method("zero-shot", clip, torch.Generator())
    zero.set_classes(CLASSES, ["a photo of a {}."])
    pixels = images(torch.float64)
    with torch.no_grad():
        got, want = (
            one.logits(one.image_features(one.image_trunk(pixels)), one.text_features())
            for one in (method, zero)
        )
    torch.testing.assert_close(got, want, rtol=0, atol=1e-11)
    torch.testing.assert_close(method.text_features().detach(), zero.text_features(), rtol=0, atol=1e-12)
