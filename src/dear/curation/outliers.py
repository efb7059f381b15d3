"""Whether an image looks like any class that has training images: the evidence of DeAR+ without roles, fitted
beside any method on the frozen image features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dear.errors import DataError, plural
from dear.methods.dear_plus.fitting import LEAST_IMAGES, bayes_factors
from dear.methods.dear_plus.gaussian import Gaussians
from dear.report.intervals import LEVEL, rank_interval, share_interval

KNOWN = "known."
"""What the names of its tensors begin with in the file of a bundle."""
SPREAD = 1.0
"""rho: the variance of the means of classes over that within a class, as DeAR+ has it."""
NEGLIGIBLE = 1e-9  # of rounding
QUANTILES = 1001
"""Values that stand for the evidence of all left-out images."""


@dataclass(frozen=True)
class OutlierModel:
    """Classes as Gaussians of one covariance. An image of none of them is N(mu, (1 + rho) C); the evidence
    for a class is the log Bayes factor against that (`DearPlus`).

    Attributes:
        classes: Their numbers: those of at least two images.
        means, center, whitening, freedom: w, mu, W and d of `DearPlus`.
        left_out: The largest evidence of each training image, from what was fitted without it, sorted; evenly
            spaced quantiles of many.
        images: How many images these are of.
    """

    classes: Int[Tensor, "known"]
    means: Float[Tensor, "known embed"]
    center: Float[Tensor, "embed"]
    whitening: Float[Tensor, "embed embed"]
    freedom: Float[Tensor, ""]
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
        at = (rank - 1) * (values - 1) / max(1, images - 1)
        return float(self.left_out[math.floor(at + NEGLIGIBLE)])

    def rank(self, share: float) -> int:
        """k = floor(share (n + 1)) of n images: of n + 1 images that come in any order, the last is below the
        k-th smallest of the others with probability k / (n + 1).
        """
        return min(math.floor(share * (int(self.images) + 1) + NEGLIGIBLE), int(self.images))

    def evidence(self, features: Float[Tensor, "batch embed"]) -> Float[Tensor, "batch known"]:
        """For each known class, of unit image features of the frozen backbone."""
        whitened = (features.to(self.whitening) - self.center) @ self.whitening
        typical = SPREAD / (1 + SPREAD) * whitened.square().sum(dim=1) - self.freedom * math.log1p(SPREAD)
        return whitened @ self.means.T - (self.means.square().sum(dim=1) + typical.unsqueeze(1)) / 2

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], classes: int) -> "OutlierModel":
        """From `tensors` whose names begin with `KNOWN`, and the number of all classes. Raises DataError if
        they do not fit.
        """
        found = {name.removeprefix(KNOWN): tensor for name, tensor in tensors.items()}
        known, embed = (len(found.get(name, torch.zeros(0)).flatten()) for name in ("classes", "center"))
        shapes = {"classes": [known], "means": [known, embed], "center": [embed], "whitening": [embed, embed]}
        shapes |= {
            "freedom": [],
            "images": [],
            "left_out": [*found.get("left_out", torch.zeros(1)).shape][:1],
        }
        kinds = {name: name in ("classes", "images") for name in shapes}
        if {name: [*tensor.shape] for name, tensor in found.items()} != shapes or any(
            tensor.is_floating_point() == kinds[name] or not tensor.isfinite().all()
            for name, tensor in found.items()
        ):
            raise DataError("the tensors of its known classes do not fit together.")
        numbers = found["classes"].tolist()
        if not found["left_out"].numel() or sorted({*numbers} & {*range(classes)}) != numbers:
            raise DataError("its known classes are not among its classes.")
        return cls(**found)

    def to(self, device: torch.device) -> "OutlierModel":
        """The same on a device."""
        return OutlierModel(**{name: tensor.to(device) for name, tensor in self.tensors().items()})


def describe_refusal(
    known: OutlierModel | None, share: float, refused: float | None = None, tested: int = 0
) -> list[str]:
    """What share of images of the classes will be refused, in a line, or that none will be although a share
    may; nothing if none may. A further line if clearly more were ``refused`` (a share) of ``tested`` images.
    """
    if not share:
        return []
    of_two = f"classes of {LEAST_IMAGES} or more"
    if known is None:
        return [f'No image will be "none of these": that needs training images in two {of_two}.']
    images, rank = int(known.images), known.rank(share)
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
    """Says which images are of none of some classes: those whose evidence for each is below a threshold.
    Classes without images cannot be tested: an image predicted to be of one is not refused.
    """

    is_known: Bool[Tensor, "class"]

    def __init__(
        self, known: OutlierModel, names: Sequence[str], classes: Sequence[str], threshold: float
    ) -> None:
        """Of the candidates ``classes``; ``names`` are all that `OutlierModel.classes` are numbers of."""
        super().__init__()
        known_names = [names[number] for number in known.classes.tolist()]
        rows = [row for row, name in enumerate(known_names) if name in classes]
        self.threshold, self.known = threshold, replace(known, means=known.means[rows])
        is_known = torch.tensor([name in known_names for name in classes])
        self.register_buffer("is_known", is_known.to(known.center.device))

    def forward(
        self, frozen: Float[Tensor, "batch embed"], predicted: Int[Tensor, "batch"]
    ) -> Bool[Tensor, "batch"]:
        if not len(self.known.means):
            return torch.zeros_like(predicted, dtype=torch.bool)
        evidence = self.known.evidence(frozen).amax(dim=1)
        return self.is_known[predicted] & (evidence < self.threshold)


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
    known = torch.bincount(labels, minlength=classes) >= LEAST_IMAGES
    used = known[labels]
    if int(known.sum()) < 2:
        return None
    column = (known.long().cumsum(dim=0) - 1)[labels[used]]
    points = features.double()[used].unsqueeze(1)
    fitted = Gaussians(points, column, int(known.sum()))
    every = torch.ones(1, len(fitted.means), dtype=torch.bool, device=labels.device)
    if folds:
        parts = [_evidence_without(points, column, left_out[used], rest[used]) for left_out, rest in folds]
        largest = torch.cat(parts).sort().values
        if not len(largest):
            return None
    else:
        largest = bayes_factors(fitted.left_out(every), 0, SPREAD).amax(dim=1).sort().values
    images = torch.tensor(len(largest), device=labels.device)
    if len(largest) > QUANTILES:
        largest = largest.quantile(torch.linspace(0, 1, QUANTILES).to(largest))
    center = fitted.means.mean(dim=0)
    return OutlierModel(
        known.nonzero().flatten(),
        ((fitted.means - center) @ fitted.whitening).float(),
        center.float(),
        fitted.whitening.float(),
        fitted.freedom.float(),
        largest.float(),
        images,
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
    fitted = Gaussians(points[rest], targets, len(present))
    every = torch.ones(1, len(present), dtype=torch.bool, device=columns.device)
    return bayes_factors(fitted.distances(scored, every), 0, SPREAD).amax(dim=1)
