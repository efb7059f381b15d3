"""Whether an image looks like any class that has training images: the evidence of DeAR+ without roles, fitted
beside any method on the frozen image features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dear.errors import DataError
from dear.methods.dear_plus.fitting import LEAST_IMAGES
from dear.methods.dear_plus.gaussian import LabeledGaussians
from dear.stats import LEVEL, rank_interval, share_interval
from dear.text import plural

PREFIX = "known."
"""What the names of its tensors begin with in the file of a bundle."""
SPREAD = 1.0
"""rho: the variance of the means of classes over that within a class, as DeAR+ has it."""
FOLDS = 5
"""Parts of images that are on their own, each of which is left out of one fit."""
NEGLIGIBLE = 1e-6  # of rounding, in groups
NUMBERS = ("classes", "fold", "images", "groups")
"""The tensors of whole numbers."""
QUANTILES = 1001
"""Values that stand for the evidence of all left-out images of a fold."""


@dataclass(frozen=True)
class OutlierModel:
    """Classes as Gaussians of one covariance C, fitted without each fold of the training images. An image of
    none of them is N(mu, (1 + rho) C). A new image of a class of n images is N(mu_k, (1 + 1 / n) C), so with
    D^2 its squared distance to mu_k by C, its evidence for the class is, up to a constant,

        (log(1 + rho) d + D_0^2 / (1 + rho) - D_k^2 n / (n + 1)) / 2,    D_0 its distance to mu

    The largest over classes is compared with that of the fold's own images, which its fit has not seen
    either: a new image is one more of them. The images of a group count together as one.

    Attributes:
        classes: Their numbers: those of at least two images.
        means, center, whitening, freedom: W' (mu_k - mu), mu, W with C^-1 = W W', and d of each fit.
        counts: How many groups of each class each fit has.
        left_out: The largest evidence of each left-out image, thinned to evenly spaced quantiles if there
            are many.
        fold: The fit that each is of.
        weight: The share of a group that each is, or of several that it stands for.
        images, groups: How many images were left out, and of how many groups; an image on its own is one.
    """

    classes: Int[Tensor, "class"]
    means: Float[Tensor, "fold class embed"]
    center: Float[Tensor, "fold embed"]
    whitening: Float[Tensor, "fold embed embed"]
    freedom: Float[Tensor, "fold"]
    counts: Float[Tensor, "fold class"]
    left_out: Float[Tensor, "quantile"]
    fold: Int[Tensor, "quantile"]
    weight: Float[Tensor, "quantile"]
    images: Int[Tensor, ""]
    groups: Int[Tensor, ""]

    def threshold(self, share: float) -> float:
        """The `rank` up to which an image is refused, so that of new images of the classes at most ``share``
        is on average; minus infinity where that needs more groups.

        Of n + 1 groups that come in any order, an image of the last has, with probability at most
        k / (n + 1), at most k - 1 of the others below it, each group counted by its share of images.
        Source: Lee, Barber and Willett, JRSS B 87 (2025), for groups; with folds, Vovk, Annals of Mathematics
        and Artificial Intelligence 74 (2015), which adds that the bound may fail by dependent folds, by a
        factor below 2; simulated, it does not.
        """
        limit = share * (int(self.groups) + 1) - 1
        return limit + NEGLIGIBLE if limit > -NEGLIGIBLE and share else -math.inf

    def evidence(self, features: Float[Tensor, "batch embed"]) -> Float[Tensor, "fold batch class"]:
        """For each of the classes by each fit, of unit image features of the frozen backbone; minus infinity
        for a class that a fit has no image of.
        """
        fits = zip(self.means, self.center, self.whitening, self.freedom, self.counts, strict=True)
        return torch.stack([_evidence(features, *fit) for fit in fits])

    def rank(self, features: Float[Tensor, "batch embed"]) -> Float[Tensor, "batch"]:
        """How many groups of left-out images have at most the evidence of each image, each by its fit."""
        return self.rank_among(self.evidence(features).amax(dim=2))

    def rank_among(self, largest: Float[Tensor, "fold batch"]) -> Float[Tensor, "batch"]:
        """`rank` of images by their largest evidence in each fit."""
        return (self.left_out <= largest.T[:, self.fold]).to(self.weight) @ self.weight

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], classes: int) -> "OutlierModel":
        """From `tensors` whose names begin with `PREFIX`, and the number of all classes. Raises DataError if
        they do not fit.
        """
        by_name = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        sizes = {name: [*tensor.shape, 0, 0] for name, tensor in by_name.items()}
        (modeled, *_), (quantiles, *_), (folds, embed, *_) = (
            sizes.get(name, [0, 0]) for name in ("classes", "left_out", "center")
        )
        shapes = {
            "classes": [modeled], "means": [folds, modeled, embed], "center": [folds, embed],
            "whitening": [folds, embed, embed], "freedom": [folds], "counts": [folds, modeled],
            "left_out": [quantiles], "fold": [quantiles], "weight": [quantiles], "images": [], "groups": [],
        }  # fmt: skip
        if {name: [*tensor.shape] for name, tensor in by_name.items()} != shapes or any(
            tensor.is_floating_point() == (name in NUMBERS) or not tensor.isfinite().all()
            for name, tensor in by_name.items()
        ):
            raise DataError("the tensors of its known classes do not fit together: fit it again.")
        numbers, fold = by_name["classes"].tolist(), by_name["fold"]
        if not quantiles or sorted({*numbers} & {*range(classes)}) != numbers:
            raise DataError("its known classes are not among its classes.")
        if not 0 <= int(fold.min()) <= int(fold.max()) < folds:
            raise DataError("images of its known classes are left out of no fit.")
        return cls(**by_name)

    def to(self, device: torch.device) -> "OutlierModel":
        """The same on a device."""
        return OutlierModel(**{name: tensor.to(device) for name, tensor in self.tensors().items()})


def describe_refusal(
    model: OutlierModel | None, share: float, refused: float | None = None, tested: int = 0
) -> list[str]:
    """What share of images of the classes will be refused, in a line, or that none will be although a share
    may; nothing if none may. A further line if clearly more were ``refused`` (a share) of ``tested`` images.
    """
    if not share:
        return []
    of_two = f"classes of {LEAST_IMAGES} or more"
    if model is None:
        return [f'No image will be "none of these": that needs training images in two {of_two}.']
    groups, limit = int(model.groups), model.threshold(share)
    is_alone = groups == int(model.images)
    noun = "image" if is_alone else "group"
    if limit < 0:
        needed = plural(math.ceil(1 / share - NEGLIGIBLE) - 1, noun)
        return [f'No image will be "none of these": that needs {needed} in {of_two}, and there are {groups}.']
    rank = 1 + (math.floor(limit) if is_alone else limit)
    low, high = rank_interval(rank, groups)
    interval = f"({LEVEL:.0%}: {low:.1%} to {high:.1%})"
    most = "" if is_alone else "at most "
    expected = f"{most}{rank / (groups + 1):.1%} of new images of the classes {interval}"
    lines = [f'Expected to be "none of these": {expected}.']
    if refused is not None and share_interval(round(refused * tested), tested)[0] > high:
        lines.append(
            f"Of the test images clearly more are ({refused:.1%}), so new images may be too: "
            "training images that resemble each other, as those of a clip, a site or a day, make the "
            "threshold too high. --dataset.group keeps them together."
        )
    return lines


class Refusal(nn.Module):
    """Says which images are of none of some classes: those whose rank among left-out images is at most a
    threshold. Of a class by name alone it cannot be told: an image predicted to be of one is not refused.
    """

    has_evidence: Bool[Tensor, "class"]

    def __init__(
        self, model: OutlierModel, names: Sequence[str], classes: Sequence[str], threshold: float
    ) -> None:
        """Judge among the candidates ``classes``; ``names`` are all class names, which `OutlierModel.classes`
        indexes.
        """
        super().__init__()
        modeled = [names[number] for number in model.classes.tolist()]
        rows = [row for row, name in enumerate(modeled) if name in classes]
        self.threshold = threshold
        self.model = replace(model, means=model.means[:, rows], counts=model.counts[:, rows])
        has_evidence = torch.tensor([name in modeled for name in classes])
        self.register_buffer("has_evidence", has_evidence.to(model.center.device))

    def forward(
        self, frozen: Float[Tensor, "batch embed"], predicted: Int[Tensor, "batch"]
    ) -> Bool[Tensor, "batch"]:
        if not self.model.means.shape[1]:
            return torch.zeros_like(predicted, dtype=torch.bool)
        return self.has_evidence[predicted] & (self.model.rank(frozen) <= self.threshold)


def fit_outlier_model(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    classes: int,
    folds: Sequence[tuple[Bool[Tensor, "item"], Bool[Tensor, "item"]]] = (),
    groups: Int[Tensor, "item"] | None = None,
) -> OutlierModel | None:
    """From the unit image features of training images. None unless two classes have two images each: of a
    single image nothing can be left out.

    Args:
        folds: The images that are left out together, and those that their fit has; by default `FOLDS` parts
            of each class.
        groups: The number of each image's group, which counts as one; each image is one if None.
    """
    has_several = torch.bincount(labels, minlength=classes) >= LEAST_IMAGES
    used, count = has_several[labels], int(has_several.sum())
    if count < 2:
        return None
    columns = (has_several.long().cumsum(dim=0) - 1)[labels[used]]
    points = features.double()[used]
    number = torch.arange(len(labels), device=labels.device) if groups is None else groups.to(labels.device)
    numbers = number[used].unique(return_inverse=True)[1]
    is_grouped = bool(folds)
    if folds:
        parts = [(left_out[used], rest[used]) for left_out, rest in folds]
    else:
        fold_of = draw_folds(points, columns)
        parts = [(fold_of == fold, fold_of != fold) for fold in range(FOLDS)]
    fold_of = torch.full_like(columns, -1)
    for fold, (left_out, _) in enumerate(parts):
        fold_of[left_out] = fold
    scored, largest, fits = list[Tensor](), list[Tensor](), list[tuple[Tensor, ...]]()
    for left_out, rest in parts:
        present, targets = columns[rest].unique(return_inverse=True)
        items = (left_out & torch.isin(columns, present)).nonzero().flatten()
        if len(present) < 2 or len(present) == len(targets) or not len(items):
            continue  # nothing varies within classes, or nothing is left out
        inner = fold_of[rest] if is_grouped and len(fold_of[rest].unique()) > 1 else None
        gaussians = LabeledGaussians(points[rest][:, None], targets, len(present), SPREAD, folds=inner)
        fitted, of_classes = gaussians.evidence(), torch.stack([columns[rest], numbers[rest]]).unique(dim=1)
        means = points.new_zeros(count, points.shape[1]).index_copy(0, present, fitted.means)
        counts = torch.bincount(of_classes[0], minlength=count).double()
        fits.append((means, fitted.center, fitted.whitening, fitted.freedom, counts))
        largest.append(_evidence(points[items], *fits[-1]).amax(dim=1))
        scored.append(items)
    if not fits:
        return None
    sizes = torch.bincount(numbers[torch.cat(scored)])
    summaries = [
        summarize(values, 1 / sizes[numbers[items]].double())
        for values, items in zip(largest, scored, strict=True)
    ]
    left_out_values, weights = (torch.cat(part).float() for part in zip(*summaries, strict=True))
    lengths = torch.tensor([len(part) for part, _ in summaries], device=labels.device)
    means, center, whitening, freedom, counts = (
        torch.stack(part).float() for part in zip(*fits, strict=True)
    )
    return OutlierModel(
        classes=has_several.nonzero().flatten(),
        means=means,
        center=center,
        whitening=whitening,
        freedom=freedom,
        counts=counts,
        left_out=left_out_values,
        fold=torch.arange(len(fits), device=labels.device).repeat_interleave(lengths),
        weight=weights,
        images=sizes.sum(),
        groups=(sizes > 0).sum(),
    )


def draw_folds(points: Float[Tensor, "item embed"], columns: Int[Tensor, "item"]) -> Int[Tensor, "item"]:
    """The fold of each image: those of a class in different ones, as far as there are, and as many in each.
    Drawn by content, so that neither the order of images nor that of classes matters.
    """
    first = points[:, 0]
    of_class = first.new_full((int(columns.max()) + 1,), math.inf).scatter_reduce(0, columns, first, "amin")
    by_content = first.argsort(stable=True)
    in_classes = by_content[of_class[columns[by_content]].argsort(stable=True)]
    fold_of = torch.empty_like(columns)
    fold_of[in_classes] = torch.arange(len(columns), device=columns.device) % FOLDS
    return fold_of


def summarize(
    values: Float[Tensor, "item"], weights: Float[Tensor, "item"]
) -> tuple[Float[Tensor, "quantile"], Float[Tensor, "quantile"]]:
    """Values with their weights; of many, the least of each of `QUANTILES` parts of equal weight."""
    values, order = values.sort()
    weights = weights[order]
    if len(values) <= QUANTILES:
        return values, weights
    total, sums = weights.sum(), weights.cumsum(dim=0)
    starts = torch.arange(QUANTILES, device=values.device) / QUANTILES * total
    chosen = torch.searchsorted(sums, starts, right=True).clamp(max=len(values) - 1)
    return values[chosen], (total / QUANTILES).expand(QUANTILES)


def _evidence(
    features: Float[Tensor, "batch embed"],
    means: Float[Tensor, "class embed"],
    center: Float[Tensor, "embed"],
    whitening: Float[Tensor, "embed embed"],
    freedom: Float[Tensor, ""],
    counts: Float[Tensor, "class"],
) -> Float[Tensor, "batch class"]:
    """That of one fit (`OutlierModel`)."""
    whitened = (features.to(center) - center) @ whitening
    lengths = whitened.square().sum(dim=1, keepdim=True)
    distances = lengths - 2 * whitened @ means.T + means.square().sum(dim=1)
    background = lengths / (1 + SPREAD) + freedom * math.log1p(SPREAD)
    evidence = (background - distances * counts / (counts + 1)) / 2
    return evidence.masked_fill(counts == 0, -math.inf)
