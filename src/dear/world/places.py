"""Backgrounds behind the plate: the ten places, and three abstract backdrops that pretraining never has."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.world.factors import FACTORS
from dear.world.hashing import Stream
from dear.world.names import packaged_json
from dear.world.plate import wave

BACKDROPS = ("rings", "mosaic", "flow")
_DUST = 1 << 12

Plane = Float[Tensor, "batch height width"]


@dataclass
class Painting:
    """Pixel positions (0 to 1, y down), the width of a pixel, layout numbers, colors, the picture so far."""

    x: Plane
    y: Plane
    layout: tuple[Plane, ...]
    soft: float
    palette: dict[str, list[float]]
    picture: Tensor | None = None

    def below(self, height: Plane) -> Plane:
        """1 where positive, 0 where negative, soft over a pixel; heights are fractions of the picture."""
        return (height * (1 / self.soft) + 0.5).clamp(0, 1)

    def over(self, name: str, share: Plane | None = None) -> None:
        """Paint a palette color over the picture where `share` is 1."""
        color = torch.tensor(self.palette[name], device=self.x.device)[None, :, None, None]
        if self.picture is None or share is None:
            self.picture = color.expand(len(self.layout[0]), 3, *self.x.shape[-2:])
        else:
            self.picture = (color - self.picture) * share[:, None] + self.picture

    def disc(self, x: Plane | float, y: Plane | float, radius: float) -> Plane:
        """1 inside a disc."""
        across, down = self.x - x, self.y - y
        return self.below(radius - torch.sqrt(across * across + down * down))

    def dust(self, cell: float, chance: float, drift: Plane) -> Plane:
        """Random cells of the given width, fixed by the layout's drift."""
        table = Stream(67, torch.arange(_DUST)).chance("dust", chance).to(self.x.dtype).to(self.x.device)
        shift = torch.floor(drift * 997)
        index = torch.floor(self.x * (1 / cell)) * 131 + torch.floor(self.y * (1 / cell)) * 613 + shift
        return table[index.to(torch.int64) & (_DUST - 1)]


def stripes(position: Plane) -> Plane:
    """A triangle wave of period 1 between 0 (whole numbers) and 1."""
    return (position - torch.floor(position + 0.5)).abs() * 2


def _beach(p: Painting) -> None:
    a, b, c, _ = p.layout
    p.over("sky")
    p.over("sun", p.disc(a * 0.7 + 0.15, 0.12, 0.09))
    p.over("sea", p.below(p.y - (b * 0.08 + 0.36)))
    shore = p.y - (wave(p.x + c) * 0.03 + b * 0.08 + 0.58)
    p.over("foam", p.below(shore + 0.045))
    p.over("sand", p.below(shore))
    p.over("grit", p.below(shore) * p.dust(0.03, 0.16, a))


def _forest(p: Painting) -> None:
    a, b, c, _ = p.layout
    p.over("gloom")
    p.over("leaf", p.dust(0.055, 0.45, a))
    lean = (p.y - 0.5) * (b - 0.5) * 0.1
    p.over("trunk", p.below((0.36 - stripes((p.x + lean) * 4.5 + c)) * 0.11) * p.below(p.y - 0.06))
    ground = p.below(p.y - (b * 0.06 + 0.82))
    p.over("floor", ground)
    p.over("leaf", ground * p.dust(0.05, 0.2, c))


def _desert(p: Painting) -> None:
    a, b, c, d = p.layout
    p.over("sky")
    p.over("sun", p.disc(a * 0.7 + 0.15, 0.14, 0.11))
    p.over("far", p.below(p.y - (wave(p.x * 1.1 + b) * 0.07 + 0.50)))
    near = p.y - (wave(p.x * 0.8 + c) * 0.08 + 0.70)
    p.over("near", p.below(near))
    p.over("ripple", p.below(near) * p.below((stripes(near * 9) - 0.72) * 0.05))
    stem = torch.where(d < 0.5, 0.1, 0.9)
    across, turned = (p.x - stem).abs(), (p.x - stem + 0.06).abs()
    p.over("cactus", p.below(torch.minimum(0.028 - across, torch.minimum(p.y - 0.3, 0.72 - p.y))))
    p.over("cactus", p.below(torch.minimum(0.075 - across, torch.minimum(p.y - 0.46, 0.51 - p.y))))
    p.over("cactus", p.below(torch.minimum(0.02 - turned, torch.minimum(p.y - 0.38, 0.50 - p.y))))


def _city(p: Painting) -> None:
    a, b, _, _ = p.layout
    p.over("sky")
    tower = torch.floor(p.x * 6.5 + a)
    inside = p.x * 6.5 + a - tower
    height = (wave(tower * 0.37 + b) + 1) * 0.17 + 0.08
    wall = p.below(torch.minimum(p.y - height, (torch.minimum(inside, 1 - inside) - 0.05) * 0.15))
    p.over("tower", wall)
    columns, rows = stripes(inside * 2), stripes(p.y * 13)
    lit = p.below((columns - 0.4) * 0.08) * p.below((rows - 0.45) * 0.05)
    p.over("window", wall * lit * (1 - p.dust(0.077, 0.25, b)))
    p.over("road", p.below(p.y - 0.82))
    p.over("dash", p.below(0.018 - (p.y - 0.91).abs()) * p.below((stripes(p.x * 4 + a) - 0.4) * 0.12))


def _sea(p: Painting) -> None:
    a, b, _, _ = p.layout
    p.over("sky")
    water = p.below(p.y - (wave(p.x * 3 + a) * 0.012 + 0.16 + b * 0.08))
    p.over("water", water)
    swell = p.y * 7 + wave(p.x * 2.2 + p.y + a) * 0.28
    crest = stripes(swell)
    p.over("wave", water * p.below((crest - 0.45) * 0.09))
    p.over("crest", water * p.below((crest - 0.86) * 0.09))


def _snow(p: Painting) -> None:
    a, b, c, _ = p.layout
    p.over("sky")
    p.over("hill", p.below(p.y - (wave(p.x * 0.9 + a) * 0.07 + 0.48)))
    x = (p.x * 3.2 + b) - torch.floor(p.x * 3.2 + b) - 0.5
    tier = stripes(p.y * 7) * 0.06
    fir = torch.minimum((p.y - 0.30) * 0.55 - x.abs() * 0.31 - tier * 0.5, 0.66 - p.y)
    p.over("fir", p.below(fir))
    p.over("ground", p.below(p.y - (wave(p.x * 0.7 + c) * 0.04 + 0.66)))
    row = torch.floor(p.y * 8 + a)
    across, down = p.x * 8 + row * 0.37 + c, p.y * 8 + a - row - 0.5
    across = across - torch.floor(across) - 0.5
    p.over("flake", p.below((0.2 - torch.sqrt(across * across + down * down)) * 0.125))


def _meadow(p: Painting) -> None:
    a, b, c, _ = p.layout
    p.over("sky")
    for x, size in (
        (a * 0.9 + 0.02, 0.10),
        (a * 0.9 + 0.12, 0.075),
        (b * 0.8 + 0.5, 0.08),
        (b * 0.8 + 0.4, 0.06),
    ):
        p.over("cloud", p.disc(x, 0.13, size))
    grass = p.below(p.y - (wave(p.x * 0.6 + b) * 0.04 + 0.50))
    p.over("grass", grass)
    p.over("blade", grass * p.below((stripes(p.x * 17 + wave(p.y * 5)) - 0.62) * 0.03))
    row = torch.floor(p.y * 7)
    across, down = p.x * 6 + row * 0.41 + c, p.y * 7 - row - 0.5
    flower = torch.floor(across)
    bud = p.below((0.27 - torch.sqrt((across - flower - 0.5) * (across - flower - 0.5) + down * down)) * 0.15)
    pink = (wave((flower + row) * 0.5 + 0.25) > 0).to(bud.dtype)
    p.over("bloom", grass * bud * pink)
    p.over("bloom2", grass * bud * (1 - pink))


def _mountains(p: Painting) -> None:
    a, b, c, _ = p.layout
    p.over("sky")
    for phase, pitch, top in ((a, 1.7, 0.08), (b, 2.3, 0.30)):
        ridge = stripes(p.x * pitch + phase)
        depth = p.y - (ridge * (0.95 / pitch) + top)
        p.over("rock", p.below(depth))
        east = p.x * pitch + phase
        p.over("shade", p.below(depth) * p.below((east - torch.floor(east + 0.5)) * 0.3))
        ragged = 0.12 + (stripes(p.x * 11 + c) - 0.5) * 0.07
        p.over("cap", p.below(torch.minimum(depth, ragged - (p.y - top) * 0.8)))
    p.over("valley", p.below(p.y - (wave(p.x + c) * 0.02 + 0.86)))


def _space(p: Painting) -> None:
    a, b, c, d = p.layout
    p.over("void")
    p.over("cloud", (wave(p.x * 0.9 + p.y * 0.6 + a) * 0.5 + 0.5).clamp(0, 1))
    p.over("star", p.dust(0.0315, 0.07, b))
    x, y = torch.where(c < 0.5, 0.15, 0.85), torch.where(d < 0.5, 0.15, 0.85)
    planet = p.disc(x, y, 0.12)
    p.over("planet", planet)
    p.over("band", planet * p.below((stripes((p.y - y) * 11) - 0.6) * 0.08))
    tilt, along = (p.y - y) + (p.x - x) * 0.35, (p.x - x).abs()
    p.over("ring", p.below(torch.minimum(0.02 - tilt.abs(), 0.2 - along)))


def _room(p: Painting) -> None:
    a, b, _, _ = p.layout
    p.over("wall")
    p.over("paper", p.below((stripes(p.x * 7 + a) - 0.5) * 0.07))
    edge = torch.where(b < 0.5, 0.02, 0.72)
    x, y = p.x - edge - 0.13, p.y - 0.2
    inside = torch.minimum(0.13 - x.abs(), 0.17 - y.abs())
    p.over("frame", p.below(inside))
    pane = torch.minimum(inside - 0.025, x.abs() - 0.012)
    p.over("pane", p.below(torch.minimum(pane, y.abs() - 0.012)))
    floor = p.y - 0.74
    p.over("skirting", p.below(floor + 0.04))
    p.over("board", p.below(floor))
    row = torch.floor(floor * 11)
    seam = torch.maximum(0.1 - stripes(floor * 11), 0.06 - stripes(p.x * 2 + row * 0.37 + a))
    p.over("gap", p.below(floor) * p.below(seam * 0.09))


def _rings(p: Painting) -> None:
    a, b, _, _ = p.layout
    p.over("first")
    x, y = p.x - a, p.y - b
    p.over("second", p.below((stripes(torch.sqrt(x * x + y * y) * 7) - 0.5) * 0.08))


def _mosaic(p: Painting) -> None:
    a, b, _, _ = p.layout
    p.over("first")
    p.over("second", p.dust(0.13, 0.5, a))
    p.over("first", p.dust(0.07, 0.2, b))


def _flow(p: Painting) -> None:
    a, b, _, _ = p.layout
    p.over("first")
    p.over("second", wave(p.x * 1.3 + wave(p.y * 1.1 + a) * 0.5 + b) * 0.5 + 0.5)


_PAINTERS: dict[str, Callable[[Painting], None]] = {painter.__name__[1:]: painter for painter in (
    _beach, _forest, _desert, _city, _sea, _snow, _meadow, _mountains, _space, _room, _rings, _mosaic,
    _flow
)}  # fmt: skip


def background(
    place: Int[Tensor, "batch"],
    backdrop: Int[Tensor, "batch"],
    layout: Float[Tensor, "batch 4"],
    x: Float[Tensor, "height width"],
    y: Float[Tensor, "height width"],
) -> Float[Tensor, "batch 3 height width"]:
    """The place of each image, or the one of BACKDROPS given by `backdrop` if that is not -1."""
    names = FACTORS["place"].values + BACKDROPS
    which = torch.where(backdrop < 0, place, backdrop + len(FACTORS["place"]))
    picture = torch.empty(len(place), 3, *x.shape, device=x.device)
    for number, name in enumerate(names):
        rows = (which == number).nonzero()[:, 0]
        if len(rows):
            numbers = tuple(column[:, None, None] for column in layout[rows].unbind(1))
            painting = Painting(x[None], y[None], numbers, 1 / x.shape[-1], packaged_json("places")[name])
            _PAINTERS[name](painting)
            if painting.picture is not None:
                picture[rows] = painting.picture
    return picture
