"""Small networks of features only, models as transformers saves them, and views of pictures."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear.backbone.clip import Clip
from dear.backbone.features_only import image_side
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.open_clip_format import build_from, initial_weights_from
from dear.backbone.preprocess import Preprocess, Triple
from dear.data.images.transforms import eval_view, to_unit, train_view

RESNET = {
    "embed_dim": 17,
    "vision_cfg": {"image_size": 64, "layers": [1] * 4, "width": 8, "head_width": 16, "patch_size": None},
    "text_cfg": {"context_length": 11, "vocab_size": 49408, "width": 22, "heads": 2, "layers": 2},
}


COCA = {
    "embed_dim": 19,
    "vision_cfg": {
        "image_size": 20, "patch_size": 4, "width": 21, "head_width": 7, "layers": 2,
        "attentional_pool": True, "attn_pooler_heads": 1, "attn_pooler_queries": 5, "output_tokens": True,
    },
    "text_cfg": {
        "context_length": 11, "vocab_size": 49408, "width": 22, "heads": 2, "layers": 2,
        "embed_cls": True, "output_tokens": True,
    },
    "multimodal_cfg": {"context_length": 11, "vocab_size": 97, "width": 22, "heads": 2, "layers": 1},
    "custom_text": True,
}  # fmt: skip


def network_of(config: dict[str, Any], seed: int = 3) -> Any:
    """A network with no weight, and no statistic of batch normalization, at its default."""
    with initial_weights_from(seed):
        network = build_from("small", copy.deepcopy(config))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*network.parameters(), *(b for b in network.buffers() if b.is_floating_point())):
            if torch.isfinite(tensor).all():  # a causal mask is not
                tensor.add_(0.02 * torch.rand(tensor.shape, generator=draw))
    return network


def clip_of(network: nn.Module) -> Clip:
    tokenizer = open_clip.SimpleTokenizer(context_length=11)
    view = usual_view(network, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    return to_clip(network, tokenizer, name="small", pretrained="x", preprocess=view)


SIZES = {"hidden_size": 24, "intermediate_size": 53, "num_hidden_layers": 2, "num_attention_heads": 3}


WORDS = 49408


def saved(folder: Path, kind: str, image: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A model with random weights, saved as transformers does; returned as well. ``changes`` are of both
    towers' settings, ``image`` of the image tower's.
    """
    transformers = pytest.importorskip("transformers")
    text = SIZES | {"vocab_size": WORDS if kind == "CLIP" else 97, "max_position_embeddings": 11} | changes
    vision = SIZES | {"image_size": 20, "patch_size": 5} | changes | (image or {})
    whole = {"projection_dim": 13} if kind == "CLIP" else {}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **whole)
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.eval().save_pretrained(folder)
    return model


def compare(clip: Any, model: Any) -> None:
    draw = torch.Generator().manual_seed(1)
    pixels = torch.randn(2, 3, 20, 20, generator=draw)
    texts = ["a photo of a cat", "two trees"]
    with torch.no_grad():
        theirs = model(input_ids=clip.tokenize(texts), pixel_values=pixels)
        for ours, wanted in (
            (clip.encode_image(pixels), theirs.image_embeds), (clip.encode_text(texts), theirs.text_embeds),
        ):  # fmt: skip
            ours = torch.nn.functional.normalize(ours, dim=-1)
            torch.testing.assert_close(ours, wanted, rtol=0, atol=2e-6)


def usual_view(model: Any, mean: Triple, std: Triple) -> Preprocess:
    """CLIP's usual preprocessing at the size of a model of open_clip."""
    return Preprocess(image_side(model.visual), mean, std)


def train_views(
    images: Sequence[Tensor] | Tensor,
    size: int,
    numbers: Float[Tensor, "batch draw"],
    scale: tuple[float, float] = (0.5, 1.0),
) -> Float[Tensor, "batch 3 size size"]:
    """A random view of each picture, from the numbers of its row."""
    rows = numbers.tolist()
    return torch.stack([train_view(image, size, row, scale) for image, row in zip(images, rows, strict=True)])


def eval_views(images: Sequence[Tensor] | Tensor, size: int) -> Float[Tensor, "batch 3 size size"]:
    """The test view of each picture, by CLIP's usual preprocessing."""
    return to_unit(torch.stack([eval_view(image, Preprocess(size)) for image in images]))


def load_always(clip: Clip, patch: pytest.MonkeyPatch) -> None:
    """Let `fit`, bundles and runs load a CLIP whatever is named. An image is left out once."""
    for module in ("adapters.bundle", "evaluation.session"):
        patch.setattr(f"dear.{module}.load_clip", lambda *_args, **_options: clip)
    patch.setattr("dear.adapters.fit_plan.find_weights", lambda *_: None)
    patch.setattr("dear.adapters.leftout.ENOUGH", 1)
