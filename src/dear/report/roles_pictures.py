"""Pictures on a page of roles: small JPEGs, each once whatever the number of heads that show it, within a
limit of the page's size.
"""

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from dear.roles.pictures import HeadImages, Pictures

LIMIT = 6_000_000
"""Bytes of a page that pictures may take as base64 text; the rest of a page stays well below 4 MB."""
LOOKS = ((64, 80), (56, 65), (48, 50), (32, 50))
"""Sides in pixels and JPEG qualities, tried in turn until all pictures are within the limit."""
VEIL = 0.7
"""Opacity of the black over the patch that a head attends to least."""


@dataclass(frozen=True)
class Gallery:
    """Pictures as data URLs.

    Attributes:
        thumbnails: By the number of the image.
        veils: For each head, masks over the first images of its row: black where the head does not look.
        a_head: How many images of each side a head has; fewer than chosen if more do not fit.
    """

    thumbnails: dict[int, str]
    veils: dict[tuple[int, int], list[str]]
    a_head: int


def gallery(pictures: Pictures, limit: int = LIMIT) -> Gallery:
    """Encode the pictures. Above the limit they become smaller, then fewer: half as many for each head, and
    so on; at last none.
    """
    count = max((len(one.most) for one in pictures.heads.values()), default=0)
    while count:
        veils = {
            place: [_veil(grid) for grid in one.attention[:count]] for place, one in pictures.heads.items()
        }
        masks = sum(len(one) for some in veils.values() for one in some)
        wanted = sorted({image for one in pictures.heads.values() for image in shown(one, count)})
        for side, quality in LOOKS:
            found = _encoded(pictures.thumbnails, wanted, side, quality, limit - masks)
            if found is not None:
                return Gallery(found, veils, count)
        count //= 2
    return Gallery({}, {}, 0)


def shown(one: HeadImages, count: int) -> list[int]:
    """The images of a head, ``count`` of each side."""
    return [each.image for each in (*one.most[:count], *one.least[:count])]


def rows(pictures: Pictures, found: Gallery) -> dict[tuple[int, int], dict[str, Any]]:
    """What the page shows of each head."""

    def cell(image: int, score: float) -> dict[str, Any]:
        words = f"{pictures.names[image]}: {score:+.1f} standard deviations"
        return {"image": image, "words": words.encode("utf-8", "replace").decode()}

    return {
        place: {
            "most": [cell(each.image, each.score) for each in one.most[: found.a_head]],
            "least": [cell(each.image, each.score) for each in one.least[: found.a_head]],
            "veils": list(zip((each.image for each in one.most), found.veils[place], strict=False)),
        }
        for place, one in pictures.heads.items()
        if found.a_head
    }


def _encoded(
    thumbnails: Mapping[int, UInt8[Tensor, "3 side side"]],
    wanted: Iterable[int],
    side: int,
    quality: int,
    limit: int,
) -> dict[int, str] | None:
    """Thumbnails as data URLs, or None above the limit."""
    found: dict[int, str] = {}
    total = 0
    for image in wanted:
        picture = Image.fromarray(thumbnails[image].permute(1, 2, 0).numpy())
        if picture.width > side:
            picture = picture.resize((side, side), Image.Resampling.LANCZOS)
        found[image] = data_url(picture, "JPEG", quality=quality, optimize=True)
        total += len(found[image])
        if total > limit:
            return None
    return found


def _veil(grid: Float[Tensor, "row column"]) -> str:
    """Black whose opacity falls with the root of the attention, for weights are often concentrated in a few
    patches: clear at the strongest one.
    """
    level = (grid / grid.max().clamp_min(1e-12)).sqrt().numpy()
    opacity = np.round(255 * VEIL * (1 - level)).astype(np.uint8)
    return data_url(
        Image.fromarray(np.stack([np.zeros_like(opacity), opacity], axis=2)), "PNG", optimize=True
    )


def data_url(picture: Image.Image, form: str, **options: Any) -> str:
    """A picture as a data URL."""
    stream = io.BytesIO()
    picture.save(stream, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
