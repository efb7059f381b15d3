"""Head contributions over an image set, streamed: their moments and, optionally, each image's values as
coordinates.

A head of ViT-B/16 writes to 64 of the 512 dimensions of the embedding (67 with the constants of the public
convention), the same for all images, so its contributions are exact in that many coordinates: 10,000 images
of 48 heads take 123 MB, and 983 MB in full.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip, span_start
from dear.backbone.head_contributions import Convention, head_contributions, written_rows
from dear.backbone.vision import VisionTower
from dear.data.dataset import Images
from dear.data.images.transforms import prefetch_views
from dear.errors import DataError, SettingsError
from dear.progress import Progress, silent
from dear.reading.typed import PositiveInt, check_value
from dear.roles.textspan import Moments

BATCH_VALUES = 2**28


@dataclass(frozen=True)
class Decomposition:
    """Contributions of the heads of some layers over an image set.

    Attributes:
        layers: The analyzed layers, counted from 1.
        moments: Moments of each head's contribution, heads as (layer, head).
        bases: Orthonormal columns that span all that a head can contribute, in float64 on the CPU.
        coordinates: Each image's contributions in these bases; None, as the bases, if not requested.
    """

    layers: tuple[int, ...]
    moments: Moments
    bases: Float[Tensor, "layer head embed basis"] | None = None
    coordinates: Float[Tensor, "item layer head basis"] | None = None

    def project(self, directions: Float[Tensor, "layer head embed"]) -> Float[Tensor, "item layer head"]:
        """Each image's contributions less their means, projected onto the direction of the head."""
        assert self.bases is not None
        assert self.coordinates is not None, "images are chosen by their contributions"
        directions = directions.cpu().double()
        in_bases = torch.einsum("lhe,lhed->lhd", directions, self.bases)
        offsets = (directions * self.moments.mean.cpu()).sum(dim=-1)
        return torch.einsum("ilhd,lhd->ilh", self.coordinates.double(), in_bases) - offsets


def contribution_bases(
    tower: VisionTower, layers: Sequence[int], convention: Convention
) -> Float[Tensor, "layer head embed basis"]:
    """Orthonormal columns that span all that each head can contribute."""
    # Constants differ much in length.
    written = [normalize(written_rows(tower, at, convention), dim=-1, eps=1e-300) for at in layers]
    return torch.stack([torch.linalg.qr(rows.transpose(1, 2)).Q for rows in written])


def analyzed_layers(clip: Clip, layers: Sequence[int] | None = None) -> tuple[int, ...]:
    """``layers``, by default the last third of the vision tower. Raises SettingsError for invalid layers."""
    depth = clip.image.depth
    if layers is None:
        return tuple(range(span_start(depth), depth + 1))
    if not layers or len(set(layers)) < len(layers) or not all(1 <= layer <= depth for layer in layers):
        raise SettingsError(
            f"layers {list(layers)} are not distinct layers of a tower of {depth}, counted from 1."
        )
    return tuple(layers)


def head_rank(clip: Clip, rank: int = 80, convention: Convention = "exact") -> int:
    """``rank``, but at most the dimensions of a head's contributions: the width of a head (+ 3 in the public
    convention, for the three constant directions that it adds). With an attention pool it is that width for
    each head of the pool. At most the dimensions of the embedding.
    """
    check_value("rank", rank, PositiveInt)
    tower = clip.image
    pool_heads = 1 if tower.pool is None else tower.pool.pool_heads
    dimensions, is_public = pool_heads * tower.width // tower.heads, convention == "public"
    dimensions += (2 * pool_heads + 1) * is_public
    return min(rank, dimensions, max(tower.embed_dim, tower.width // tower.heads))


@torch.no_grad()
def decompose(
    clip: Clip,
    images: Images,
    layers: Sequence[int],
    *,
    convention: Convention = "exact",
    coordinates: bool = False,
    batch: int = 100,
    progress: Progress = silent,
) -> Decomposition:
    """Contributions of all heads of ``layers`` over an image set, in the test view.

    With ``coordinates`` each image's contributions stay in memory, in few dimensions. Raises DataError for no
    images, LimitError for moments that are too large.
    """
    if len(images) == 0:
        raise DataError("there are no images to decompose.")
    device = clip.image.projection.device
    heads, embed = clip.image.heads, clip.image.embed_dim
    moments = Moments(len(layers), heads, embed=embed, device="cpu" if device.type == "mps" else device)
    bases, retained = contribution_bases(clip.image, layers, convention) if coordinates else None, []
    done = 0
    for pixels in batches(clip, images, batch):
        part = head_contributions(clip.image, pixels, layers, convention).heads
        moments.add(part)
        if bases is not None:
            retained.append(torch.einsum("ilhe,lhed->ilhd", part, bases.to(part)).float().cpu())
        done += len(part)
        progress("contributions", done, len(images))
    return Decomposition(tuple(layers), moments, bases, torch.cat(retained) if retained else None)


def evenly_spaced(items: int, count: int) -> Int[Tensor, "item"]:
    """Indices of ``count`` evenly spaced items (or all, if fewer)."""
    return torch.arange(min(count, items)) * items // min(count, items)


def batches(clip: Clip, images: Images, batch: int) -> Iterator[Float[Tensor, "batch 3 height width"]]:
    """Batches of at most ``batch`` normalized test views of the images, in order; fewer where the
    contributions of all heads would take more than 1 GiB.
    """
    tower = clip.image
    room = max(1, BATCH_VALUES // (tower.depth * tower.heads * tower.embed_dim))
    step = min(batch, tower.images_at_once, room)
    indices = torch.arange(len(images)).split(step)
    with closing(prefetch_views(images, indices, clip.preprocess, tower.projection.device)) as loaded:
        for views in loaded:
            yield clip.normalize_pixels(views.to(tower.projection))
