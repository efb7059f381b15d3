"""How the ensemble is fitted: its members to all images, and their weights to left-out ones. `Ensemble` says
what is computed, and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.methods.ensemble.members import fit_members, list_members, list_regressions
from dear.methods.names import NameCost, NameMargins, measure_names, split_by_name
from dear.methods.shared import find_basis
from dear.methods.stacking import SCORES_AT_ONCE, fit_term_weights

FOLDS = 5
"""Parts of the images that are left out in turn. To part them anew, and again, gave no better weights."""
MOST_SCORES = 20_000_000
"""Images x classes that the weights are fitted to. With more, images that are spread evenly do: there are few
weights, and each score takes memory for each classifier."""


@dataclass(frozen=True)
class Fit:
    """The fitted ensemble, of the classes with images.

    Attributes:
        weight, bias: The sum of the weighted members but the text.
        text_weight: The weight of the scores by text.
        weights: Of each member, by name.
        parts: The share of text and of images in the scores of left-out images: of their standard deviation
            over classes.
    """

    weight: Float[Tensor, "class embed"]
    bias: Float[Tensor, "class"]
    text_weight: float
    weights: dict[str, float]
    parts: tuple[float, float]
    name_cost: NameCost


def fit(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    text: Float[Tensor, "class embed"],
    order: Int[Tensor, "class"],
    groups: Int[Tensor, "item"] | None,
    penalty: float,
    views: Sequence[Float[Tensor, "item embed"]] = (),
) -> Fit:
    """Fit the members to all images, some to further ``views`` of these too, and their weights to images that
    are left out with their groups. Each class has images. ``text`` is times 1 / tau; ``order`` is the place
    of each class in an order that does not depend on the numbers of classes.
    """
    classes = len(text)
    # Nothing outside of the span of the images changes the scores of these, and few images span little.
    all_views = torch.stack([features, *views], dim=1)
    basis = find_basis(all_views.flatten(0, 1))
    in_basis, by_text = all_views @ basis, (text @ basis, text.new_zeros(classes))
    regressions = list_regressions(len(features), basis.shape[1], classes)
    fitted = fit_members(in_basis, labels, classes, regressions)
    fold_of = draw_folds(features, labels, order, groups)
    rounds = [(fold_of != fold, fold_of == fold) for fold in fold_of[fold_of >= 0].unique()]
    # A group of several classes may hold all images of one.
    rounds = [(kept, left_out) for kept, left_out in rounds if len(labels[kept].unique()) == classes]
    is_scored = sum((left_out for _, left_out in rounds), torch.zeros_like(labels)) > 0
    is_left_out = bool(rounds)
    if not is_left_out:
        is_scored = torch.ones_like(is_scored)
        rounds = [(is_scored, is_scored)]
    is_scored &= spread_evenly(features, -(-len(features) * classes // MOST_SCORES))
    terms = features.new_empty(1 + len(fitted), int(is_scored.sum()), classes)
    for kept, left_out in rounds:
        scored = left_out & is_scored
        rows = scored[is_scored]
        members = [by_text, *fit_members(in_basis[kept], labels[kept], classes, regressions)]
        for term, (weight, bias) in zip(terms, members, strict=True):
            term[rows] = (in_basis[scored, 0] @ weight.T + bias).log_softmax(dim=1)
    if is_left_out:
        weights = fit_weights(terms, labels[is_scored], penalty)
        name_cost = measure_name_cost(torch.tensordot(weights, terms, dims=1), terms[0], labels[is_scored])
    else:  # those of the means, and of the text by how well it tells the images
        weights = terms.new_zeros(len(terms))
        weights[:1] = fit_weights(terms[:1], labels, penalty)
        weights[1], name_cost = 1.0, NameCost()
    summed = weights[0] * terms[0], torch.tensordot(weights[1:], terms[1:], dims=1)
    deviations = torch.stack([part.std(dim=1, correction=0).mean() for part in summed])
    parts = deviations / deviations.sum() if deviations.any() else torch.ones_like(deviations) / 2
    of_images = weights[1:].tolist()
    weight = sum(share * matrix for share, (matrix, _) in zip(of_images, fitted, strict=True)) @ basis.T
    bias = sum(share * offset for share, (_, offset) in zip(of_images, fitted, strict=True))
    names = dict(
        zip(("text", *list_members(regressions, has_views=bool(views))), weights.tolist(), strict=True)
    )
    return Fit(weight, bias, float(weights[0]), names, (float(parts[0]), float(parts[1])), name_cost)


def spread_evenly(features: Float[Tensor, "item embed"], step: int) -> Bool[Tensor, "item"]:
    """One in so many images, whatever their order is."""
    return features[:, 0].argsort(stable=True).argsort() % step == 0


def fit_weights(
    terms: Float[Tensor, "term item class"], labels: Int[Tensor, "item"], penalty: float
) -> Float[Tensor, "term"]:
    """The weights of the terms, at least 0 (`fit_term_weights`)."""
    rows = max(1, SCORES_AT_ONCE // terms.shape[2])
    batches = [*zip(terms.split(rows, dim=1), labels.split(rows), strict=True)]
    return fit_term_weights(lambda: batches, terms.new_zeros(len(terms)), penalty)


def draw_folds(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    order: Int[Tensor, "class"],
    groups: Int[Tensor, "item"] | None,
) -> Int[Tensor, "item"]:
    """The fold of each image: the groups of a class are dealt to folds in the order of their first feature,
    so that the order of images and classes does not matter. The only group of a class is in none (-1).
    """
    leaders = _find_leaders(features, groups)
    numbers = torch.arange(len(leaders), device=leaders.device)
    by_content = features[:, 0].argsort(stable=True)
    by_content = by_content[leaders[by_content] == by_content]
    in_classes = by_content[labels[by_content].argsort(stable=True)]
    counts = torch.bincount(labels[in_classes], minlength=len(order))
    if not (counts > 1).any():
        return torch.full_like(labels, -1)
    folds = min(FOLDS, int(counts[counts > 1].median()))
    starts = (counts.cumsum(dim=0) - counts)[labels[in_classes]]
    fold_of = torch.zeros_like(labels)
    fold_of[in_classes] = numbers[: len(in_classes)] - starts + order.to(numbers)[labels[in_classes]]
    fold_of = (fold_of % folds).masked_fill(counts[labels] < 2, -1)
    return fold_of[leaders]


def _find_leaders(
    features: Float[Tensor, "item embed"], groups: Int[Tensor, "item"] | None
) -> Int[Tensor, "item"]:
    """The image of each one's group whose first feature is the least."""
    if groups is None:
        return torch.arange(len(features), device=features.device)
    leaders, numbers = dict[int, int](), groups.tolist()
    for item in features[:, 0].argsort(stable=True).tolist():
        leaders.setdefault(numbers[item], item)
    return torch.tensor([leaders[number] for number in numbers], device=features.device)


def level_names(
    known: Float[Tensor, "item class"], of_known: Float[Tensor, "item class"]
) -> Float[Tensor, "item 1"]:
    """What is added to the score by text of a class by its name alone, beside classes with images of scores
    ``known`` and, by text, ``of_known``: the odds of it against all of them stay those by text.
    """
    return known.logsumexp(dim=1, keepdim=True) - of_known.logsumexp(dim=1, keepdim=True)


def measure_name_cost(
    scores: Float[Tensor, "item class"], by_text: Float[Tensor, "item class"], labels: Int[Tensor, "item"]
) -> NameCost:
    """The cost of a name, of each class in turn beside all others."""
    classes = scores.shape[1]
    if classes < 3:  # beside a single class, nothing is to be lost
        return NameCost()
    taken, names, own = list[Tensor](), list[Tensor](), list[Tensor]()
    for rows in torch.arange(len(labels), device=labels.device).split(max(1, SCORES_AT_ONCE // classes)):
        margin, is_right = _margins_of_names(scores[rows], by_text[rows], labels[rows])
        is_taken = is_right & (margin > 0)
        taken.append(margin[is_taken])
        names.append(is_taken.nonzero()[:, 1])
        own.append(margin.gather(1, labels[rows, None])[:, 0])
    of_names = split_by_name(torch.cat(taken), torch.cat(names), classes)
    of_own = split_by_name(torch.cat(own), labels, classes)
    pairs = [len(labels) - len(each) for each in of_own]
    return measure_names([NameMargins(*each) for each in zip(of_names, of_own, pairs, strict=True)])


def _margins_of_names(
    scores: Float[Tensor, "item class"], by_text: Float[Tensor, "item class"], labels: Int[Tensor, "item"]
) -> tuple[Float[Tensor, "item class"], Bool[Tensor, "item class"]]:
    """By how much the score of each class by its name is above the best of all others, and whether an image
    of these is right without it.
    """
    best = scores.max(dim=1, keepdim=True)
    second = scores.scatter(1, best.indices, -torch.inf).max(dim=1, keepdim=True)
    is_best: Bool[Tensor, "item class"] = torch.arange(scores.shape[1], device=scores.device) == best.indices
    without = second.values.where(is_best, best.values)
    margin = by_text + _without_each(scores) - _without_each(by_text) - without
    columns = labels[:, None]
    is_right = ((best.indices == columns) & ~is_best) | ((second.indices == columns) & is_best)
    return margin, is_right


def _without_each(scores: Float[Tensor, "item class"]) -> Float[Tensor, "item class"]:
    """The logarithm of the sum of the exponentials of all classes but each."""
    total, best = scores.logsumexp(dim=1, keepdim=True), scores.argmax(dim=1, keepdim=True)
    rest: Tensor = total + torch.log1p(-(scores - total).exp())
    # Where one class has nearly all of the sum, the difference would be rounding.
    return rest.scatter(1, best, scores.scatter(1, best, -torch.inf).logsumexp(dim=1, keepdim=True))


def add_names(
    weighted: Float[Tensor, "term item class"],
    by_text: Float[Tensor, "item class"],
    has_images: Bool[Tensor, "class"],
    threshold: Tensor | float,
) -> Float[Tensor, "term item class"]:
    """The weighted terms of the scores, text and images, of which classes without images have what a name has
    beside the others.
    """
    known, of_known = (
        scores.masked_fill(~has_images, -torch.inf) for scores in (weighted.sum(dim=0), by_text)
    )
    by_name = by_text + level_names(known, of_known) - threshold
    names = torch.stack([by_name, torch.zeros_like(by_name)])
    return weighted.where(has_images, names)
