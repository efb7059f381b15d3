"""Head contributions: CLIP's image embedding as a sum over layers and heads (Gandelsman et al., 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear.backbone.block import Block
from dear.backbone.device import Float32Norm
from dear.backbone.pool import ResidualMlp
from dear.backbone.vision import VisionTower

Convention = Literal["public", "exact"]
"""How constants are divided among the terms: as in the public code, or each with its own term."""
Norm = nn.LayerNorm | Float32Norm
NEGLIGIBLE = 1e-6
"""Singular values up to this fraction of the largest one count as rounding errors."""


@dataclass(frozen=True)
class Contributions:
    """What each head and each MLP of the selected layers adds to the image embedding, and the remainder.

    The conventions differ in the terms that belong to no head. "exact" [ours]: a term is centered by its own
    mean; an MLP keeps its biases; ``remainder`` holds the input of layer 1, the biases of the output
    projections and of the final LayerNorm, and everything the other layers add. The sum is the embedding.
    "public": the bias of an output projection is shared equally by its heads, the mean of the final residual
    and the bias of the final LayerNorm by all terms (2 x depth + 1, a layer's share again by its heads), and
    all terms are divided by the length of the embedding. The sum is the unit embedding.

    A head's contributions differ between the conventions by an amount that depends on the image, through the
    final deviation and the length, so TEXTSPAN may choose other phrases (docs/roles.md has counts).

    Source of "public": Gandelsman et al., ICLR 2024; yossigandelsman/clip_prs at e122b8a, prs_hook.py.
    """

    layers: tuple[int, ...]
    heads: Float[Tensor, "batch layer head embed"]
    mlps: Float[Tensor, "batch layer embed"]
    remainder: Float[Tensor, "batch embed"]

    def total(self) -> Float[Tensor, "batch embed"]:
        """The sum of all terms: the image embedding, in the public convention of unit length."""
        return self.heads.sum(dim=(1, 2)) + self.mlps.sum(dim=1) + self.remainder


@torch.no_grad()
def head_contributions(
    tower: VisionTower,
    images: Float[Tensor, "batch 3 height width"],
    layers: Sequence[int],
    convention: Convention = "exact",
) -> Contributions:
    """Contributions of the heads and MLPs of ``layers`` (counted from 1) to the image embedding.

    A head's contribution is the sum over its source tokens of what it writes to the class token. The final
    LayerNorm is linear once its mean and deviation are fixed to those of the full forward pass, so the terms
    add up to the embedding. LayerNorms within blocks are fixed in the same way.

    Where the embedding is pooled, it is the sum over image tokens of what the head writes to each, carried
    into the embedding by the pool with its weights fixed: 1 / tokens for a mean; for an attention pool, the
    attention weights of its heads, through their values and output projection [ours]. The pool's own MLP
    belongs to no head and is in ``remainder``. The tower then runs twice, because the weights are known last.

    Raises ValueError if ``layers`` is empty, repeats a layer or names one that does not exist.
    """
    if not layers or len(set(layers)) < len(layers) or not {*layers} <= {*range(1, tower.depth + 1)}:
        raise ValueError(f"layers must be distinct and between 1 and {tower.depth}, got {list(layers)}")
    x = tower.embed(images)
    finish = None
    if tower.pool is not None:
        last = tower.layers(x, 1, tower.depth)
        finish = EmbeddingMap(tower, last if tower.has_class_token else last[:, 1:])
    x = x if tower.has_class_token else x[:, 1:]
    rotation = tower.rotations()
    gather = _class_token if finish is None else finish.gather
    remainder = gather(x)
    heads: dict[int, Tensor] = {}
    mlps: dict[int, Tensor] = {}
    for layer in range(1, tower.depth + 1):
        block = tower.block(layer)
        by_head = block.head_outputs(x, rotation=rotation)
        attention = block.attention_update(by_head)
        mlp = block.mlp_update(x + attention)
        if layer in layers:
            frozen = FrozenBlock(block, by_head)
            outputs = gather(frozen.factor * by_head.transpose(1, 2).flatten(2))
            heads[layer] = projected_heads(block, outputs.unflatten(-1, (block.heads, -1)))
            mlps[layer] = gather(mlp)
            bias = gather(frozen.constant)
            if convention == "public":
                heads[layer] = heads[layer] + bias.unsqueeze(-2) / block.heads
            else:
                remainder = remainder + bias
        else:
            remainder = remainder + gather(attention) + gather(mlp)
        x = x + attention + mlp
    if finish is None:
        finish = EmbeddingMap(tower, x)
    head_terms = torch.stack([heads[layer] for layer in layers], dim=2)
    mlp_terms = torch.stack([mlps[layer] for layer in layers], dim=2)
    if convention == "exact":
        remainder = finish(remainder) + finish.bias + finish.mlp_update
        return Contributions(tuple(layers), finish(head_terms), finish(mlp_terms), remainder)
    term_count, embedding = 2 * tower.depth + 1, finish.embedding
    by_head = finish.with_share(head_terms, 1 / (term_count * tower.heads))
    by_mlp = finish.with_share(mlp_terms, 1 / term_count)
    length = embedding.norm(dim=-1, keepdim=True)
    by_head, by_mlp = by_head / length[..., None, None], by_mlp / length[..., None]
    remainder = embedding / length - by_head.sum(dim=(1, 2)) - by_mlp.sum(dim=1)
    return Contributions(tuple(layers), by_head, by_mlp, remainder)


@torch.no_grad()
def grouped_contributions(
    tower: VisionTower,
    tokens: Float[Tensor, "batch token width"],
    first: int,
    shares: Float[Tensor, "layer head group"],
) -> tuple[Float[Tensor, "batch embed"], Float[Tensor, "batch group embed"]]:
    """The image embedding, and for each group the sum over heads of share times contribution, in the exact
    convention. ``tokens`` are the input of layer ``first``; ``shares`` are of that layer to the last one.

    Only what heads write to the class token is tracked, in the same forward pass. Where the embedding is
    pooled, what they write to all tokens is tracked, because the pool's weights are known last.
    """
    pooled = tower.pool is not None
    x = tokens if tower.has_class_token else tokens[:, 1:]
    rotation = tower.rotations()
    outputs = []
    for layer in range(first, tower.depth + 1):
        block, query = tower.block(layer), None
        if layer == tower.depth and not pooled:  # nothing follows that reads the other tokens
            query = x[:, :1]
            at = torch.zeros(1, dtype=torch.long, device=x.device)
            rotation = None if rotation is None else rotation.select_queries(at)
        by_head = block.head_outputs(x, None, query, rotation)
        followed = by_head if pooled else by_head[:, :, :1]
        outputs.append(FrozenBlock(block, followed).factor * followed.transpose(1, 2).flatten(2))
        x = x if query is None else query
        x = x + block.attention_update(by_head)
        x = x + block.mlp_update(x)
    finish, groups = EmbeddingMap(tower, x), []
    for layer, output, share in zip(range(first, tower.depth + 1), outputs, shares, strict=True):
        block = tower.block(layer)
        gathered = finish.gather(output) if pooled else output
        written = projected_heads(block, gathered.unflatten(-1, (block.heads, -1)))
        groups.append(torch.einsum("bvhw,hg->bvgw", written, share.to(written)))
    return finish.embedding, finish(torch.stack(groups).sum(dim=0))


def _class_token(x: Float[Tensor, "batch token size"]) -> Float[Tensor, "batch 1 size"]:
    """The class token, as of a pool with a single head."""
    return x[:, :1]


def projected_heads(
    block: Block, outputs: Float[Tensor, "*any head dim"]
) -> Float[Tensor, "*any head width"]:
    """What each head adds to the residual stream, without constants: its slice of the output projection. A
    LayerNorm before or after it is applied without its deviations: ``outputs`` are already scaled by them.
    """
    weight = block.out_proj.weight
    if (inner := _norm(block.ln_inner)) is not None:
        weight = weight * inner.weight
    added = torch.einsum("...hd,whd->...hw", outputs, weight.unflatten(1, (block.heads, -1)))
    if inner is not None:
        mean = outputs.sum(dim=-1, keepdim=True) / weight.shape[1]
        added = added - mean * weight.sum(dim=1)
    return _scaled(block, added)


def _scaled(block: Block, added: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
    """The scale or LayerNorm after attention, as a linear map: without deviation and bias."""
    if (outer := _norm(block.ls_1)) is not None:
        return (added - added.mean(dim=-1, keepdim=True)) * outer.weight
    scaled: Tensor = block.ls_1(added)
    return scaled


class FrozenBlock:
    """The LayerNorms between a block's heads and its tokens, with their deviations fixed.

    Attributes:
        factor: 1 / the product of the deviations before and after the output projection; 1 without any.
        constant: What attention adds independently of the heads' outputs.
    """

    factor: Float[Tensor, "batch token 1"]
    constant: Float[Tensor, "batch token width"]

    def __init__(self, block: Block, by_head: Float[Tensor, "batch head token dim"]) -> None:
        merged = by_head.transpose(1, 2).flatten(2)
        self.factor = torch.ones_like(merged[..., :1])
        bias: Tensor = block.out_proj.bias
        if (norm := _norm(block.ln_inner)) is not None:
            self.factor = 1 / _deviation(merged, norm).unsqueeze(-1)
            bias = bias + block.out_proj.weight @ norm.bias
        constant = _scaled(block, bias).expand(*merged.shape[:2], -1)
        if (norm := _norm(block.ls_1)) is not None:
            outer = 1 / _deviation(block.out_proj(block.ln_inner(merged)), norm).unsqueeze(-1)
            self.factor, constant = self.factor * outer, constant * outer + norm.bias
        self.constant = constant


def _norm(module: nn.Module) -> Norm | None:
    return module if isinstance(module, Norm) else None


def _deviation(x: Float[Tensor, "*any width"], norm: Norm) -> Float[Tensor, "*any"]:
    return (x.var(dim=-1, unbiased=False) + norm.eps).sqrt()


@torch.no_grad()
def written_rows(
    tower: VisionTower, layer: int, convention: Convention = "exact"
) -> Float[Tensor, "head row embed"]:
    """Vectors, in float64 on the CPU, that span all that each head of a layer (from 1) can contribute.

    A head of output map W (width, dim) contributes (W z - mean) / deviation * gain @ projection for some z: a
    combination of dim vectors, the same for all images. If a pool has heads, each of them maps these vectors
    in its own way. In the public convention the head's share of the constants is included.
    """
    block = tower.block(layer)
    weight, bias = block.out_proj.weight, block.out_proj.bias
    dim = weight.shape[1] // block.heads
    terms = projected_heads(block, torch.eye(dim).to(weight).unsqueeze(1).expand(-1, block.heads, -1))
    if convention == "public":
        constants = [_scaled(block, bias), torch.ones_like(bias)]
        if (inner := _norm(block.ln_inner)) is not None:
            constants[0] = _scaled(block, bias + block.out_proj.weight @ inner.bias)
        if (outer := _norm(block.ls_1)) is not None:
            constants.append(outer.bias)
        terms = torch.cat([terms, torch.stack(constants).unsqueeze(1).expand(-1, block.heads, -1)])
    _, maps, constant = find_embedding_map(tower)
    terms = terms.cpu().double()
    if convention == "exact":
        terms = terms - terms.mean(dim=-1, keepdim=True)
    rows = torch.einsum("rhw,vwe->hvre", terms, maps.cpu().double()).flatten(1, 2)
    if convention == "public":
        rows = torch.cat([rows, constant.cpu().double().expand(block.heads, 1, -1)], dim=1)
    return rows


@torch.no_grad()
def written_subspace(tower: VisionTower, heads: Sequence[tuple[int, int]]) -> Float[Tensor, "rank embed"]:
    """Orthonormal rows, in float64, that span all that heads (layer from 1, head from 0) can contribute to
    any image, in the exact convention: the right singular vectors of ``written_rows`` whose singular value
    is above a millionth of the largest.
    """
    of_layer = {layer: written_rows(tower, layer) for layer in {layer for layer, _ in heads}}
    rows = [of_layer[layer][head] for layer, head in heads]
    _, values, right = torch.linalg.svd(torch.cat(rows), full_matrices=False)
    spanning: Tensor = right[values > NEGLIGIBLE * values[0]]
    return spanning


def find_embedding_map(
    tower: VisionTower,
) -> tuple[Norm, Float[Tensor, "pool_head width embed"], Float[Tensor, "embed"]]:
    """The last LayerNorm before the embedding, the linear map that follows it by pool head (its gain
    included), and the constant that the map adds.
    """
    pool, like = tower.pool, tower.projection
    norm = tower.ln_final if pool is None else _norm(tower.ln_final) or pool.norm
    assert isinstance(norm, Norm)
    if pool is None:
        maps, constant = torch.eye(tower.width).to(like).unsqueeze(0), like.new_zeros(tower.width)
    else:
        maps, constant = pool.maps().to(like), pool.constant().to(like)
    constant = norm.bias.to(like) @ maps.sum(dim=0) + constant
    return norm, norm.weight.to(like).unsqueeze(1) * maps @ like, tower.projected(constant, like)


class EmbeddingMap:
    """The linear map from the last layer's tokens to the image embedding: pool weights and LayerNorm
    statistics are those of ``tokens``, constants are separate.

    Attributes:
        embedding: the image embedding.
        bias: what the map adds to any tokens.
        mlp_update: what the pool's MLP adds, which is not linear; zero without one.
        mean: the weighted mean of the tokens' own means, by pool head.
    """

    def __init__(self, tower: VisionTower, tokens: Float[Tensor, "batch token width"]) -> None:
        norm, self.maps, self.bias = find_embedding_map(tower)
        pool, ln_final = tower.pool, tower.ln_final
        self.weights: Tensor | None = None  # batch pool_head token
        if pool is None:
            pooled = tokens[:, 0]
        else:
            self.weights, pooled = pool.weights(tokens), pool(tokens)
        self.scale: Tensor | None = None  # batch
        # Not `norm is ln_final`: torch.export hands out another proxy of a module each time.
        if pool is None or _norm(ln_final) is not None:
            self.scale = 1 / _deviation(pooled, norm)
        elif self.weights is not None:
            self.weights = self.weights / _deviation(tokens, norm).unsqueeze(1)
        self.embedding: Tensor = tower.finish(pooled)
        self.mlp_update = torch.zeros_like(self.embedding)
        if isinstance(ln_final, ResidualMlp):
            self.mlp_update = ln_final.update(pooled) @ tower.projection
        means = tokens.mean(dim=-1, keepdim=True)
        self.mean = means[:, :1, 0] if self.weights is None else self.gather(means)[..., 0]  # batch pool_head

    def gather(self, x: Float[Tensor, "batch token size"]) -> Float[Tensor, "batch pool_head size"]:
        """The weighted sum of the tokens in each head of the pool."""
        assert self.weights is not None
        return self.weights @ x

    def __call__(
        self, terms: Float[Tensor, "batch pool_head *any width"]
    ) -> Float[Tensor, "batch *any embed"]:
        """Gathered terms, each centered by its own mean, without the bias."""
        return self._mapped(terms - terms.mean(dim=-1, keepdim=True))

    def with_share(
        self, terms: Float[Tensor, "batch pool_head *any width"], share: float
    ) -> Float[Tensor, "batch *any embed"]:
        """Terms that each include this share of the tokens' mean and of the bias."""
        mean = self.mean.view(*self.mean.shape, *[1] * (terms.ndim - 2))
        return self._mapped(terms - share * mean) + share * self.bias

    def _mapped(
        self, terms: Float[Tensor, "batch pool_head *any width"]
    ) -> Float[Tensor, "batch *any embed"]:
        mapped = torch.einsum("bv...w,vwe->b...e", terms, self.maps)
        return mapped if self.scale is None else mapped * self.scale.view(-1, *[1] * (mapped.ndim - 1))
