"""Towers that give features only: frozen networks of open_clip or timm, computed as they are, without layers.

They serve models that a `VisionTower` or `TextTower` does not reproduce: ResNets, ConvNeXt, FastViT, CoCa.
Such a tower has a single block, which is `Opaque`: its output is the embedding, as the only token. A span
begins past it, at layer 2, where the trunk is the embedding itself. So methods that change no layer of a
tower work on it as they are.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.change import UNCHANGED, Change
from dear.backbone.names import Access
from dear.backbone.openclip import TIMM_MODEL_CLASS, is_instance
from dear.backbone.text import MAX_HIDDEN_VALUES, MAX_STORED_VALUES, TextTower, TextTrunk
from dear.backbone.towers import Opaque, SpanBias, Tower
from dear.backbone.vision import MAX_IMAGES, VisionTower, exact_convolutions

IMAGES_ON_CPU = 16


class FeaturesOnly(Tower):
    """The base of both: embeddings are in the joint space already, so the projection is the identity."""

    access: ClassVar[Access] = "features"

    def __init__(self, network: nn.Module, title: str, embed_dim: int) -> None:
        like = next(network.parameters())
        identity = nn.Parameter(torch.eye(embed_dim).to(like), requires_grad=False)
        Tower.__init__(self, [Opaque(network, title, embed_dim)], nn.Identity(), identity)

    def projected(
        self, x: Float[Tensor, "*any embed"], projection: Float[Tensor, "embed embed"]
    ) -> Float[Tensor, "*any embed"]:
        """The embedding as it is; another projection than the tower's is applied."""
        if projection is self.projection:
            return x.to(projection.dtype)
        return super().projected(x, projection)


class FeaturesOnlyVisionTower(FeaturesOnly, VisionTower):
    """An image tower that gives features only, in the type of its weights: float32 under every precision."""

    def __init__(self, visual: Any, embed_dim: int) -> None:
        super().__init__(visual, f"image tower ({image_kind(visual)})", embed_dim)
        self.image_size = self.patch_size = image_side(visual)
        self.pool, self.has_class_token, self.rotation = None, True, None

    @property
    def images_at_once(self) -> int:
        """How many images to compute together without gradients: few on a CPU, because the first layers of a
        convolutional tower have many values.
        """
        return IMAGES_ON_CPU if self.projection.device.type == "cpu" else MAX_IMAGES

    def embed(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch 3 height width"]:
        """The pixels themselves: the input of its only layer."""
        return images

    def layers(self, x: Tensor, first: int, last: int, bias: Tensor | None = None) -> Tensor:
        """Layers ``first`` to ``last``: the only one, or none."""
        del bias
        if not first <= 1 <= last:
            return x
        with exact_convolutions(x.device):
            tokens: Tensor = self.blocks[0](x.to(next(self.blocks.parameters()).dtype))
        return tokens.to(self.projection.dtype)

    def span(
        self,
        x: Tensor,
        first: int,
        change: Change = UNCHANGED,
        *,
        bias: SpanBias = None,
        read: Int[Tensor, "*batch read"] | None = None,
    ) -> Float[Tensor, "batch read embed"]:
        """The embedding as token 0. Raises WeightsError for a change of the only layer."""
        if first > self.depth:
            return super().span(x, first, change, bias=bias, read=read)
        if change is not UNCHANGED:
            self.block(first)
        return self.layers(x, first, self.depth)


class FeaturesOnlyTextTower(FeaturesOnly, TextTower):
    """A text tower that gives features only. The trunk past its only layer has each text's embedding as the
    token that is read.
    """

    def __init__(self, source: Any, title: str = "") -> None:
        has_class = getattr(source, "cls_emb", None) is not None
        title = title or f"text tower ({'CoCa' if has_class else 'open_clip'}'s {type(source).__name__})"
        super().__init__(source, title, int(source.output_dim))
        self.context_length = int(source.context_length)
        self.pool, self.end_id, self.causal = "argmax", int(source.eos_id), False

    def trunk(
        self, ids: Int[Tensor, "class token"], first: int, most_stored: int = MAX_STORED_VALUES
    ) -> TextTrunk:
        """The embeddings. Raises WeightsError for a span that does not begin past the tower."""
        del most_stored
        if first <= self.depth:
            self.block(first)
        embeddings = [self.blocks[0](part) for part in ids.split(self.prompts_at_once(1 + ids.shape[1]))]
        tokens = torch.cat(embeddings).to(self.projection.dtype)
        return TextTrunk(tokens, tokens.new_zeros(len(ids), dtype=torch.long), 0, False)

    def prompts_at_once(self, tokens: int) -> int:
        """How many prompts to compute together: their hidden values fit into 512 MiB, and their masks into
        128 MiB. open_clip makes a mask for each head of each prompt, and copies it.
        """
        heads = max(getattr(part, "num_heads", 1) for part in self.blocks.modules())
        return max(1, MAX_HIDDEN_VALUES // (tokens * max(self.widest, 4 * heads * tokens)))

    def forward(self, ids: Int[Tensor, "class token"]) -> Float[Tensor, "class embed"]:
        past = self.depth + 1
        return self.features(self.trunk(ids, past), past)


def image_kind(visual: Any) -> str:
    """The class of an image tower, as a message names it."""
    if is_instance(visual, TIMM_MODEL_CLASS):
        return f"timm's {type(visual.trunk).__name__}"
    is_pooled = getattr(visual, "attn_pool", None) is not None
    return f"CoCa's {type(visual).__name__}" if is_pooled else type(visual).__name__


def image_sides(visual: Any) -> tuple[int, int]:
    """Height and width of the images that an image tower takes, in pixels."""
    size = getattr(getattr(getattr(visual, "trunk", None), "patch_embed", None), "img_size", None)
    size = visual.image_size if size is None else size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def image_side(visual: Any) -> int:
    return image_sides(visual)[0]
