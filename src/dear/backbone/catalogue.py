"""Check every open_clip architecture: build it without its weights, map it, and compare it if small."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import open_clip
import torch
from torch import nn

from dear.backbone.choice import Access
from dear.backbone.convert import require_fit, to_towers
from dear.backbone.load import build, random_network
from dear.backbone.whole import WholeVisionTower
from dear.errors import WeightsError

SEED = 0
IMAGES = 2  # compared under random weights
PAGE = """\
# Which backbones load

Written by `dear models{options} --write docs/models.md`; do not edit.

Every architecture name of open_clip {version} was built (on PyTorch's meta device, without memory for
weights) and checked part by part against what the towers of `dear.backbone` reproduce:
**{works} of {count} work, {refused} are refused**, each with the reason that `load_clip` gives.{compared}

A tower gives its layers and attention heads, or features alone, and a method says what it needs of each.

{fits}

## Refused

| architecture | reason |
| --- | --- |
{others}
"""
SECTION = """\
## {title}

{about}
Number of architectures: {count}. Methods: {methods}.

| architecture | image tower: {columns} | M parameters |{head}
| --- | --- | ---: |{rule}
{rows}"""
SECTIONS: dict[tuple[Access, Access], tuple[str, str]] = {
    ("heads", "layers"): ("Both towers by layers", "Layers and heads of images, layers of texts."),
    ("features", "layers"): (
        "Images as features, texts by layers",
        "The image tower is open_clip's or timm's own, frozen and used whole.",
    ),
    ("heads", "features"): (
        "Images by layers, texts as features",
        "The text tower is open_clip's own, frozen and used whole.",
    ),
    ("features", "features"): ("Features alone", "Both towers are open_clip's own, frozen and used whole."),
}
"""Title and description by what the image and the text tower give."""
COMPARED = """

*Difference* is the largest difference of image and text features from open_clip's own, under random weights,
on {images} random images and texts, in float32, relative to the largest feature; – where it was not compared
(from {below:g} million parameters on)."""


@dataclass(frozen=True)
class Verdict:
    """The result of checking an open_clip architecture.

    Attributes:
        works: True if it can be used; if not, `reason` says why.
        parameters: of both towers, in millions.
        image, text: what the towers give.
        kind: the class of an image tower that gives features only.
        layers, heads: of an image tower that gives them.
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
    image: Access | None = None
    text: Access | None = None
    kind: str | None = None


def names_of_open_clip() -> list[str]:
    """All architecture names."""
    return list(open_clip.list_models())


def try_architecture(name: str, compare_below: float = 0.0) -> Verdict:
    """Build an architecture and report whether it fits. Below ``compare_below`` million parameters, also
    compare its features with open_clip's.
    """
    try:
        with torch.device("meta"):
            network: Any = build(name)
        require_fit(network, name)
    except WeightsError as error:
        return Verdict(name, False, _reason(str(error), name))
    millions = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    with torch.device("meta"):
        image, text = to_towers(network)
    return Verdict(
        name,
        True,
        parameters=millions,
        layers=image.depth if image.access == "heads" else None,
        heads=image.heads if image.access == "heads" else None,
        image_size=image.image_size,
        difference=difference(name) if millions < compare_below else None,
        image=image.access,
        text=text.access,
        kind=image.kind if isinstance(image, WholeVisionTower) else None,
    )


@torch.no_grad()
def difference(name: str) -> float:
    """The largest difference of features from open_clip's own, relative to the largest feature."""
    network: Any = random_network(name, SEED).eval()
    image, text = to_towers(network)
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.randn(IMAGES, 3, image.image_size, image.image_size, generator=generator)
    texts = _texts(network, generator)
    pairs = [
        (image(pixels), network.encode_image(pixels, normalize=False)),
        (text(texts), network.encode_text(texts, normalize=False)),
    ]
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


def markdown(
    verdicts: Sequence[Verdict],
    version: str,
    methods: Callable[[Access, Access], Sequence[str]],
    compare_below: float = 0.0,
) -> str:
    """The Markdown of docs/models.md. ``methods`` names those that run on an image and a text tower."""
    fits = [v for v in verdicts if v.works]
    others = [v for v in verdicts if not v.works]
    compared = compare_below > 0
    sections = []
    for access, (title, about) in SECTIONS.items():
        rows = [
            f"| {v.name} | {_image_tower(v)}, {v.image_size} | {v.parameters or 0:.1f} |"
            + (f" {'–' if v.difference is None else f'{v.difference:.1e}'} |" if compared else "")
            for v in fits
            if (v.image, v.text) == access
        ]
        if rows:
            sections.append(
                SECTION.format(
                    title=title,
                    about=about,
                    count=len(rows),
                    methods=", ".join(methods(*access)),
                    columns="layers x heads, pixels" if access[0] == "heads" else "class, pixels",
                    head=" difference |" if compared else "",
                    rule=" ---: |" if compared else "",
                    rows="\n".join(rows),
                )
            )
    return PAGE.format(
        version=version,
        options=f" --compare-below {compare_below:g}" if compared else "",
        works=len(fits),
        count=len(verdicts),
        refused=len(others),
        compared=COMPARED.format(images=IMAGES, below=compare_below) if compared else "",
        fits="\n\n".join(sections),
        others="\n".join(f"| {v.name} | {v.reason} |" for v in others),
    )


def _image_tower(verdict: Verdict) -> str:
    return verdict.kind or f"{verdict.layers} x {verdict.heads}"


def _texts(network: nn.Module, generator: torch.Generator) -> torch.Tensor:
    """Random token ids, with the end-of-text token (the highest id) somewhere in the second half."""
    model: Any = network
    words = model.vocab_size if hasattr(model, "vocab_size") else model.text.vocab_size  # CoCa
    texts = torch.randint(1, words - 1, (IMAGES, model.context_length), generator=generator)
    ends = torch.randint(model.context_length // 2, model.context_length, (IMAGES, 1), generator=generator)
    return texts.scatter(1, ends, words - 1)


def _reason(message: str, name: str) -> str:
    """The reason from a message of the form "NAME does not fit: REASON. What dear needs."."""
    return message.removeprefix(f"{name} does not fit: ").split(". ")[0].rstrip(".")
