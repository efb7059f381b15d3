"""What trying an architecture finds. Light to import, so that commands can show it without loading torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether an open_clip architecture loads.

    Attributes:
        works: whether it maps exactly onto our towers; `reason` says why not.
        parameters: millions, of both towers.
        layers, heads: of the image tower.
        image_size: pixels a side.
        difference: the largest difference of image and text features from open_clip's own under random
            weights, relative to their largest value; None where that was not compared.
    """

    name: str
    works: bool
    reason: str | None = None
    parameters: float | None = None
    layers: int | None = None
    heads: int | None = None
    image_size: int | None = None
    difference: float | None = None
