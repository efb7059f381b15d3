"""Check open_clip's architectures: build each without memory for its weights, and convert it to towers."""

from dataclasses import dataclass
from typing import Any

import open_clip
import torch

from dear.backbone.choice import Access
from dear.backbone.convert import to_towers
from dear.backbone.load import build
from dear.backbone.whole import WholeVisionTower
from dear.errors import WeightsError


@dataclass(frozen=True)
class Verdict:
    """The result of checking an open_clip architecture.

    Attributes:
        works: True if it can be used; if not, `reason` says why.
        parameters: parameters of both towers, in millions.
        image, text: what each tower gives access to.
        kind: the class of the image tower, if it gives features only.
        layers, heads: numbers of the image tower, if it gives them.
        image_size: side length in pixels.
    """

    name: str
    works: bool
    reason: str | None = None
    parameters: float | None = None
    layers: int | None = None
    heads: int | None = None
    image_size: int | None = None
    image: Access | None = None
    text: Access | None = None
    kind: str | None = None


def list_architectures() -> list[str]:
    """The names of all architectures of open_clip, in its order."""
    return list(open_clip.list_models())


def try_architecture(name: str) -> Verdict:
    """Build an architecture and report whether it fits."""
    try:
        with torch.device("meta"):
            network: Any = build(name)
            image, text = to_towers(network)
    except WeightsError as error:  # "NAME does not fit: REASON. What dear needs."
        return Verdict(name, False, str(error).split(" does not fit: ")[-1].split(". ")[0].rstrip("."))
    is_whole = isinstance(image, WholeVisionTower)
    return Verdict(
        name,
        True,
        parameters=sum(parameter.numel() for parameter in network.parameters()) / 1e6,
        layers=None if is_whole else image.depth,
        heads=None if is_whole else image.heads,
        image_size=image.image_size,
        image=image.access,
        text=text.access,
        kind=image.kind if isinstance(image, WholeVisionTower) else None,
    )
