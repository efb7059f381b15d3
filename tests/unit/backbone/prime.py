"""A small architecture with prime dimensions, and tags for it, that open_clip does not have."""

from typing import Any

import torch
from torch import Tensor

from dear.backbone.clip import Clip

NAME = "ViT-prime"
CONFIG = {
    "embed_dim": 17,
    "vision_cfg": {"image_size": 20, "patch_size": 4, "width": 21, "head_width": 7, "layers": 3},
    "text_cfg": {"context_length": 13, "vocab_size": 49408, "width": 22, "heads": 2, "layers": 2},
}
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
TAGS: dict[str, dict[str, Any]] = {
    "plain": {"hf_hub": "someone/prime-clip/", "mean": MEAN, "std": STD},
    "quick": {"hf_hub": "someone/prime/quick.pt", "mean": MEAN, "std": STD, "quick_gelu": True},
    "by_url": {"url": "file:///nowhere/prime.pt", "mean": MEAN, "std": STD},
}


@torch.no_grad()
def features(clip: Clip) -> tuple[Tensor, Tensor]:
    pixels = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    return clip.encode_image(clip.normalize_pixels(pixels)), clip.encode_text(["a red house", "trees"])
