"""Forms of attention with a mask: python benchmarks/attention.py [--device cuda] [--bf16]

Forward and backward, at the sizes of ViT-B/16 with five learned tokens in a batch of 16 (a role mask, one
per head) and of prompts (a causal mask): torch's fused attention without a mask, with it (four dimensions),
and with it in three dimensions, which no fused kernel accepts; heads grouped by role, so that none needs a
mask; written out; and the fused form on tokens padded to a multiple of eight, which GPU kernels prefer. The
forms are timed in turn in one process.
"""

from collections.abc import Callable

import torch
from measure import in_turn, machine, medians, parsed, parser, show
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from dear.backbone.attention import attend_written_out, causal_bias

PATCHES, ATTRIBUTES, HEADS, DIM = 197, 5, 12, 64
PROMPTS = ((50, 15), (235, 14), (500, 23))
TEXT_HEADS = 8
# The sizes of a layer's groups of heads, in order: three isolated, one or two of each attribute, two mixed.
CORE = (2, 1, 1, 2, 1)
ISOLATED = 3


def role_mask() -> Tensor:
    """The mask of one layer: isolated heads, core heads attribute by attribute, mixed heads."""
    tokens = PATCHES + ATTRIBUTES
    mask = torch.zeros(HEADS, tokens, tokens)
    mask[:ISOLATED, :PATCHES, PATCHES:] = mask[:ISOLATED, PATCHES:, :PATCHES] = float("-inf")
    head = ISOLATED
    for attribute, count in enumerate(CORE):
        mask[head : head + count, :, PATCHES:] = float("-inf")
        mask[head : head + count, :, PATCHES + attribute] = 0
        head += count
    return mask


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same without a mask: each group of heads takes the keys that it may see."""
    plain, learned = slice(0, PATCHES), slice(PATCHES, None)
    parts = []
    heads = slice(0, ISOLATED)
    sides = [
        scaled_dot_product_attention(*(x[:, heads, side] for x in (q, k, v))) for side in (plain, learned)
    ]
    parts.append(torch.cat(sides, dim=2))
    head = ISOLATED
    for attribute, count in enumerate(CORE):
        heads, at = slice(head, head + count), PATCHES + attribute
        keys, values = (torch.cat([x[:, heads, plain], x[:, heads, at : at + 1]], dim=2) for x in (k, v))
        parts.append(scaled_dot_product_attention(q[:, heads], keys, values))
        head += count
    parts.append(scaled_dot_product_attention(*(x[:, head:] for x in (q, k, v))))
    return torch.cat(parts, dim=1)


def padded(mask: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The fused form with keys and queries padded to a multiple of eight, blocked by the mask."""
    tokens = mask.shape[-1]
    more = -tokens % 8
    wide = pad(pad(mask, (0, more), value=float("-inf")), (0, 0, 0, more))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (pad(x, (0, 0, 0, more)) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, attn_mask=wide)[:, :, :tokens]

    return attend


def forms(mask: Tensor) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    four = mask[None] if mask.ndim == 3 else mask[None, None]
    found = {
        "fused, no mask": scaled_dot_product_attention,
        "fused": lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=four),
        "fused, padded": padded(four),
        "written out": lambda q, k, v: attend_written_out(q, k, v, mask),
    }
    if mask.ndim == 3:
        found["three dimensions"] = lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)
        found["grouped by role"] = grouped
    return found


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--bf16", action="store_true")
    options = parsed(made)
    kind = torch.bfloat16 if options.bf16 else torch.float32
    batch, prompts = (2, PROMPTS[:1]) if options.tiny else (16, PROMPTS)
    sizes = [(batch, HEADS, PATCHES + ATTRIBUTES, role_mask())]
    sizes += [(rows, TEXT_HEADS, length, causal_bias(length, torch.empty(0))) for rows, length in prompts]
    rows = []
    for number, heads, tokens, mask in sizes:
        generator = torch.Generator().manual_seed(0)
        given = [torch.randn(number, heads, tokens, DIM, generator=generator) for _ in range(3)]
        given = [x.to(options.device, kind).requires_grad_() for x in given]
        work, gaps, exact = {}, {}, None
        for name, form in forms(mask.to(options.device, kind)).items():
            work[name] = lambda form=form, given=given: form(*given).sum().backward()
            out = form(*given).detach().float()
            exact = out if name == "fused" else exact
            gaps[name] = None if exact is None else float((out - exact).abs().max())
            work[name]()
        seconds = medians(in_turn(work, 3 * options.repeats, options.device))
        for name in work:
            row = {"sequences": number, "heads": heads, "tokens": tokens, "form": name}
            row |= {"ms": 1000 * seconds[name], "by fused": seconds[name] / seconds["fused"]}
            rows.append(row | {"gap to fused": gaps[name]})
    facts = {"tiny": options.tiny, "repeats": options.repeats, "precision": str(kind).split(".")[-1]}
    show({"benchmark": "attention", "machine": machine(), "settings": facts, "rows": rows}, options)


if __name__ == "__main__":
    main()
