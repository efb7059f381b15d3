"""The copy of a CLIP in float16."""

import torch
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.precision import Float32Norm, half
from tests.conftest import MakeClip
from tests.views import eval_views


def pixels(count: int = 3) -> torch.Tensor:
    pictures = torch.randint(0, 256, (count, 3, 20, 20), generator=torch.Generator().manual_seed(1))
    return eval_views(pictures.to(torch.uint8), 20)


def test_what_stays_in_float32(small_clip: Clip) -> None:
    before = {name: one.clone() for name, one in small_clip.state_dict().items()}
    found = half(small_clip)
    full = {name for name, one in found.named_parameters() if one.dtype == torch.float32}
    assert full == {"logit_scale"} | {
        f"{name}.{part}"
        for name, module in found.named_modules()
        if isinstance(module, Float32Norm)
        for part in ("weight", "bias")
    }
    assert len(full) == 1 + 2 * (2 * 5 + 2 * 4 + 3)  # two of each layer; before and after the layers
    assert found.mean.dtype == found.std.dtype == torch.float32
    assert (found.identity, found.tokenizer) == (small_clip.identity, small_clip.tokenizer)
    assert not any(one.requires_grad for one in found.parameters())
    for name, one in small_clip.state_dict().items():  # the original is as it was
        assert torch.equal(one, before[name])


@torch.no_grad()
def test_features_are_near_those_of_float32(make_small_clip: MakeClip) -> None:
    exact, texts = make_small_clip(), ["a red house on the sea", "tree"]
    rough = half(exact)
    pairs = [(one.image(one.normalize_pixels(pixels())), one.encode_text(texts)) for one in (exact, rough)]
    for one, other in zip(*pairs, strict=True):
        assert other.dtype == torch.float16
        assert not torch.equal(other.float(), one)
        torch.testing.assert_close(
            normalize(other.float(), dim=-1), normalize(one, dim=-1), atol=4e-3, rtol=0
        )
