"""CLIP's hand-written templates for ImageNet: shared by PromptSRC and TAC. Imports no torch."""

import json
from functools import cache
from importlib.resources import files


@cache
def imagenet_templates() -> tuple[str, ...]:
    """The 60 of them that PromptSRC averages over; ``imagenet_templates.json`` has their source."""
    file = files(__package__).joinpath("imagenet_templates.json")
    return tuple(json.loads(file.read_text(encoding="utf-8"))["templates"])
