"""Each image's contributions, kept exactly in the few dimensions that a head can write to.

A head of ViT-B/16 writes to 64 of the 512 dimensions of the embedding (67 with the constants of the public
convention), the same for all images. 10,000 images of 48 heads take 123 MB so, and 983 MB in full.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.head_contributions import Convention, written_rows
from dear.backbone.vision import VisionTower

MOST = 2**29
"""Bytes that coordinates may take; of more images an evenly spread part is kept (43,690 for ViT-B/16)."""


class Coordinates:
    """Contributions of some of the images to the heads of some layers.

    Attributes:
        items: The images that are kept, in order.
        bases: Orthonormal columns that span all that a head can contribute.
        values: Coordinates of the contributions in these bases.
    """

    items: Int[Tensor, "item"]
    bases: Float[Tensor, "layer head embed basis"]
    values: Float[Tensor, "item layer head basis"]

    def __init__(
        self, tower: VisionTower, layers: Sequence[int], convention: Convention, images: int, most: int = MOST
    ) -> None:
        self.bases = head_bases(tower, layers, convention)
        a_head = self.bases.shape[-1]
        wanted = min(images, max(1, most // (4 * len(layers) * tower.heads * a_head)))
        self.items = torch.arange(wanted) * images // wanted
        self.values = torch.zeros(wanted, len(layers), tower.heads, a_head)

    def add(self, first: int, part: Float[Tensor, "batch layer head embed"]) -> None:
        """Keep the contributions of a batch that begins with image ``first``."""
        rows = ((self.items >= first) & (self.items < first + len(part))).nonzero().flatten()
        if len(rows):
            chosen = part[(self.items[rows] - first).to(part.device)]
            bases = self.bases.to(part)
            self.values[rows] = torch.einsum("ilhe,lhed->ilhd", chosen, bases).float().cpu()

    def along(
        self,
        directions: Float[Tensor, "layer head embed"],
        mean: Float[Tensor, "layer head embed"],
    ) -> Float[Tensor, "item layer head"]:
        """Each contribution less ``mean``, projected onto its head's direction."""
        own = torch.einsum("lhe,lhed->lhd", directions.cpu().double(), self.bases)
        offsets = (directions.cpu().double() * mean.cpu().double()).sum(dim=-1)
        return torch.einsum("ilhd,lhd->ilh", self.values.double(), own) - offsets


def head_bases(
    tower: VisionTower, layers: Sequence[int], convention: Convention
) -> Float[Tensor, "layer head embed basis"]:
    """An orthonormal basis of each head's contributions, in float64 on the CPU."""
    bases = []
    for layer in layers:
        written = written_rows(tower, layer, convention)
        written = normalize(written, dim=-1, eps=1e-300)  # constants differ much in length
        bases.append(torch.linalg.qr(written.transpose(1, 2)).Q)
    return torch.stack(bases)
