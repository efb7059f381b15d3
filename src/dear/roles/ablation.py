"""Mean ablation: heads' contributions replaced by their means over the images.

`mean_ablation` measures zero-shot accuracy for sets of heads. `layer_curve` needs no labels: it takes the
cosine of the embedding with the unchanged one, which is 1 if the heads of a layer do not matter. CLIP's
embeddings of any two images are alike, so a cosine does not fall to 0; it is judged against that of the
embedding with the mean embedding, which holds nothing of the image. ``lost`` is 0 at no change and 1 there.

Source: Gandelsman et al., ICLR 2024, section on mean ablations; the measure of `layer_curve` is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.errors import SettingsError
from dear.progress import Progress, silent
from dear.roles.decompose import batches, evenly_spaced
from dear.roles.table import Head, RoleTable

SAMPLE = 500
"""Images that the curve is measured on, at most: 5% more time for 10,000 images. The standard error of a mean
cosine is below 0.01 then.
"""
SET_VALUES = 2**29
"""Of the embeddings and scores of a batch without each set of heads: 2 GiB."""
LITTLE = 0.5
"""Below this loss roles of the analyzed heads will do little [ours]: the larger part of what distinguishes
the embeddings of images then comes from elsewhere, where no mask of these heads reaches. Without the heads of
its last third of layers the tiny CLIP loses 0.98; random weights, where every layer adds about the same, lose
0.30 to 0.34 (docs/roles.md).
"""


def head_sets(clip: Clip, by: Literal["head", "layer"], layers: Sequence[int]) -> dict[str, list[Head]]:
    """One set for each head of the layers, or for each layer, of all its heads."""
    heads = range(clip.image.heads)
    if by == "layer":
        return {f"layer {layer}": [(layer, head) for head in heads] for layer in layers}
    return {f"layer {layer} head {head}": [(layer, head)] for layer in layers for head in heads}


def sets_by_role(table: RoleTable) -> dict[str, list[Head]]:
    """One set for each role, and one for each attribute, of its core heads."""
    sets: dict[str, list[Head]] = {}
    for head in table.heads:
        sets.setdefault(head.role, []).append((head.layer, head.head))
        if head.attribute:
            sets.setdefault(f"core: {head.attribute}", []).append((head.layer, head.head))
    return dict(sorted(sets.items()))


def head_set(names: Sequence[str]) -> dict[str, list[Head]]:
    """One set of the heads given as LAYER.HEAD, such as 9.0. Raises SettingsError for any other form."""
    heads = []
    for name in names:
        layer, dot, head = str(name).partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal()):
            raise SettingsError(f"{name!r} is not a head: write LAYER.HEAD, such as 9.0.")
        heads.append((int(layer), int(head)))
    return {", ".join(names): heads}


@torch.no_grad()
def mean_ablation(
    clip: Clip,
    images: Images,
    text: Float[Tensor, "class embed"],
    sets: Mapping[str, Sequence[Head]],
    *,
    batch: int = 100,
    progress: Progress = silent,
) -> tuple[float, dict[str, float]]:
    """Zero-shot accuracy (a fraction) of the whole model, and by set with its heads' contributions replaced
    by their means over the same images.

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
    batch = min(batch, max(1, SET_VALUES // (len(sets) * max(text.shape))))
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
    return accuracy[0], dict(zip(sets, accuracy[1:], strict=True))


@dataclass(frozen=True)
class Ablated:
    """Embeddings with some heads replaced by their means over the images.

    Attributes:
        cosine: Mean cosine with the unchanged embeddings.
        lost: (1 - cosine) / (1 - cosine with the mean embedding): about 0 to 1.
    """

    cosine: float
    lost: float


@dataclass(frozen=True)
class LayerAblation:
    """A layer (counted from 1) with its heads ablated alone, and with the heads from it to the last layer."""

    layer: int
    alone: Ablated
    onwards: Ablated


@dataclass(frozen=True)
class LayerCurve:
    """Mean ablation by layer.

    Attributes:
        images: How many images were used.
        floor: Mean cosine of the embeddings with the mean embedding.
        layers: All layers of the tower, first to last.
        analyzed: All heads of the analyzed layers ablated.
        which: The analyzed layers.
    """

    images: int
    floor: float
    layers: tuple[LayerAblation, ...]
    analyzed: Ablated
    which: tuple[int, ...]

    @property
    def carry_little(self) -> bool:
        """True if the embedding hardly depends on the analyzed heads."""
        return self.analyzed.lost < LITTLE


def layers_in_words(layers: Sequence[int]) -> str:
    """ "layers 9 to 12", "layers 2, 5" or "layer 7"."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if [*layers] == [*range(layers[0], layers[-1] + 1)]:
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(map(str, layers))}"


@torch.no_grad()
def layer_curve(
    clip: Clip,
    images: Images,
    analyzed: Sequence[int],
    *,
    sample: int = SAMPLE,
    batch: int = 50,
    progress: Progress = silent,
) -> LayerCurve:
    """Ablate the heads of each layer, of each layer and all later ones, and of the ``analyzed`` layers.

    Takes one pass over ``sample`` of the images, evenly spread; means are taken over the same images, and
    contributions by the "exact" convention, whatever the roles were found with. Raises SettingsError for no
    images or no layers.
    """
    if not len(images) or not analyzed:
        raise SettingsError("the ablation by layer needs images and layers.")
    subset = Subset(images, evenly_spaced(len(images), sample))
    depth, done = clip.image.depth, 0
    parts, embeddings = [], []
    for pixels in batches(clip, subset, batch):
        terms = head_contributions(clip.image, pixels, range(1, depth + 1))
        parts.append(terms.heads.sum(dim=2).cpu().double())
        embeddings.append(terms.total().cpu().double())
        progress("layers", done := done + len(pixels), len(subset))
    layers, unchanged = torch.cat(parts), torch.cat(embeddings)
    change = layers.mean(dim=0) - layers
    mean = unchanged.mean(dim=0, keepdim=True)
    floor = float(cosine_similarity(unchanged, mean.expand_as(unchanged)).mean())

    def ablated(of: Sequence[int]) -> Ablated:
        changed = unchanged + change[:, [layer - 1 for layer in of]].sum(dim=1)
        cosine = float(cosine_similarity(unchanged, changed).mean())
        # Images that are all alike have nothing to lose.
        lost = (1 - cosine) / (1 - floor) if 1 - floor > 1e-9 else 0.0
        return Ablated(cosine, max(lost, 0.0))

    curve = [
        LayerAblation(layer, ablated([layer]), ablated(range(layer, depth + 1)))
        for layer in range(1, depth + 1)
    ]
    which = tuple(sorted(analyzed))
    return LayerCurve(len(subset), floor, tuple(curve), ablated(which), which)
