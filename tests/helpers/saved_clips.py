"""Models as other libraries save them."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")


SIZES = {"hidden_size": 24, "intermediate_size": 53, "num_hidden_layers": 2, "num_attention_heads": 3}


WORDS = 49408


def saved(folder: Path, kind: str, image: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A model with random weights, saved as transformers does; returned as well. ``changes`` are of both
    towers' settings, ``image`` of the image tower's.
    """
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
