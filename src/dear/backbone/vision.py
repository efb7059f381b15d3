"""The image tower: a ViT whose image embedding is read at token 0."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.attention import PackedSequences, Rotation, no_rotation
from dear.backbone.block import Block
from dear.backbone.change import UNCHANGED, Change
from dear.backbone.names import Access
from dear.backbone.openclip import TIMM_MODEL_CLASS, is_instance
from dear.backbone.pool import AttentionPool, MeanPool, Pool, ResidualMlp
from dear.backbone.towers import SpanBias, Tower, as_matrix

MAX_IMAGES = 250
"""Images that are computed together without gradients, at most."""
KEPT_BYTES = 2**25
"""The largest block that glibc's allocator keeps when it is freed."""


class VisionTower(Tower):
    """The image tower. Token 0 is the class token or, in a tower without one, a placeholder for the pooled
    token: no layer reads or writes it, and the last one fills it (:mod:`dear.backbone.pool`). So tokens
    have the same positions in every tower: 0, the patches row by row, learned tokens where injected.

    Attributes:
        pool: what pools the image tokens; None if the embedding is read at the class token.
        has_class_token: True if token 0 takes part in the layers.
        class_token_has_position: True if a position embedding is added to the class token.
    """

    access: ClassVar[Access] = "heads"
    EMBEDDINGS = ("conv1", "ln_pre", "class_embedding", "positional_embedding")
    class_embedding: Tensor | None
    positional_embedding: Tensor | None
    rotation: Tensor | None

    def __init__(self, visual: Any) -> None:
        timm = is_instance(visual, TIMM_MODEL_CLASS)
        source = visual.trunk if timm else visual
        blocks = [Block(block) for block in (source.blocks if timm else source.transformer.resblocks)]
        ln_final, pool, projection, bias = _timm_end(visual) if timm else _open_clip_end(visual)
        super().__init__(blocks, ln_final, projection, bias)
        self.pool: Pool | None = pool
        self.conv1: nn.Module = source.patch_embed if timm else source.conv1
        self.ln_pre: nn.Module = source.norm_pre if timm else source.ln_pre
        self.class_embedding = source.cls_token if timm else source.class_embedding
        self.positional_embedding = source.pos_embed if timm else source.positional_embedding
        self.has_class_token: bool = self.class_embedding is not None
        self.class_token_has_position: bool = not (timm and source.no_embed_class)
        rope = getattr(source, "rope", None)
        rotation = None if rope is None else rope.get_embed().detach().clone()
        self.register_buffer("rotation", rotation, persistent=False)
        # Of a timm tower, not open_clip's number: that of ViTamin-XL-384 is 256, which the tower refuses.
        self.image_size = int((source.patch_embed.img_size if timm else visual.image_size)[0])
        grid = source.patch_embed.grid_size if timm else source.grid_size
        self.patch_size = self.image_size // int(grid[0])

    @property
    def side(self) -> int:
        """Patches along a side of the image."""
        return self.image_size // self.patch_size

    @property
    def images_at_once(self) -> int:
        """How many images to compute together without gradients: 250, or on a CPU as many as keep the hidden
        values of a layer's MLP within 32 MiB. For larger tensors the C library asks the system each time.
        """
        if self.projection.device.type != "cpu":
            return MAX_IMAGES
        # An MLP of up to nine times the tokens' width counts as four times as wide: its true width would give
        # another batch size, and so other last digits than in recorded results.
        hidden = self.widest if self.widest > 9 * self.width else 4 * self.width
        values = hidden * (1 + self.side**2)
        return min(MAX_IMAGES, max(1, KEPT_BYTES // (4 * values)))

    def embed(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch token width"]:
        """Patch, class and position embeddings after ``ln_pre``: the input of layer 1."""
        with exact_convolutions(images.device):
            x = self.conv1(images)
        if x.ndim == 4:
            x = x.flatten(2).transpose(1, 2)
        positions = None if self.positional_embedding is None else self.positional_embedding.to(x.dtype)
        if positions is not None and not (self.has_class_token and self.class_token_has_position):
            x = x + positions
        if self.has_class_token:
            assert self.class_embedding is not None
            x = torch.cat([self.class_embedding.to(x.dtype).expand(x.shape[0], 1, -1), x], dim=1)
            if positions is not None and self.class_token_has_position:
                x = x + positions
        normed: Tensor = self.ln_pre(x)
        return normed if self.has_class_token else _with_placeholder(normed)

    def trunk(
        self, images: Float[Tensor, "batch 3 height width"], first: int
    ) -> Float[Tensor, "batch token width"]:
        """The input of layer ``first``: embeddings, then layers 1 to ``first`` - 1. Past the last layer it is
        what a span leaves: where the embedding is pooled, token 0 is the pooled one.
        """
        if first <= self.depth or self.pool is None:
            return self.layers(self.embed(images), 1, first - 1)
        return self.span(self.layers(self.embed(images), 1, self.depth - 1), self.depth)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch embed"]:
        """CLIP's image embedding, not normalized."""
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
        return _with_placeholder(super().layers(x[:, 1:], first, last, _without_placeholder(bias)))  # type: ignore[arg-type]

    def rotations(self, change: Change = UNCHANGED) -> Rotation | None:
        """The rotation of queries and keys. The class token and added tokens are not rotated."""
        if self.rotation is None:
            return None
        table = self.rotation
        if self.has_class_token:
            table = torch.cat([no_rotation(1, table), table])
        table = change.put(table[None], no_rotation(change.added, table)[None])[0]
        return Rotation(table, table)

    def span(
        self,
        x: Float[Tensor, "batch token width"],
        first: int,
        change: Change = UNCHANGED,
        *,
        bias: SpanBias = None,
        read: Int[Tensor, "*batch read"] | None = None,
    ) -> Float[Tensor, "batch read width"]:
        """As in any tower. Where the embedding is pooled, token 0 of the result is the pooled token, and any
        other token is pooled alone. ``read`` is then the same for the whole batch.
        """
        if self.pool is None or first > self.depth:
            return super().span(x, first, change, bias=bias, read=read)
        if not self.has_class_token:
            x, bias, change = x[:, 1:], _without_placeholder(bias), change.shifted(-1)
        out = super().span(x, first, change, bias=bias)
        pooled = self.pool(change.remove(out)).unsqueeze(1)
        if not self.has_class_token:
            out = _with_placeholder(out)
        if read is None:
            return torch.cat([pooled, self.pool.alone(out[:, 1:])], dim=1)
        return torch.where((read == 0).view(1, -1, 1), pooled, self.pool.alone(out[:, read]))


_SETTING_LOCK = threading.RLock()


@contextmanager
def exact_convolutions(device: torch.device) -> Iterator[None]:
    """A context in which a GPU computes float32 convolutions in float32: by default cuDNN rounds factors to
    10 bits (TF32). Convolutions in other dtypes are not affected.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn  # torch has the first of these settings from 2.9 on
    setting, name, exact = (
        (cudnn.conv, "fp32_precision", "ieee") if hasattr(cudnn, "conv") else (cudnn, "allow_tf32", False)
    )
    with _SETTING_LOCK:  # the setting is process-wide: no other thread may restore it meanwhile
        before = getattr(setting, name)
        setattr(setting, name, exact)
        try:
            yield
        finally:
            setattr(setting, name, before)


def _with_placeholder(x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch longer width"]:
    """The tokens, preceded by a placeholder for the pooled one."""
    return torch.cat([x.new_zeros(x.shape[0], 1, x.shape[2]), x], dim=1)


def _without_placeholder(bias: SpanBias) -> SpanBias:
    """Biases without the row and the column of the placeholder."""
    if isinstance(bias, list):
        return [layer_bias[..., 1:, 1:] for layer_bias in bias]
    assert not isinstance(bias, PackedSequences), "only prompts are packed"
    return None if bias is None else bias[..., 1:, 1:]


EndParts = tuple[nn.Module, Pool | None, nn.Parameter, Tensor | None]
"""Final LayerNorm, pooling, projection and its bias."""


def _open_clip_end(visual: Any) -> EndParts:
    """The parts of open_clip's own ViT."""
    identity, width = nn.Identity(), visual.ln_post.weight.shape[0]
    if visual.pool_type == "tok":
        return visual.ln_post, None, visual.proj, None
    if visual.final_ln_after_pool:
        return visual.ln_post, MeanPool(identity, 1, width), visual.proj, None
    return identity, MeanPool(visual.ln_post, 1, width), visual.proj, None


def _timm_end(visual: Any) -> EndParts:
    """The parts of timm's ViTs. The projection is timm's classifier, or open_clip's own after it."""
    trunk = visual.trunk
    head = visual.head.proj if len(visual.head) else trunk.head
    norm = trunk.norm if isinstance(trunk.norm, nn.LayerNorm) else trunk.fc_norm
    projection, bias = as_matrix(head, norm)
    width = norm.weight.shape[0]
    skip = 0 if getattr(trunk, "pool_include_prefix", False) else trunk.num_prefix_tokens
    if trunk.attn_pool is not None:
        source = trunk.attn_pool
        if hasattr(trunk, "rope"):  # timm's Eva pools all tokens, its VisionTransformer the patches
            skip = 0
        pool = AttentionPool(trunk.norm, skip, width, source)
        return ResidualMlp(source.norm, source.mlp), pool, projection, bias
    if trunk.global_pool == "token":
        return norm, None, projection, bias
    return trunk.fc_norm, MeanPool(trunk.norm, skip, width), projection, bias
