"""A background in progress: layers of palette colours."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dear.data.world.hashing import Stream

Plane = Float[Tensor, "batch height width"]
_DUST = 1 << 12


@dataclass
class Painting:
    """Pixel positions (0 to 1, y down), the width of a pixel, layout numbers, colours, the picture so far."""

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
        """Paint a palette colour over the picture where `share` is 1."""
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
        place = torch.floor(self.x * (1 / cell)) * 131 + torch.floor(self.y * (1 / cell)) * 613 + shift
        return table[place.to(torch.int64) & (_DUST - 1)]


def stripes(position: Plane) -> Plane:
    """A triangle wave of period 1 between 0 (whole numbers) and 1."""
    return (position - torch.floor(position + 0.5)).abs() * 2
