"""DeAR the obvious way: open_clip's own modules, two full passes of each tower, padded text, einsum
attention.

Written from the paper's equations as we read them, independently of the package: no trunk, no text cut,
no short last layer, no fused kernel.
"""

import math
from typing import Any

import torch
from open_clip.model import CLIP
from torch import Tensor

MINUS_INFINITY = float("-inf")


def attention(block: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Multi-head attention of an open_clip block; ``mask`` is (head, query, key)."""
    mha = block.attn
    batch, tokens, width = x.shape
    heads = mha.num_heads
    q, k, v = (x @ mha.in_proj_weight.T + mha.in_proj_bias).chunk(3, dim=-1)
    q, k, v = (y.reshape(batch, tokens, heads, width // heads) for y in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads) + mask
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v).reshape(batch, tokens, width)
    return out @ mha.out_proj.weight.T + mha.out_proj.bias


def layer(block: Any, x: Tensor, mask: Tensor) -> Tensor:
    x = x + attention(block, block.ln_1(x), mask)
    return x + block.mlp(block.ln_2(x))


def blocked(
    role: str, attribute: str | None, attributes: list[str], original: int, each: int, form: str
) -> Tensor:
    """Eq. 7 to 9, and supplement B if the form is "exclusive", by a loop over the entries."""
    tokens = original + each * len(attributes)
    mask = torch.zeros(tokens, tokens, dtype=torch.float64)
    for q in range(tokens):
        for k in range(tokens):
            owner = attributes[(k - original) // each] if k >= original else None
            reader = attributes[(q - original) // each] if q >= original else None
            if role in ("generalization", "other-specialized"):
                if (q >= original) != (k >= original):
                    mask[q, k] = MINUS_INFINITY
            elif role == "core" and form == "exclusive" and reader is not None and reader != attribute:
                if owner != reader:
                    mask[q, k] = MINUS_INFINITY
            elif role == "core" and owner is not None and owner != attribute:
                mask[q, k] = MINUS_INFINITY
    return mask


def image_tokens(model: CLIP, images: Tensor) -> Tensor:
    visual = model.visual
    x = visual.conv1(images).flatten(2).transpose(1, 2)
    cls = visual.class_embedding.expand(len(x), 1, -1)
    return visual.ln_pre(torch.cat([cls, x], dim=1) + visual.positional_embedding)


def frozen_image(model: CLIP, images: Tensor) -> Tensor:
    x = image_tokens(model, images)
    for block in model.visual.transformer.resblocks:
        x = layer(block, x, torch.zeros(1, x.shape[1], x.shape[1], dtype=x.dtype))
    return model.visual.ln_post(x[:, 0]) @ model.visual.proj


def adapted_image(
    model: CLIP, images: Tensor, raw: Tensor, projection: Tensor, masks: dict[int, Tensor], first: int,
    beta: float, each: int,
) -> list[Tensor]:  # fmt: skip
    """[f_cls, f_a for each attribute]; ``masks`` holds (head, query, key) by layer, counted from 1."""
    x = image_tokens(model, images)
    original = x.shape[1]
    for number, block in enumerate(model.visual.transformer.resblocks, start=1):
        if number < first:
            mask = torch.zeros(1, original, original, dtype=x.dtype)
        else:
            learned = raw.expand(len(x), -1, -1)
            if number > first:
                learned = beta * learned + (1 - beta) * x[:, original:]
            x = torch.cat([x[:, :original], learned], dim=1)
            mask = masks[number].to(x.dtype)
        x = layer(block, x, mask)
    out = [model.visual.ln_post(x[:, 0]) @ model.visual.proj]
    for start in range(original, x.shape[1], each):
        out.append(model.visual.ln_post(x[:, start : start + each].mean(dim=1)) @ projection)
    return out


def text(model: CLIP, ids: Tensor, raw: Tensor | None, first: int, beta: float) -> Tensor:
    """Text features of prompts padded to the context length; ``raw`` are the learned tokens after the
    start token, if any.
    """
    x = model.token_embedding(ids) + model.positional_embedding
    end = ids.argmax(dim=-1)
    extra = 0 if raw is None else len(raw)
    for number, block in enumerate(model.transformer.resblocks, start=1):
        if raw is not None and number >= first:
            learned = raw.expand(len(x), -1, -1)
            if number == first:
                x = torch.cat([x[:, :1], learned, x[:, 1:]], dim=1)
            else:
                learned = beta * learned + (1 - beta) * x[:, 1 : 1 + extra]
                x = torch.cat([x[:, :1], learned, x[:, 1 + extra :]], dim=1)
        tokens = x.shape[1]
        causal = torch.full((tokens, tokens), MINUS_INFINITY, dtype=x.dtype).triu(1)
        x = layer(block, x, causal[None])
    x = model.ln_final(x[torch.arange(len(x)), end + extra])
    return x @ model.text_projection


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def loss(
    model: CLIP, images: Tensor, ids: Tensor, labels: Tensor, parameters: dict[str, Tensor], masks:
        dict[int, Tensor],
    *, image_first: int, text_first: int, beta: float, each: int, lambda_reg: float, lambda_fusion: float,
) -> Tensor:  # fmt: skip
    """Eq. 12 to 19, with L_fusion = 1 - alpha_cls."""
    raw, projection = parameters["attribute_tokens"], parameters["projection"]
    features = adapted_image(model, images, raw, projection, masks, image_first, beta, each)
    features = [unit(f) for f in features]
    words = unit(text(model, ids, parameters["text_tokens"], text_first, beta))
    with torch.no_grad():
        frozen_f, frozen_t = unit(frozen_image(model, images)), unit(text(model, ids, None, text_first, beta))
    alpha = parameters["fusion"].exp() / parameters["fusion"].exp().sum()
    logits = sum(a * model.logit_scale.exp() * f @ words.T for a, f in zip(alpha, features, strict=True))
    assert isinstance(logits, Tensor)
    log_p = logits - logits.logsumexp(dim=1, keepdim=True)
    ce = -log_p[torch.arange(len(labels)), labels].mean()
    reg = (1 - (features[0] * frozen_f).sum(dim=1)).mean() + (1 - (words * frozen_t).sum(dim=1)).mean()
    return ce + lambda_reg * reg + lambda_fusion * (1 - alpha[0])
