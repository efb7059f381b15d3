"""Whether an image looks like any class that has training images: the evidence of DeAR+ without roles, fitted
beside any method on the frozen image features (`dear.curation.outlier_fit`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dear.errors import DataError
from dear.methods.dear_plus.fitting import LEAST_IMAGES
from dear.stats import LEVEL, rank_interval, share_interval
from dear.text import plural

PREFIX = "known."
"""What the names of its tensors begin with in the file of a bundle."""
SPREAD = 1.0
"""rho: the variance of the means of classes over that within a class, as DeAR+ has it."""
FEWEST = 6
"""Images, or groups of them, of which three folds of two can be made."""
NEGLIGIBLE = 1e-5  # of rounding, in groups
NUMBERS = ("classes", "images", "groups")
"""The tensors of whole numbers."""


@dataclass(frozen=True)
class OutlierModel:
    """Classes as Gaussians of one covariance C, fitted without each fold of the training images. An image of
    none of them is N(mu, (1 + rho) C). A new image of a class of n images is N(mu_k, (1 + 1 / n) C), so with
    D^2 its squared distance to mu_k by C, its evidence for the class is, up to a constant,

        (log(1 + rho) d + D_0^2 / (1 + rho) - D_k^2 n / (n + 1)) / 2,    D_0 its distance to mu

    The largest over classes is measured, for each fit, in standard deviations from the mean of the fold's own
    images, which the fit has not seen either, and what counts is the mean over the fits. A left-out image
    gets the same: from the fits without its fold and each other fold, by the images of that one. The images
    of a group count together as one.

    Attributes:
        classes: Their numbers: those of at least two images.
        means, center, whitening, freedom: W' (mu_k - mu), mu, W with C^-1 = W W', and d of each fit.
        counts: How many groups of each class each fit has.
        location, scale: The mean and the standard deviation of the largest evidence of the fold's own images.
        left_out: What each left-out image gets, thinned to evenly spaced quantiles if there are many.
        weight: The share of a group that each is, or of several that it stands for.
        below: How many other groups get at most that.
        images, groups: How many images were left out, and of how many groups; an image on its own is one.
    """

    classes: Int[Tensor, "class"]
    means: Float[Tensor, "fold class embed"]
    center: Float[Tensor, "fold embed"]
    whitening: Float[Tensor, "fold embed embed"]
    freedom: Float[Tensor, "fold"]
    counts: Float[Tensor, "fold class"]
    location: Float[Tensor, "fold"]
    scale: Float[Tensor, "fold"]
    left_out: Float[Tensor, "quantile"]
    weight: Float[Tensor, "quantile"]
    below: Float[Tensor, "quantile"]
    images: Int[Tensor, ""]
    groups: Int[Tensor, ""]

    def threshold(self, share: float) -> float:
        """The `rank` up to which an image is refused, so that of new images of the classes this share is on
        average; minus infinity where that needs more groups.
        """
        return self._limit(share)[0]

    def expected(self, share: float) -> float:
        """The share of new images of the classes to expect below the threshold: the sum of the shares of the
        n known groups over n + 1, since a new group comes in no other way than these.
        """
        return self._limit(share)[1] / (int(self.groups) + 1)

    def _limit(self, share: float) -> tuple[float, float]:
        """The threshold, and how many groups are up to it, each counted by its share of images."""
        below, order = self.below.sort()
        sums = self.weight[order].double().cumsum(dim=0)
        is_last = torch.cat([below[1:] > below[:-1] + NEGLIGIBLE, torch.ones_like(below[:1]).bool()])
        allowed = is_last & (sums <= share * (int(self.groups) + 1) + NEGLIGIBLE)
        if not share or not allowed.any():
            return -math.inf, 0.0
        return float(below[allowed][-1]) + NEGLIGIBLE, float(sums[allowed][-1])

    def evidence(self, features: Float[Tensor, "batch embed"]) -> Float[Tensor, "fold batch class"]:
        """For each of the classes by each fit, of unit image features of the frozen backbone; minus infinity
        for a class that a fit has no image of.
        """
        fits = zip(self.means, self.center, self.whitening, self.freedom, self.counts, strict=True)
        return torch.stack([compute_evidence(features, *fit) for fit in fits])

    def rank(self, features: Float[Tensor, "batch embed"]) -> Float[Tensor, "batch"]:
        """How many groups of left-out images get at most what each image gets."""
        return self.rank_among(self.evidence(features).amax(dim=2))

    def rank_among(self, largest: Float[Tensor, "fold batch"]) -> Float[Tensor, "batch"]:
        """`rank` of images by their largest evidence in each fit."""
        score = average_known((largest - self.location[:, None]) / self.scale[:, None])
        return (self.left_out <= score[:, None]).to(self.weight) @ self.weight

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
            "location": [folds], "scale": [folds], "images": [], "groups": [],
            "left_out": [quantiles], "weight": [quantiles], "below": [quantiles],
        }  # fmt: skip
        if {name: [*tensor.shape] for name, tensor in by_name.items()} != shapes or any(
            tensor.is_floating_point() == (name in NUMBERS) or not tensor.isfinite().all()
            for name, tensor in by_name.items()
        ):
            raise DataError("the tensors of its known classes do not fit together: fit it again.")
        numbers = by_name["classes"].tolist()
        if not quantiles or sorted({*numbers} & {*range(classes)}) != numbers:
            raise DataError("its known classes are not among its classes.")
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
        needed = f"{FEWEST} training images, or groups of them, in two {of_two}"
        return [f'No image will be "none of these": that needs {needed}.']
    groups, limit = int(model.groups), model.threshold(share)
    noun = "image" if groups == int(model.images) else "group"
    if limit < 0:
        needed = plural(math.ceil(1 / share - NEGLIGIBLE) - 1, noun)
        return [f'No image will be "none of these": that needs {needed} in {of_two}, and there are {groups}.']
    expected = model.expected(share)
    low, high = rank_interval(expected * (groups + 1), groups)
    interval = f"({LEVEL:.0%}: {low:.1%} to {high:.1%})"
    # With two images, a class is half as large where one is left out.
    most = "at most " if float(model.counts.amax(dim=0).median()) < 3 else ""
    lines = [f'Expected to be "none of these": {most}{expected:.1%} of new images of the classes {interval}.']
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


def average_known(values: Float[Tensor, "fold item"]) -> Float[Tensor, "item"]:
    """The mean of the finite values of each item; minus infinity without any."""
    is_known = values.isfinite()
    times = is_known.sum(dim=0)
    means = values.where(is_known, 0).sum(dim=0) / times.clamp(min=1)
    return means.where(times > 0, -torch.inf)


def compute_evidence(
    features: Float[Tensor, "batch embed"],
    means: Float[Tensor, "class embed"],
    center: Float[Tensor, "embed"],
    whitening: Float[Tensor, "embed embed"],
    freedom: Float[Tensor, ""],
    counts: Float[Tensor, "class"],
) -> Float[Tensor, "batch class"]:
    """The evidence of images for each class, by one fit (`OutlierModel`)."""
    whitened = (features.to(center) - center) @ whitening
    lengths = whitened.square().sum(dim=1, keepdim=True)
    distances = lengths - 2 * whitened @ means.T + means.square().sum(dim=1)
    background = lengths / (1 + SPREAD) + freedom * math.log1p(SPREAD)
    evidence = (background - distances * counts / (counts + 1)) / 2
    return evidence.masked_fill(counts == 0, -math.inf)
