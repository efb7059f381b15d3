"""Check every open_clip architecture: build it without its weights, map it, and compare it if small."""

from collections.abc import Sequence
from typing import Any

import open_clip
import torch
from torch import nn

from dear.backbone.choice import Verdict
from dear.backbone.convert import require_fit, to_towers
from dear.backbone.load import build, random_network
from dear.errors import WeightsError

SEED = 0
IMAGES = 2  # compared under random weights
PAGE = """\
# Which backbones load

Written by `dear models{options} --write docs/models.md`; do not edit.

Every architecture name of open_clip {version} was built (on PyTorch's meta device, without memory for
weights) and checked part by part against what the towers of `dear.backbone` reproduce:
**{works} of {count} work, {refused} are refused**, each with the reason that `load_clip` gives.{compared}

| architecture | image tower: layers x heads, pixels | M parameters |{head}
| --- | --- | ---: |{rule}
{fits}

## Refused

| architecture | reason |
| --- | --- |
{others}
"""
COMPARED = """

*Difference* is the largest difference of image and text features from open_clip's own, under random weights,
on {images} random images and texts, in float32, relative to the largest feature; – where it was not compared
(from {below:g} million parameters on)."""


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
        image, _ = to_towers(network)
    return Verdict(
        name,
        True,
        parameters=millions,
        layers=image.depth,
        heads=image.heads,
        image_size=image.image_size,
        difference=difference(name) if millions < compare_below else None,
    )


@torch.no_grad()
def difference(name: str) -> float:
    """The largest difference of features from open_clip's own, relative to the largest feature."""
    network: Any = random_network(name, SEED).eval()
    image, text = to_towers(network)
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.randn(IMAGES, 3, image.image_size, image.image_size, generator=generator)
    texts = _texts(network, generator)
    pairs = [(image(pixels), network.encode_image(pixels)), (text(texts), network.encode_text(texts))]
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


def markdown(verdicts: Sequence[Verdict], version: str, compare_below: float = 0.0) -> str:
    """The Markdown of docs/models.md."""
    fits = [v for v in verdicts if v.works]
    others = [v for v in verdicts if not v.works]
    compared = compare_below > 0
    rows = [
        f"| {v.name} | {v.layers} x {v.heads}, {v.image_size} | {v.parameters or 0:.1f} |"
        + (f" {'–' if v.difference is None else f'{v.difference:.1e}'} |" if compared else "")
        for v in fits
    ]
    return PAGE.format(
        version=version,
        options=f" --compare-below {compare_below:g}" if compared else "",
        works=len(fits),
        count=len(verdicts),
        refused=len(others),
        compared=COMPARED.format(images=IMAGES, below=compare_below) if compared else "",
        head=" difference |" if compared else "",
        rule=" ---: |" if compared else "",
        fits="\n".join(rows),
        others="\n".join(f"| {v.name} | {v.reason} |" for v in others),
    )


def _texts(network: nn.Module, generator: torch.Generator) -> torch.Tensor:
    """Random token ids, with the end-of-text token (the highest id) somewhere in the second half."""
    model: Any = network
    texts = torch.randint(1, model.vocab_size - 1, (IMAGES, model.context_length), generator=generator)
    ends = torch.randint(model.context_length // 2, model.context_length, (IMAGES, 1), generator=generator)
    return texts.scatter(1, ends, model.vocab_size - 1)


def _reason(message: str, name: str) -> str:
    """The reason from a message of the form "NAME does not fit: REASON. What dear needs."."""
    return message.removeprefix(f"{name} does not fit: ").split(". ")[0].rstrip(".")
