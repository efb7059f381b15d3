"""Attention maps of a head: from the class token and the attribute tokens to the patches."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from dear.backbone.attention import attention_weights
from dear.backbone.block import Block
from dear.errors import SettingsError
from dear.methods.base import Method
from dear.methods.optional import image_block, token_layout

# From least to most attention: dark violet to light yellow, readable in print and for color-blind people.
RAMP = np.array(
    [[25, 12, 60], [106, 28, 110], [188, 55, 84], [237, 121, 49], [252, 232, 120]], dtype=np.float32
)
OPAQUE = 0.65  # opacity of the colors over the picture


@torch.no_grad()
def attention_maps(
    method: Method, pixels: Float[Tensor, "3 size size"], layer: int, head: int
) -> dict[str, Float[Tensor, "row column"]]:
    """Attention of a head to the patches, by the attending token: "class", and the method's named tokens in
    the layers that have them (DeAR's attributes; the mean where several share a name). Layers count from 1,
    heads from 0.

    Where the embedding is pooled, "class" is the mean over the patches, which it is read from. The weights to
    all keys sum to one; the remainder goes to the class token and to learned tokens.

    Raises SettingsError for a layer or head that does not exist.
    """
    tower = method.clip.image
    for axis, number, first, last in (("layer", layer, 1, tower.depth), ("head", head, 0, tower.heads - 1)):
        if not first <= number <= last:
            raise SettingsError(f"{axis} {number} does not exist: choose from {first} to {last}.")
    with recorded(image_block(method, layer)) as passes:
        method.image_features(method.read_out(method.image_trunk(pixels[None].to(tower.projection))))
    # The first pass is that of the method; a frozen second one (for a loss, say) comes later.
    weights = passes[0][0, head].float().cpu()
    side, before, layout = tower.side, int(tower.has_class_token), token_layout(method)
    queries, keys = weights.shape
    first = keys - side**2 if layout.before_patches else before
    patches = weights[:, first : first + side**2]
    of_class = patches[0] if tower.pool is None else patches[first : first + side**2].mean(dim=0)
    maps = {"class": of_class}
    if keys > side**2 + before:
        # The last layer is computed only for the tokens that are read: the class token, then these.
        start = before + (side**2 if queries == keys and not layout.before_patches else 0)
        for name, count in layout.tokens_by_name.items():
            maps[name] = patches[start : start + count].mean(dim=0)
            start += count
    return {name: grid.unflatten(0, (side, side)) for name, grid in maps.items()}


@contextmanager
def recorded(block: Block) -> Iterator[list[Float[Tensor, "batch head query key"]]]:
    """Record a block's attention weights; outputs are unchanged up to rounding. Not thread-safe."""
    passes: list[Tensor] = []
    original = block.attend

    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        weights = attention_weights(query, key, bias)
        passes.append(weights)
        return weights @ value

    block.attend = attend
    try:
        yield passes
    finally:
        block.attend = original


def overlay(
    pixels: Float[Tensor, "3 size size"], grid: Float[Tensor, "row column"], side: int = 448
) -> Image.Image:
    """The picture with a head's attention over it; the strongest patch has the lightest color."""
    picture = Image.fromarray((pixels.permute(1, 2, 0).cpu().numpy() * 255).round().astype(np.uint8))
    level = (grid / grid.max().clamp_min(1e-12)).numpy() * (len(RAMP) - 1)
    low = np.floor(level).astype(int).clip(max=len(RAMP) - 2)
    part = (level - low)[..., None]
    colors = ((1 - part) * RAMP[low] + part * RAMP[low + 1]).round().astype(np.uint8)
    heat = Image.fromarray(colors).resize((side, side), Image.Resampling.NEAREST)
    return Image.blend(picture.resize((side, side), Image.Resampling.BICUBIC), heat, OPAQUE)
