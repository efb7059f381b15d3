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
from dear.methods.dear_plus.gaussian import Evidence, LabeledGaussians
from dear.stats import LEVEL, rank_interval, share_interval
from dear.text import plural

PREFIX = "known."
"""What the names of its tensors begin with in the file of a bundle."""
SPREAD = 1.0
"""rho: the variance of the means of classes over that within a class, as DeAR+ has it."""
NEGLIGIBLE = 1e-9  # of rounding
QUANTILES = 1001
"""Values that stand for the evidence of all left-out images."""


@dataclass(frozen=True)
class OutlierModel(Evidence):
    """Classes as Gaussians of one covariance. An image of none of them is N(mu, (1 + rho) C); the evidence
    for a class is the log Bayes factor against that (`DearPlus`).

    Attributes:
        classes: Their numbers: those of at least two images.
        left_out: The largest evidence of each training image, from what was fitted without it, sorted; evenly
            spaced quantiles of many.
        images: How many images these are of.
    """

    classes: Int[Tensor, "class"]
    left_out: Float[Tensor, "quantile"]
    images: Int[Tensor, ""]

    def threshold(self, share: float) -> float:
        """The evidence below which an image is refused, so that of new images of the classes at most
        ``share`` is on average: the k-th smallest of left-out images (`rank`), as in conformal prediction.
        Minus infinity where k is 0.

        Source: Papadopoulos et al., ECML 2002; each image left out on its own, as in the jackknife.
        """
        if not (rank := self.rank(share)):
            return -math.inf
        values, images = len(self.left_out), int(self.images)
        position = (rank - 1) * (values - 1) / max(1, images - 1)
        return float(self.left_out[math.floor(position + NEGLIGIBLE)])

    def rank(self, share: float) -> int:
        """k = floor(share (n + 1)) of n images: of n + 1 images that come in any order, the last is below the
        k-th smallest of the others with probability k / (n + 1).
        """
        return min(math.floor(share * (int(self.images) + 1) + NEGLIGIBLE), int(self.images))

    def evidence(self, features: Float[Tensor, "batch embed"]) -> Float[Tensor, "batch class"]:
        """For each of the classes, of unit image features of the frozen backbone."""
        return self.factors(features, SPREAD)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], classes: int) -> "OutlierModel":
        """From `tensors` whose names begin with `PREFIX`, and the number of all classes. Raises DataError if
        they do not fit.
        """
        by_name = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        modeled, embed = (len(by_name.get(name, torch.zeros(0)).flatten()) for name in ("classes", "center"))
        quantiles = len(by_name.get("left_out", torch.zeros(1)).flatten())
        shapes = {
            "means": [modeled, embed], "center": [embed], "whitening": [embed, embed], "freedom": [],
            "classes": [modeled], "left_out": [quantiles], "images": [],
        }  # fmt: skip
        if {name: [*tensor.shape] for name, tensor in by_name.items()} != shapes or any(
            tensor.is_floating_point() == (name in ("classes", "images")) or not tensor.isfinite().all()
            for name, tensor in by_name.items()
        ):
            raise DataError("the tensors of its known classes do not fit together.")
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
        return [f'No image will be "none of these": that needs training images in two {of_two}.']
    images, rank = int(model.images), model.rank(share)
    if not rank:
        needed = plural(math.ceil(1 / share) - 1, "image")
        return [f'No image will be "none of these": that needs {needed} in {of_two}, and there are {images}.']
    low, high = rank_interval(rank, images)
    interval = f"({LEVEL:.0%}: {low:.1%} to {high:.1%})"
    expected = f"{rank / (images + 1):.1%} of new images of the classes {interval}"
    lines = [f'Expected to be "none of these": {expected}.']
    if refused is not None and share_interval(round(refused * tested), tested)[0] > high:
        lines.append(
            f"Of the test images clearly more are ({refused:.1%}), so new images may be too: "
            "training images that resemble each other, as those of a clip, a site or a day, make the "
            "threshold too high. --dataset.group keeps them together."
        )
    return lines


class Refusal(nn.Module):
    """Says which images are of none of some classes: those whose evidence for each is below a threshold. Of a
    class by name alone it cannot be told: an image predicted to be of one is not refused.
    """

    has_evidence: Bool[Tensor, "class"]

    def __init__(
        self, model: OutlierModel, names: Sequence[str], classes: Sequence[str], threshold: float
    ) -> None:
        """Of the candidates ``classes``; ``names`` are all that `OutlierModel.classes` are numbers of."""
        super().__init__()
        modeled = [names[number] for number in model.classes.tolist()]
        rows = [row for row, name in enumerate(modeled) if name in classes]
        self.threshold, self.model = threshold, replace(model, means=model.means[rows])
        has_evidence = torch.tensor([name in modeled for name in classes])
        self.register_buffer("has_evidence", has_evidence.to(model.center.device))

    def forward(
        self, frozen: Float[Tensor, "batch embed"], predicted: Int[Tensor, "batch"]
    ) -> Bool[Tensor, "batch"]:
        if not len(self.model.means):
            return torch.zeros_like(predicted, dtype=torch.bool)
        evidence = self.model.evidence(frozen).amax(dim=1)
        return self.has_evidence[predicted] & (evidence < self.threshold)


def fit_outlier_model(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    classes: int,
    folds: Sequence[tuple[Bool[Tensor, "item"], Bool[Tensor, "item"]]] = (),
) -> OutlierModel | None:
    """From the unit image features of training images. None unless two classes have two images each: of a
    single image nothing can be left out. Where images are in groups, ``folds`` are left out together, each
    with the images that remain; else one image at a time.
    """
    has_several = torch.bincount(labels, minlength=classes) >= LEAST_IMAGES
    used, count = has_several[labels], int(has_several.sum())
    if count < 2:
        return None
    columns = (has_several.long().cumsum(dim=0) - 1)[labels[used]]
    points = features.double()[used].unsqueeze(1)
    fitted = LabeledGaussians(points, columns, count, SPREAD)
    if folds:
        parts = [_evidence_without(points, columns, left_out[used], rest[used]) for left_out, rest in folds]
        largest = torch.cat(parts).sort().values
        if not len(largest):
            return None
    else:
        every = torch.ones(1, count, dtype=torch.bool, device=labels.device)
        largest = fitted.left_out(every).among(0).amax(dim=1).sort().values
    images = torch.tensor(len(largest), device=labels.device)
    if len(largest) > QUANTILES:
        largest = largest.quantile(torch.linspace(0, 1, QUANTILES).to(largest))
    of_classes = {name: tensor.float() for name, tensor in vars(fitted.evidence()).items()}
    return OutlierModel(
        **of_classes, classes=has_several.nonzero().flatten(), left_out=largest.float(), images=images
    )


def _evidence_without(
    points: Float[Tensor, "item 1 embed"],
    columns: Int[Tensor, "item"],
    left_out: Bool[Tensor, "item"],
    rest: Bool[Tensor, "item"],
) -> Float[Tensor, "left_out"]:
    """The largest evidence of images of classes that are among the ``rest``, fitted to these alone."""
    present, targets = columns[rest].unique(return_inverse=True)
    scored = points[left_out & torch.isin(columns, present), 0]
    if len(present) < 2 or len(present) == len(targets) or not len(scored):
        return points.new_zeros(0)
    evidence = LabeledGaussians(points[rest], targets, len(present), SPREAD).evidence()
    return evidence.factors(scored, SPREAD).amax(dim=1)
