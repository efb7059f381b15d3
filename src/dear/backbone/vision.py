"""The image tower: a ViT, whose token 0 is the one that the image embedding is read at."""

import copy
from dataclasses import replace
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.attention import Packed
from dear.backbone.block import Block
from dear.backbone.injection import Injection
from dear.backbone.kinds import TIMM, is_a
from dear.backbone.readout import AttentionReadOut, MeanReadOut, ReadOut, ResidualMlp
from dear.backbone.rotary import Turn, unturned
from dear.backbone.towers import Bias, Tower, plain_projection


class VisionTower(Tower):
    """The image tower. Token 0 is the class token or, in a tower without one, a place held for the pooled
    token: no layer reads or writes it, and the last one fills it (:mod:`dear.backbone.readout`). So tokens
    have the same places in every tower: 0, the patches row by row, learned tokens where they are injected.

    Attributes:
        readout: what pools the image tokens; None if the embedding is read at the class token.
        has_class_token: whether token 0 takes part in the layers.
    """

    class_embedding: Tensor | None
    positional_embedding: Tensor | None
    rotation: Tensor | None

    def __init__(self, visual: Any) -> None:
        timm = is_a(visual, TIMM)
        source = visual.trunk if timm else visual
        blocks = [Block(b) for b in (source.blocks if timm else source.transformer.resblocks)]
        read = _timm_readout(visual) if timm else _plain_readout(visual)
        ln_final, readout, projection, bias = read
        super().__init__(blocks, ln_final, projection, bias)
        self.readout: ReadOut | None = readout
        self.conv1: nn.Module = source.patch_embed if timm else source.conv1
        self.ln_pre: nn.Module = source.norm_pre if timm else source.ln_pre
        self.class_embedding = source.cls_token if timm else source.class_embedding
        self.positional_embedding = source.pos_embed if timm else source.positional_embedding
        self.has_class_token: bool = self.class_embedding is not None
        self.places_the_class_token: bool = not (timm and source.no_embed_class)
        rope = getattr(source, "rope", None)
        rotation = None if rope is None else rope.get_embed().detach().clone()
        self.register_buffer("rotation", rotation, persistent=False)
        # Not open_clip's own number for a timm tower: that of ViTamin-XL-384 is 256, which the tower refuses.
        self.image_size = int((source.patch_embed.img_size if timm else visual.image_size)[0])
        grid = source.patch_embed.grid_size if timm else source.grid_size
        self.patch_size = self.image_size // int(grid[0])

    @property
    def side(self) -> int:
        """Patches along a side of the image."""
        return self.image_size // self.patch_size

    def late(self, first: int) -> Self:
        """As of any tower, with what pools copied too; the rotation is shared."""
        made = super().late(first)
        made.readout = copy.deepcopy(self.readout)
        made.register_buffer("rotation", self.rotation, persistent=False)
        return made.requires_grad_(True)

    def embed(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch token width"]:
        """Patch, class and position embeddings after ``ln_pre``: the input of layer 1."""
        x = self.conv1(images)
        if x.ndim == 4:
            x = x.flatten(2).transpose(1, 2)
        places = None if self.positional_embedding is None else self.positional_embedding.to(x.dtype)
        if places is not None and not (self.has_class_token and self.places_the_class_token):
            x = x + places
        if self.has_class_token:
            assert self.class_embedding is not None
            x = torch.cat([self.class_embedding.to(x.dtype).expand(x.shape[0], 1, -1), x], dim=1)
            if places is not None and self.places_the_class_token:
                x = x + places
        normed: Tensor = self.ln_pre(x)
        return normed if self.has_class_token else _with_place(normed)

    def trunk(
        self, images: Float[Tensor, "batch 3 height width"], first: int
    ) -> Float[Tensor, "batch token width"]:
        """The input of layer ``first``: embeddings, then layers 1 to ``first`` - 1."""
        return self.layers(self.embed(images), 1, first - 1)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
        """CLIP's image embedding, not normalised."""
        x = self.trunk(images, self.depth)
        return self.finish(
            self.span(x, self.depth, read=torch.zeros(1, dtype=torch.long, device=x.device))[:, 0]
        )

    def layers(
        self, x: Float[Tensor, "batch token width"], first: int, last: int, bias: Tensor | None = None
    ) -> Float[Tensor, "batch token width"]:
        """Layers ``first`` to ``last`` (counted from 1, inclusive)."""
        if self.has_class_token:
            return super().layers(x, first, last, bias)
        return _with_place(super().layers(x[:, 1:], first, last, _without_place(bias)))  # type: ignore[arg-type]

    def turn(self, inject: Injection | None = None) -> Turn | None:
        """The rotation of queries and keys: the patches have places; the class token and learned tokens have
        none and are not rotated.
        """
        if self.rotation is None:
            return None
        table = self.rotation
        if self.has_class_token:
            table = torch.cat([unturned(1, table), table])
        if inject is not None:
            table = inject.put(table[None], unturned(inject.added, table)[None])[0]
        return Turn(table, table)

    def span(
        self,
        x: Float[Tensor, "batch token width"],
        first: int,
        *,
        bias: Bias = None,
        inject: Injection | None = None,
        read: Int[Tensor, "*batch read"] | None = None,
    ) -> Float[Tensor, "batch read width"]:
        """As of any tower; where the embedding is pooled, token 0 of the result is the pooled token and any
        other one is pooled alone. ``read`` is then the same for the whole batch.
        """
        if self.readout is None or first > self.depth:
            return super().span(x, first, bias=bias, inject=inject, read=read)
        image = x.shape[1]
        if not self.has_class_token:
            x, bias = x[:, 1:], _without_place(bias)
            image -= 1
            if inject is not None and inject.at is not None:
                inject = replace(inject, at=inject.at - 1)
        out = super().span(x, first, bias=bias, inject=inject)
        at = image if inject is None or inject.at is None else inject.at
        added = 0 if inject is None else inject.added
        of_image = torch.cat([out[:, :at], out[:, at + added : image + added]], dim=1) if added else out
        pooled = self.readout(of_image).unsqueeze(1)
        if not self.has_class_token:
            out = _with_place(out)
        if read is None:
            return torch.cat([pooled, self.readout.alone(out[:, 1:])], dim=1)
        return torch.where((read == 0).view(1, -1, 1), pooled, self.readout.alone(out[:, read]))


def _with_place(x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch longer width"]:
    """The tokens after a place for the pooled one."""
    return torch.cat([x.new_zeros(x.shape[0], 1, x.shape[2]), x], dim=1)


def _without_place(bias: Bias) -> Bias:
    """Biases without the row and the column of the place."""
    if isinstance(bias, list):
        return [one[..., 1:, 1:] for one in bias]
    assert not isinstance(bias, Packed), "only prompts are packed"
    return None if bias is None else bias[..., 1:, 1:]


End = tuple[nn.Module, ReadOut | None, nn.Parameter, Tensor | None]


def _plain_readout(visual: Any) -> End:
    """Final LayerNorm, pooling and projection of open_clip's own ViT."""
    none, width = nn.Identity(), visual.ln_post.weight.shape[0]
    if visual.pool_type == "tok":
        return visual.ln_post, None, visual.proj, None
    if visual.final_ln_after_pool:
        return visual.ln_post, MeanReadOut(none, 1, width), visual.proj, None
    return none, MeanReadOut(visual.ln_post, 1, width), visual.proj, None


def _timm_readout(visual: Any) -> End:
    """The same of timm's ViTs; the projection is the classifier, or open_clip's own after it."""
    trunk = visual.trunk
    head = visual.head.proj if len(visual.head) else trunk.head
    norm = trunk.norm if isinstance(trunk.norm, nn.LayerNorm) else trunk.fc_norm
    projection, bias = plain_projection(head, norm)
    width = norm.weight.shape[0]
    skip = 0 if getattr(trunk, "pool_include_prefix", False) else trunk.num_prefix_tokens
    if trunk.attn_pool is not None:
        pool = trunk.attn_pool
        if hasattr(trunk, "rope"):  # timm's Eva pools all tokens, its VisionTransformer the patches
            skip = 0
        pooling = AttentionReadOut(trunk.norm, skip, width, pool)
        return ResidualMlp(pool.norm, pool.mlp), pooling, projection, bias
    if trunk.global_pool == "token":
        return trunk.norm if norm is trunk.norm else trunk.fc_norm, None, projection, bias
    return trunk.fc_norm, MeanReadOut(trunk.norm, skip, width), projection, bias
