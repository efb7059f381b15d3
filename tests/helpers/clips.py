"""Small networks whose towers give features only."""

import copy
from typing import Any

import open_clip
import torch
from torch import nn

from dear.backbone.clip import Clip
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.open_clip_format import build_from, initial_weights_from
from tests.views import usual_view

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
