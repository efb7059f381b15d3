"""The result of checking an architecture. Cheap to import: commands can show it without loading torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether an open_clip architecture loads.

    Attributes:
        works: whether it maps exactly onto our towers; if not, `reason` says why.
        parameters: of both towers, in millions.
        layers, heads: of the image tower.
        image_size: side length in pixels.
        difference: the largest difference of image and text features from open_clip's own under random
            weights, relative to their largest value; None if not compared.
    """

    name: str
    works: bool
    reason: str | None = None
    parameters: float | None = None
    layers: int | None = None
    heads: int | None = None
    image_size: int | None = None
    difference: float | None = None
