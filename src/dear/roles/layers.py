"""Which layers' heads carry the image embedding: mean ablation by layer, without labels.

The heads of a layer are replaced by their means over the images, as in `dear.roles.ablation`, and the cosine
of the embedding with the unchanged one is taken: 1 if these heads do not matter. CLIP's embeddings of any two
images are alike, so a cosine does not fall to 0; it is judged against that of the embedding with the mean
embedding, which holds nothing of the image. ``lost`` is 0 at no change and 1 there.

Source of the ablation: Gandelsman et al., ICLR 2024, section on mean ablations; the measure is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cosine_similarity

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.errors import SettingsError
from dear.progress import Progress, silent
from dear.roles.decompose import batches
from dear.roles.world import spread

SAMPLE = 500
"""Images that the curve is measured on, at most: 5% more time for 10,000 images. The standard error of a mean
cosine is below 0.01 then, that of an accuracy about two points.
"""
LITTLE = 0.5
"""Below this loss roles of the analysed heads will do little [ours]: the larger part of what distinguishes
the embeddings of images then comes from elsewhere, where no mask of these heads reaches. Without the heads of
its last third of layers the tiny CLIP loses 0.98; random weights, where every layer adds about the same, lose
0.30 to 0.34 (docs/how-to/roles.md).
"""


@dataclass(frozen=True)
class Ablated:
    """Embeddings with some heads replaced by their means over the images.

    Attributes:
        cosine: Mean cosine with the unchanged embeddings.
        lost: (1 - cosine) / (1 - cosine with the mean embedding): about 0 to 1.
        accuracy: Zero-shot accuracy, a fraction; None without class names.
    """

    cosine: float
    lost: float
    accuracy: float | None = None


@dataclass(frozen=True)
class LayerAblation:
    """A layer (counted from 1): its own heads ablated, and the heads from it to the last layer."""

    layer: int
    alone: Ablated
    onwards: Ablated


@dataclass(frozen=True)
class LayerCurve:
    """Mean ablation by layer.

    Attributes:
        images: How many images were used.
        floor: Mean cosine of the embeddings with the mean embedding.
        whole: Zero-shot accuracy of the unchanged model; None without class names.
        layers: All layers of the tower, first to last.
        analysed: All heads of the analysed layers ablated.
        which: The analysed layers.
    """

    images: int
    floor: float
    whole: float | None
    layers: tuple[LayerAblation, ...]
    analysed: Ablated
    which: tuple[int, ...]

    @property
    def carry_little(self) -> bool:
        """Whether the embedding hardly depends on the analysed heads."""
        return self.analysed.lost < LITTLE

    def warning(self) -> str | None:
        """One line if the embedding hardly depends on the analysed heads."""
        if not self.carry_little:
            return None
        return (
            "Roles will do little, for the analysed heads carry little of the embedding: with those of "
            f"{layers_in_words(self.which)} replaced by their means over the images, "
            f"{100 * self.analysed.lost:.0f}% of it is lost (below {100 * LITTLE:.0f}%)."
        )


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
    analysed: Sequence[int],
    text: Float[Tensor, "class embed"] | None = None,
    *,
    sample: int = SAMPLE,
    batch: int = 50,
    progress: Progress = silent,
) -> LayerCurve:
    """Ablate the heads of each layer, of each layer and all later ones, and of the ``analysed`` layers.

    Takes one pass over ``sample`` of the images, evenly spread; means are taken over the same images, and
    contributions by the "exact" convention, whatever the roles were found with. ``text`` are the features of
    the images' classes: accuracies are then measured, too, as by `dear.roles.ablation.mean_ablation`. Raises
    SettingsError for no images or no layers.
    """
    if not len(images) or not analysed:
        raise SettingsError("the ablation by layer needs images and layers.")
    chosen = Subset(images, spread(len(images), sample))
    depth, done = clip.image.depth, 0
    parts, embedded = [], []
    for pixels in batches(clip, chosen, batch):
        terms = head_contributions(clip.image, pixels, range(1, depth + 1))
        parts.append(terms.heads.sum(dim=2).cpu().double())
        embedded.append(terms.total().cpu().double())
        progress("layers", done := done + len(pixels), len(chosen))
    layers, whole = torch.cat(parts), torch.cat(embedded)
    change = layers.mean(dim=0) - layers
    mean = whole.mean(dim=0, keepdim=True)
    floor = float(cosine_similarity(whole, mean.expand_as(whole)).mean())
    known = None if text is None else (text.cpu().double(), chosen.labels.cpu())

    def ablated(of: Sequence[int]) -> Ablated:
        changed = whole + change[:, [layer - 1 for layer in of]].sum(dim=1)
        cosine = float(cosine_similarity(whole, changed).mean())
        # Images that are all alike have nothing to lose.
        lost = (1 - cosine) / (1 - floor) if 1 - floor > 1e-9 else 0.0
        return Ablated(cosine, max(lost, 0.0), _accuracy(changed, known))

    curve = tuple(
        LayerAblation(layer, ablated([layer]), ablated(range(layer, depth + 1)))
        for layer in range(1, depth + 1)
    )
    which = tuple(sorted(analysed))
    return LayerCurve(len(chosen), floor, _accuracy(whole, known), curve, ablated(which), which)


def _accuracy(
    embedded: Float[Tensor, "item embed"],
    known: tuple[Float[Tensor, "class embed"], Int[Tensor, "item"]] | None,
) -> float | None:
    if known is None:
        return None
    text, labels = known
    return float(((embedded @ text.T).argmax(dim=1) == labels).double().mean())
