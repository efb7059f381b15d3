"""Small versions of open_clip's architectures, of the same kind: fewer and narrower layers, small images."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import open_clip
import timm
import torch
from timm.models.vitamin import VitCfg, VitConvCfg
from torch import Tensor, nn

from dear.backbone.loading.convert import to_towers
from dear.backbone.loading.open_clip_format import build_from, initial_weights_from
from dear.backbone.vision import VisionTower

DEPTH, TEXT_DEPTH, CONTEXT, WORDS, EMBED = 3, 2, 11, 97, 13
HEADS, GRID = 3, 3
STEM = VitCfg(
    embed_dim=(6, 12, 24), depths=(1, 1, 1), stem_width=6, head_type="1d",
    conv_cfg=VitConvCfg(norm_layer="layernorm2d", norm_eps=1e-6),
)  # fmt: skip


@contextmanager
def small_timm(geometry: dict[str, int] | None = None) -> Iterator[None]:
    """timm's ViTs are made small, by ``geometry`` if given; the options that make their kind stay."""
    whole = timm.create_model

    def small(name: str, **options: Any) -> Any:
        if name.startswith("vitamin"):
            sizes = {"embed_dim": 24, "num_heads": HEADS, "depth": DEPTH, "img_size": 48}
            return whole(name, **sizes, embed_cfg=STEM, **options)
        if name.startswith("vit_base_mci"):  # the stem gives the width of the tokens
            return whole(name, depth=2, img_size=32, **options)
        if not name.startswith(("vit_", "eva")):
            return whole(name, **options)
        patch_size = next(n for n in (14, 16, 32) if f"patch{n}" in name)
        sizes = {"embed_dim": 24, "num_heads": HEADS, "depth": DEPTH, "img_size": GRID * patch_size + 1}
        if "pe_core" in name:
            sizes["attn_pool_num_heads"] = 2
        sizes["img_size"] -= "pe_core" in name or name.startswith("eva")  # these take whole patches only
        return whole(name, **sizes | (geometry or {}), **options)

    with patch("open_clip.timm_model.timm.create_model", small):
        yield


def shrunk_config(name: str) -> dict[str, Any]:
    """open_clip's configuration of an architecture, small."""
    config = open_clip.get_model_config(name)
    config["embed_dim"] = EMBED
    vision, text = config["vision_cfg"], config["text_cfg"]
    text |= {"layers": TEXT_DEPTH, "width": 22, "heads": 2, "vocab_size": WORDS, "context_length": CONTEXT}
    if text.get("proj_type") == "none":
        text["width"] = EMBED + 11
    if "timm_model_name" not in vision:
        vision |= {"layers": DEPTH, "width": 21, "head_width": 7, "image_size": GRID * vision["patch_size"]}
    elif vision.get("timm_proj") == "none":
        config["embed_dim"] = text["width"] = 24
    return config


def shrunk(
    name: str, seed: int = 0, *, text: dict[str, int] | None = None, image: tuple[int, int, int] | None = None
) -> nn.Module:
    """A small version with weights drawn from ``seed``, none of which is at its default. ``text`` overrides
    sizes of the text tower, ``image`` gives the pixels of an image and of a patch, and the depth.
    """
    config, geometry = shrunk_config(name), {}
    config["text_cfg"] |= text or {}
    if image is not None:
        geometry = dict(zip(("img_size", "patch_size", "depth"), image, strict=True))
        if "timm_model_name" not in config["vision_cfg"]:
            size, patch_size, depth = image
            config["vision_cfg"] |= {"image_size": size, "patch_size": patch_size, "layers": depth}
    with small_timm(geometry), initial_weights_from(seed):
        network = build_from(name, config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return network.eval()


def pixels(network: Any, batch: int = 2) -> torch.Tensor:
    """Random pixels of the size that an image tower takes."""
    trunk = getattr(network.visual, "trunk", None)
    size = network.visual.image_size if trunk is None else trunk.patch_embed.img_size
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(5))


def ids(network: Any, texts: int = 3) -> torch.Tensor:
    """Random ids: words, an end, and padding, as the pool of the text tower takes them."""
    text = getattr(network, "text", network)
    draw = torch.Generator().manual_seed(7)
    found = torch.randint(5, WORDS - 1, (texts, CONTEXT), generator=draw)
    end = {"eos": 2, "last": 1}.get(
        getattr(text, "pool_type", getattr(text, "text_pool_type", "")), WORDS - 1
    )
    for row, length in zip(found, (4, 9, 6), strict=False):
        row[length], row[length + 1 :] = end, 1 if end < 5 else 0
    return found


KINDS = {
    "CLIP's own": "ViT-B-16",
    "a class token, blocks of timm": "MobileCLIP2-L-14",
    "a LayerNorm of the heads, rotary": "EVA02-B-16",
    "normalized last": "EVA02-E-14",
    "a mean": "ViT-L-14-CLIPA",
    "a mean of normalized tokens": "vit_medium_patch16_gap_256",
    "a mean on a convolutional stem": "ViTamin-S",
    "attention to the patches": "ViT-B-16-SigLIP",
    "attention to all tokens, rotary": "PE-Core-B-16",
    "attention without class token, rotary": "PE-Core-bigG-14-448",
}


def made(name: str) -> tuple[VisionTower, Tensor]:
    network = shrunk(name).double()
    return to_towers(network)[0].requires_grad_(False), pixels(network).double()
