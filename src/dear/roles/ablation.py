"""Mean ablation: zero-shot accuracy with some heads' contributions replaced by their means over the images.

Source: Gandelsman et al., ICLR 2024, section on mean ablations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.data.dataset import Images
from dear.errors import SettingsError
from dear.progress import Progress, silent
from dear.roles.decompose import batches
from dear.roles.entropy import Head
from dear.roles.table import RoleTable


@dataclass(frozen=True)
class Ablation:
    """Zero-shot accuracies (fractions) of the whole model and with each set of heads ablated."""

    whole: float
    ablated: dict[str, float]
    images: int


def by_head(clip: Clip, layers: Sequence[int]) -> dict[str, list[Head]]:
    """One set per head of the layers."""
    return {
        f"layer {layer} head {head}": [(layer, head)] for layer in layers for head in range(clip.image.heads)
    }


def by_layer(clip: Clip, layers: Sequence[int]) -> dict[str, list[Head]]:
    """One set per layer, of all its heads."""
    return {f"layer {layer}": [(layer, head) for head in range(clip.image.heads)] for layer in layers}


def by_role(table: RoleTable) -> dict[str, list[Head]]:
    """One set per role, and one per attribute of its core heads."""
    sets: dict[str, list[Head]] = {}
    for one in table.heads:
        sets.setdefault(one.role, []).append((one.layer, one.head))
        if one.attribute:
            sets.setdefault(f"core: {one.attribute}", []).append((one.layer, one.head))
    return dict(sorted(sets.items()))


def head_set(names: Sequence[str]) -> dict[str, list[Head]]:
    """One set of the heads given as LAYER.HEAD, such as 9.0. Raises SettingsError for any other form."""
    heads = []
    for name in names:
        layer, dot, head = str(name).partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal()):
            raise SettingsError(f"{name!r} is not a head: write LAYER.HEAD, such as 9.0.")
        heads.append((int(layer), int(head)))
    return {", ".join(str(name) for name in names): heads}


@torch.no_grad()
def mean_ablation(
    clip: Clip,
    images: Images,
    text: Float[Tensor, "class embed"],
    sets: Mapping[str, Sequence[Head]],
    *,
    batch: int = 100,
    progress: Progress = silent,
) -> Ablation:
    """Zero-shot accuracy with each set's contributions replaced by their means over the same images.

    Takes two passes over the images, the first for the means, in constant memory. Raises SettingsError for no
    images, no sets, an empty set, or a head that does not exist.
    """
    for name, heads in sets.items():
        for layer, head in heads:
            if not (1 <= layer <= clip.image.depth and 0 <= head < clip.image.heads):
                raise SettingsError(
                    f"there is no layer {layer} head {head}: layers are 1 to {clip.image.depth}, "
                    f"heads 0 to {clip.image.heads - 1}."
                )
        if not heads:
            raise SettingsError(f"the set of heads {name!r} is empty.")
    if not sets or not len(images):
        raise SettingsError("mean ablation needs images and at least one set of heads.")
    layers = sorted({layer for heads in sets.values() for layer, _ in heads})
    masks = torch.zeros(len(sets), len(layers), clip.image.heads).to(clip.image.projection)
    for at, heads in enumerate(sets.values()):
        for layer, head in heads:
            masks[at, layers.index(layer), head] = 1
    steps, done = 2 * len(images), 0
    total = torch.zeros(len(layers), clip.image.heads, clip.image.embed_dim, dtype=torch.float64)
    for pixels in batches(clip, images, batch):
        total += head_contributions(clip.image, pixels, layers).heads.sum(dim=0).double().cpu()
        progress("images, twice", done := done + len(pixels), steps)
    mean = (total / len(images)).to(clip.image.projection)
    right = torch.zeros(1 + len(sets), dtype=torch.int64)
    start = 0
    for pixels in batches(clip, images, batch):
        terms = head_contributions(clip.image, pixels, layers)
        change = torch.einsum("slh,blhe->sbe", masks, mean - terms.heads)
        embedded = torch.cat([terms.total()[None], terms.total()[None] + change])
        labels = images.labels[start : start + len(pixels)].to(text.device)
        # The norm of an image feature scales all its scores alike and does not change the best one.
        right += ((embedded @ text.T).argmax(dim=2) == labels).sum(dim=1).cpu()
        start += len(pixels)
        progress("images, twice", done := done + len(pixels), steps)
    accuracy = (right.double() / len(images)).tolist()
    return Ablation(accuracy[0], dict(zip(sets, accuracy[1:], strict=True)), len(images))
