"""A batch of scenes: everything an image shows, as tensors, a pure function of (seed, index)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.world.factors import FACTOR_NAMES, SIZES, STYLES, held_out_pairs, is_held_out
from dear.world.hashing import Stream
from dear.world.names import packaged_json

Combinations = Literal["all", "pretraining", "held-out"]

_ATTEMPTS = 24
_GLYPHS = 36


@dataclass(frozen=True)
class Scene:
    """The content of a batch of images. Lengths are fractions of the picture, angles are in turns, colors in
    [0, 1].

    `factors` has the columns of `FACTOR_NAMES`; all other fields are nuisance factors.
    `backdrop` is -1 if the place is drawn, else the number of an abstract backdrop; `glyph` is -1 for none.
    """

    factors: Int[Tensor, "batch factor"]
    style: Int[Tensor, "batch"]
    plate_center: Float[Tensor, "batch 2"]
    plate_size: Float[Tensor, "batch"]
    plate_turn: Float[Tensor, "batch"]
    icon_center: Float[Tensor, "batch 2"]
    icon_size: Float[Tensor, "batch"]
    icon_turn: Float[Tensor, "batch"]
    period: Float[Tensor, "batch"]
    phase: Float[Tensor, "batch 2"]
    inverted: Bool[Tensor, "batch"]
    tint: Float[Tensor, "batch 3"]
    layout: Float[Tensor, "batch 4"]
    backdrop: Int[Tensor, "batch"]
    count: Int[Tensor, "batch"]
    glyph: Int[Tensor, "batch"]
    corner: Int[Tensor, "batch"]
    bars: Float[Tensor, "batch"]
    hue: Float[Tensor, "batch"]
    gain: Float[Tensor, "batch 3"]
    gradient: Float[Tensor, "batch 2"]
    contrast: Float[Tensor, "batch"]
    blur: Int[Tensor, "batch"]
    block: Int[Tensor, "batch"]
    levels: Int[Tensor, "batch"]
    noise: Float[Tensor, "batch"]
    grain: Int[Tensor, "batch"]

    def __len__(self) -> int:
        return len(self.factors)

    def __getitem__(self, rows: Int[Tensor, "row"] | slice) -> Self:
        """The scenes of some rows."""
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def to(self, device: torch.device | str) -> Self:
        """The same scenes on another device."""
        return replace(self, **{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def value(self, factor: str) -> Int[Tensor, "batch"]:
        """The values of one factor, by its name."""
        return self.factors[:, FACTOR_NAMES.index(factor)]

    def with_(self, **changes: Tensor) -> Self:
        """A copy with some fields, or some factors by name (`color=...`), replaced."""
        factors = changes.pop("factors", self.factors).clone()
        for name in [name for name in changes if name in FACTOR_NAMES]:
            factors[:, FACTOR_NAMES.index(name)] = changes.pop(name)
        return replace(self, factors=factors, **changes)


def joined(parts: Sequence[Scene]) -> Scene:
    """The scenes of all parts, in order; there must be a part."""
    columns = {
        field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Scene)
    }
    return replace(parts[0], **columns)


def draw_factors(stream: Stream, combinations: Combinations) -> Int[Tensor, "batch factor"]:
    """Factor values, uniform over the requested combinations.

    "pretraining" takes the first allowed one of 24 attempts; if all fail (probability 1e-13), it takes the
    all-zero combination, which is allowed. "held-out" draws one of the held-out pairs and lets the other
    factors vary.
    """
    attempts = torch.stack(
        [
            stream.integers(f"factor {name}", size, _ATTEMPTS)
            for name, size in zip(FACTOR_NAMES, SIZES, strict=True)
        ],
        dim=-1,
    )
    if combinations == "all":
        return attempts[:, 0]
    if combinations == "pretraining":
        allowed = ~is_held_out(attempts)
        first = allowed.to(torch.int64).argmax(dim=1)
        values = attempts.gather(1, first[:, None, None].expand(-1, 1, len(SIZES)))[:, 0]
        return torch.where(allowed.any(dim=1)[:, None], values, torch.zeros_like(values))
    factors = attempts[:, 0].clone()
    kind = stream.integer("held-out kind", len(held_out_pairs()))
    for number, pair in enumerate(held_out_pairs()):
        values = pair.values.to(factors.device)[stream.integer(f"held-out pair {number}", len(pair.values))]
        for column, value in zip(pair.columns, values.unbind(1), strict=True):
            factors[:, column] = torch.where(kind == number, value, factors[:, column])
    return factors


def draw_scenes(seed: int, index: Int[Tensor, "batch"], *, combinations: Combinations = "all") -> Scene:
    """The scenes of the given indices: a (seed, index) gives the same scene in any batch, on any device."""
    stream = Stream(seed, index)
    uniform = stream.uniform
    plate_center = stream.uniforms("plate centre", 2) * 0.06 + 0.47
    plate_size = uniform("plate size", 0.77, 0.95)
    shares = torch.tensor([row["share"] for row in packaged_json("factors")["style"]], device=index.device)
    style = torch.searchsorted(shares.cumsum(0), uniform("style")).clamp(max=len(STYLES) - 1)
    pixelated, blurred = (style == STYLES.values.index(name) for name in ("pixelated", "blurred"))
    light = uniform("gain", 0.88, 1.10)
    extra = stream.chance("more than one", 0.2)
    return Scene(
        factors=draw_factors(stream, combinations),
        style=style,
        plate_center=plate_center,
        plate_size=plate_size,
        plate_turn=uniform("plate turn", -20 / 360, 20 / 360),
        icon_center=plate_center + (stream.uniforms("icon centre", 2) * 0.06 - 0.03),
        icon_size=uniform("icon size", 0.46, 0.55),
        icon_turn=uniform("icon turn", -15 / 360, 15 / 360),
        period=uniform("period", 0.145, 0.185),
        phase=stream.uniforms("phase", 2),
        inverted=torch.zeros_like(extra),
        tint=stream.uniforms("tint", 3) * 0.08 - 0.04,
        layout=stream.uniforms("layout", 4),
        backdrop=torch.full_like(style, -1),
        count=torch.where(extra, stream.integer("count", 3) + 2, 1),
        glyph=torch.where(stream.chance("has glyph", 0.12), stream.integer("glyph", _GLYPHS), -1),
        corner=stream.integer("corner", 4),
        bars=torch.zeros_like(light),
        hue=torch.zeros_like(light),
        gain=light[:, None] + (stream.uniforms("cast", 3) * 0.06 - 0.03),
        gradient=stream.uniforms("gradient", 2) * 0.3 - 0.15,
        contrast=torch.ones_like(light),
        blur=torch.where(blurred, 2, 0),
        block=torch.where(pixelated, stream.integer("block", 2) + 2, 1),
        levels=torch.zeros_like(style),
        noise=uniform("noise", 0.0, 0.035),
        grain=stream.integer("grain", 1 << 16),
    )
