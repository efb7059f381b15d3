"""Classes by name alone beside classes with evidence: what they score, take and find in a bundle. [ours]"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.methods.dear_plus.solvers import Terms, in_batches

NAME_COST = 0.005
"""Share of left-out images of the other classes that a class by its name alone may take: new ones lose up to
twice as much on average, for half of the other classes are all that stand against it here.
"""


@dataclass(frozen=True)
class NameCost:
    """What a class by its name alone does beside the others, measured on left-out images: each half of the
    classes with images is scored by name in turn, each class of it alone beside the other half.

    Attributes:
        threshold: What is taken from its score, so that it takes at most `NAME_COST` of the others' images.
        taken: The share of the images of other classes that were right and become the class.
        found: The share of its own images that become it.
        images: How many images were left out.
    """

    threshold: float
    taken: float
    found: float
    images: int


def score(
    first: Float[Tensor, "item class"],
    second: Float[Tensor, "item class"],
    known: Bool[Tensor, "class"],
    threshold: float,
) -> Float[Tensor, "item class"]:
    """Scores as of a bundle, from those by the first and the second strengths: known classes do not depend on
    the others, which are beside them by name alone (`level_names`).
    """
    if known.all() or not known.any():
        return first if known.all() else second
    return first.where(known, second + level_names(first, second, known) - threshold)


def level_names(
    first: Float[Tensor, "item class"], second: Float[Tensor, "item class"], known: Bool[Tensor, "class"]
) -> Float[Tensor, "item 1"]:
    """What is added to the scores of classes by name alone, which have the second strengths, beside known
    classes with the first ones: the odds of each against all known classes stay those by the second ones.
    """
    first, second = (scores.masked_fill(~known, -torch.inf) for scores in (first, second))
    return first.logsumexp(dim=1, keepdim=True) - second.logsumexp(dim=1, keepdim=True)


def measure_name_cost(
    terms: Sequence[Terms],
    labels: Int[Tensor, "item"],
    known: Bool[Tensor, "setting class"],
    strengths: Float[Tensor, "use term"],
    *,
    is_single: bool,
) -> NameCost:
    """The cost of a name, and the least threshold, from 0 on, that keeps it below `NAME_COST`. By the second
    strengths alone where most classes have a single image.
    """
    has_images, pairs = torch.bincount(labels, minlength=known.shape[1]) > 0, 0
    taken, found = [strengths.new_zeros(0)], [strengths.new_zeros(0)]
    for part, is_known in zip(terms, known, strict=False):
        names = has_images & ~is_known
        if not is_known.any() or not names.any():
            continue
        for rows, values in in_batches(part, len(labels), labels.device):
            first, second = (torch.tensordot(used, values, dims=1) for used in strengths)
            first = second if is_single else first
            best = first.masked_fill(~is_known, -torch.inf).max(dim=1)
            margins = second + level_names(first, second, is_known) - best.values[:, None]
            of_names, is_right = names[labels[rows]], best.indices == labels[rows]
            found.append(margins.gather(1, labels[rows, None])[of_names, 0])
            of_others = margins[is_right & ~of_names][:, names]
            taken.append(of_others[of_others > 0])  # a threshold is never below
            pairs += int(is_known[labels[rows]].sum()) * int(names.sum())
    if not pairs:
        return NameCost(0.0, 0.0, 0.0, 0)
    ranked, of_own = torch.cat(taken).sort(descending=True).values, torch.cat(found)
    at = int(NAME_COST * pairs)
    threshold = float(ranked[at]) if at < len(ranked) else 0.0
    shares = int((ranked > threshold).sum()) / pairs, float((of_own > threshold).double().mean())
    return NameCost(threshold, *shares, len(of_own))
