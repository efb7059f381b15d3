"""bfloat16 on a CPU: which parts of a tower get faster or slower, and the whole tower in several forms.

    python benchmarks/precision.py --batch 16

First the parts of a ViT-B/16 layer on random tensors, float32 against bfloat16. Then the image tower: float32
with the fused and with the written-out attention; autocast, as with --train.precision bf16-mixed; and all
tensors in bfloat16 with either attention, and with LayerNorms and the residual stream in float32. Last,
open_clip's own tower under autocast, with frozen weights. Cosine is the mean cosine between the features and
those in float32. Everything is timed in turn in one process.
"""

import copy
from collections.abc import Callable
from functools import partial

import torch
from measure import in_turn, machine, medians, network, parsed, parser, show
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention

from dear.backbone.attention import attend_written_out
from dear.backbone.clip import Clip

HALF = torch.bfloat16


class WideNorm(nn.Module):
    """A LayerNorm in float32 between layers in another type."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm.float()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.float()).to(HALF)


class WideSum(nn.Module):
    """A sublayer's output in float32, to keep the residual stream in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def parts(batch: int, tokens: int, width: int, heads: int) -> dict[str, dict[torch.dtype, object]]:
    """The parts of a layer by name, in each type."""
    found: dict[str, dict[torch.dtype, object]] = {}
    for kind in (torch.float32, HALF):
        x = torch.randn(batch, tokens, width).to(kind)
        wide, weight, back = (
            torch.randn(*shape).to(kind)
            for shape in ((batch, tokens, 4 * width), (4 * width, width), (width, 4 * width))
        )
        query = torch.randn(batch, heads, tokens, width // heads).to(kind)
        gain = torch.ones(width).to(kind)
        work = {
            "linear up": lambda x=x, weight=weight: linear(x, weight),
            "linear down": lambda wide=wide, back=back: linear(wide, back),
            "cast of a weight": lambda weight=weight, kind=kind: weight.to(
                torch.float32 if kind is HALF else HALF
            ),
            "fused attention": lambda q=query: scaled_dot_product_attention(q, q, q),
            "written-out attention": lambda q=query: attend_written_out(q, q, q),
            "LayerNorm": lambda x=x, gain=gain, width=width: layer_norm(x, (width,), gain, gain),
            "GELU": lambda wide=wide: gelu(wide),
            "sum": lambda x=x: x + x,
        }
        for name, one in work.items():
            found.setdefault(name, {})[kind] = one
    return found


def half(clip: Clip, *, einsum: bool = False, wide: bool = False) -> Clip:
    """A copy of the image tower in bfloat16."""
    made = copy.deepcopy(clip).to(HALF)
    for block in made.image.blocks:
        if einsum:
            block.attend = attend_written_out
        if wide:
            block.ln_1, block.ln_2 = WideNorm(block.ln_1), WideNorm(block.ln_2)
            block.ls_1, block.ls_2 = WideSum(), WideSum()
    if wide:
        made.image.ln_pre.float()
        made.image.ln_final = WideNorm(made.image.ln_final)
        made.image.embed = _wide_embed(made)  # type: ignore[method-assign]
    return made


def _wide_embed(clip: Clip) -> Callable[[Tensor], Tensor]:
    tower = clip.image

    def embed(images: Tensor) -> Tensor:
        patches = tower.conv1(images).flatten(2).transpose(1, 2)
        token = tower.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        x = torch.cat([token, patches], dim=1) + tower.positional_embedding
        return tower.ln_pre(x.float())

    return embed


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--batch", type=int, default=16)
    options = parsed(made)
    usual, clip = network(options)
    tower = clip.image
    pixels = torch.rand(options.batch, 3, clip.image_size, clip.image_size)
    tokens = (clip.image_size // tower.patch_size) ** 2 + 1
    rows = []
    with torch.inference_mode():
        for name, kinds in parts(options.batch, tokens, tower.width, tower.heads).items():
            work = {"float32": kinds[torch.float32], "bfloat16": kinds[HALF]}
            for one in work.values():
                one()  # type: ignore[operator]
            median = medians(in_turn(work, 3 * options.repeats))  # type: ignore[arg-type]
            rows.append({"what": name} | _compared(median["float32"], median["bfloat16"], None))
        written = copy.deepcopy(clip)
        for block in written.image.blocks:
            block.attend = attend_written_out
        forms = {"float32, written-out attention": written}
        forms |= {"bfloat16": half(clip), "bfloat16, written-out attention": half(clip, einsum=True)}
        forms |= {"bfloat16, float32 norms and sums": half(clip, wide=True)}
        forms |= {
            "bfloat16, float32 norms and sums, written-out attention": half(clip, einsum=True, wide=True)
        }

        def autocast() -> Tensor:
            with torch.autocast("cpu", HALF):
                return clip.image(pixels)

        def usual_autocast(inference: bool) -> Tensor:
            with torch.inference_mode(inference), torch.no_grad(), torch.autocast("cpu", HALF):
                features: Tensor = usual.encode_image(pixels)
                return features.float()

        def of(form: Clip) -> object:
            kind = form.image.conv1.weight.dtype
            return lambda: form.image(pixels.to(kind))

        work = {"float32": of(clip), "autocast": autocast, **{name: of(form) for name, form in forms.items()}}
        work |= {
            f"open_clip, autocast, {name}": partial(usual_autocast, inference)
            for name, inference in (("no_grad", False), ("inference_mode", True))
        }
        features = {name: normalize(one().float(), dim=-1) for name, one in work.items()}  # type: ignore[operator]
        median = medians(in_turn(work, options.repeats))  # type: ignore[arg-type]
    for name in work:
        cosine = float((features[name] * features["float32"]).sum(dim=-1).mean())
        rows.append({"what": f"image tower, {name}"} | _compared(median["float32"], median[name], cosine))
    facts = {name: getattr(options, name) for name in ("model", "tiny", "batch", "repeats")}
    show({"benchmark": "precision", "machine": machine(), "settings": facts, "rows": rows}, options)


def _compared(usual: float, other: float, cosine: float | None) -> dict[str, float | None]:
    return {"ms float32": 1000 * usual, "ms": 1000 * other, "times as fast": usual / other, "cosine": cosine}


if __name__ == "__main__":
    main()
