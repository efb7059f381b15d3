"""Classes as Gaussians with one shrunk covariance: what fits them, and what they are without an image.

All is computed in float64. Views of an image are left out together.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

IMAGES_AT_ONCE = 256
"""Images that are left out together, each on its own."""
SHRINKAGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
"""What the shrinkage is chosen from."""
ENOUGH_IMAGES = 1024
"""Images, spread evenly, that choose it."""
NEGLIGIBLE = 1e-12
"""Mean squared distance of unit features from their class's mean up to which they do not vary."""


@dataclass(frozen=True)
class Distances:
    """Squared Mahalanobis distances of images.

    Attributes:
        to_classes: To the mean of each class.
        to_centers: To the mean of the means of some classes, in each setting.
        freedom: The degrees of freedom of the covariance.
    """

    to_classes: Float[Tensor, "item class"]
    to_centers: Float[Tensor, "item setting"]
    freedom: Float[Tensor, "item"]


class Gaussians:
    """A mean for each class over all views of its images, and the covariance within classes, shrunk:

        C = (1 - shrinkage) S / N + shrinkage tr(S) / (N d) I,    S the scatter of N views of d numbers

    Attributes:
        means: Of each class.
        shrinkage: As given, or that of `SHRINKAGES` with the largest `left_out_likelihood`.
        whitening: W with C^-1 = W W'; zero if the views of a class do not differ.
        freedom: Its effective degrees of freedom, (1 - shrinkage) tr(C^-1 S / N): d if nothing is shrunk and
            nothing is missing, less where few directions vary.
        variance: The mean square of what varies within classes.
    """

    means: Float[Tensor, "class embed"]
    whitening: Float[Tensor, "embed embed"]
    freedom: Float[Tensor, ""]

    def __init__(
        self,
        views: Float[Tensor, "item view embed"],
        labels: Int[Tensor, "item"],
        classes: int,
        shrinkage: float | None = None,
        spread: float | None = None,
    ) -> None:
        """Fit them. Each class needs an image, and one of them two if neither shrinkage nor ``spread`` is
        given.

        With ``spread``, for classes of about one image, within which nothing varies but views: images of all
        classes vary by (1 + spread) C, so C comes from all around one mean.
        """
        self.views, self.labels = views.double(), labels
        self.means, self.counts = self._average(labels, classes)
        # What varies within groups of images: classes, or all of them.
        pooled = spread is not None
        self._groups = torch.zeros_like(labels) if pooled else labels
        self._group_means, self._group_counts = self._average(self._groups, 1 if pooled else classes)
        self._precision_factor = 1.0 if spread is None else 1 + spread
        centered = (self.views - self._group_means[self._groups][:, None]).flatten(0, 1)
        values, self._basis = torch.linalg.eigh(centered.T @ centered)
        self._scatter = values.clamp(min=0)  # S in its own basis
        self.variance = float(self._scatter.sum() / centered.numel())
        self.shrinkage = max(SHRINKAGES, key=self.left_out_likelihood) if shrinkage is None else shrinkage
        precision = self._precision(self._scatter.sum(), len(centered))
        self.whitening = self._basis * (self._precision_factor * precision).sqrt()
        self.freedom = (precision * self._scatter).sum() * (1 - self.shrinkage) / len(centered)

    def _average(
        self, labels: Int[Tensor, "item"], classes: int
    ) -> tuple[Float[Tensor, "class embed"], Int[Tensor, "class"]]:
        """The mean and the number of the images of each class."""
        counts, images = torch.bincount(labels, minlength=classes), self.views.mean(dim=1)
        sums = images.new_zeros(classes, images.shape[1]).index_add_(0, labels, images)
        return sums / counts[:, None], counts

    def left_out_likelihood(self, shrinkage: float) -> float:
        """The mean log-likelihood of images in their groups, each left out, up to a constant. The mean of
        n - 1 images is off by a share of C: the covariance is n / (n - 1) s C, with the best s.
        """
        self.shrinkage = shrinkage
        can_leave = (self._group_counts[self._groups] > 1).nonzero().flatten()
        if not len(can_leave):
            return shrinkage  # the largest
        in_order = can_leave[self.views[can_leave, 0, 0].argsort(stable=True)]  # whatever their order was
        squares, determinants = list[Tensor](), list[Tensor]()
        for items in in_order[:: math.ceil(len(in_order) / ENOUGH_IMAGES)].split(IMAGES_AT_ONCE):
            rest = self._leave_out(items)
            images, means = self._group_counts[self._groups[items]], self._group_means[self._groups[items]]
            without = _take_out(means @ self._basis, images, rest.views.mean(dim=1))
            squares.append(rest.distances(without[:, None])[:, 0] * (images - 1) / images)
            determinants.append(rest.log_determinant)
        twice = self.views.shape[2] * torch.cat(squares).mean().log() + torch.cat(determinants).mean()
        return float((-twice / 2).nan_to_num(nan=-math.inf))

    def _precision(self, trace: Float[Tensor, "*item"], views: int) -> Float[Tensor, "*item embed"]:
        """C^-1 in the basis of S, for another trace and number of views; zero without any variance."""
        variance = (1 - self.shrinkage) / views * self._scatter
        trace = trace.unsqueeze(-1)
        shrunk = self.shrinkage / (views * len(variance)) * trace + variance
        return torch.where(trace > NEGLIGIBLE * views, 1 / shrunk, 0)

    def left_out(self, known: Bool[Tensor, "setting class"]) -> Distances:
        """The distances of each image's first view after the means and the covariance were fitted without the
        image: to all classes, and to the mean of the classes that are ``known`` in each setting. A class that
        has no other image is not among these, and the distance to it means nothing.
        """
        parts = [
            self._left_out(items, known)
            for items in torch.arange(len(self.labels), device=self.labels.device).split(IMAGES_AT_ONCE)
        ]
        return Distances(*map(torch.cat, zip(*parts, strict=True)))

    def distances(
        self, points: Float[Tensor, "item embed"], known: Bool[Tensor, "setting class"]
    ) -> Distances:
        """The distances of other points."""
        whitened, means = points.double() @ self.whitening, self.means @ self.whitening
        centers = average_known(means, known)
        to_classes, to_centers = (torch.cdist(whitened, to).square() for to in (means, centers))
        return Distances(to_classes, to_centers, self.freedom.expand(len(points)))

    def _leave_out(self, items: Int[Tensor, "item"]) -> "_Covariances":
        """What varies within groups without each of some images.

        An image of n - 1 others in its group, of V views x_v with mean g, leaves the group's mean m at
        (n m - g) / (n - 1), and takes from S the V + 1 products r r' with r = x_v - g and
        sqrt(V n / (n - 1)) (g - m): C changes by its trace and these alone (Woodbury, and the determinant
        lemma). An image that is alone in its group takes only the first V.
        """
        count, views = self.views.shape[1], self.views[items] @ self._basis
        images = self._group_counts[self._groups[items]].double().unsqueeze(1)
        center, mean = views.mean(dim=1), (self._group_means @ self._basis)[self._groups[items]]
        offset = (count * images / (images - 1).clamp(min=1)).sqrt() * (center - mean)
        taken = torch.cat([views - center[:, None], offset[:, None]], dim=1)  # item row embed
        remaining = (len(self.labels) - 1) * count
        trace = (self._scatter.sum() - taken.square().sum(dim=(1, 2))).clamp(min=0)
        precision = self._precision(trace, remaining)  # item embed
        scaled = taken * precision[:, None]
        weight = (1 - self.shrinkage) / remaining
        rows = torch.eye(count + 1, dtype=views.dtype, device=views.device)
        inner = rows - weight * taken @ scaled.mT
        update = weight * torch.linalg.inv(inner)  # item row row
        inverse_trace = precision.sum(dim=1) + ((scaled @ scaled.mT) * update).sum(dim=(1, 2))  # of C^-1
        width = self.views.shape[2]
        freedom = width - self.shrinkage / (remaining * width) * trace * inverse_trace
        log_determinant = torch.linalg.slogdet(inner)[1] - precision.log().sum(dim=1)
        return _Covariances(views, precision, scaled, update, freedom, log_determinant)

    def _left_out(
        self, items: Int[Tensor, "item"], known: Bool[Tensor, "setting class"]
    ) -> tuple[Float[Tensor, "item class"], Float[Tensor, "item setting"], Float[Tensor, "item"]]:
        """The fields of `Distances`."""
        rest, means, label = self._leave_out(items), self.means @ self._basis, self.labels[items]
        images = self.counts[label]
        without = _take_out(means[label], images, rest.views.mean(dim=1))
        to_classes = rest.distances(means)
        to_classes[torch.arange(len(items)), label] = rest.distances(without[:, None])[:, 0]
        is_known = known.to(means)
        own = is_known[:, label].T.unsqueeze(2)  # item setting 1
        sums = is_known @ means + own * (without - means[label])[:, None]
        counts = is_known.sum(dim=1)[:, None] - own * (images == 1)[:, None, None]
        to_centers = rest.distances(sums / counts.clamp(min=1))
        factor = self._precision_factor
        return factor * to_classes, factor * to_centers, rest.freedom


@dataclass(frozen=True)
class _Covariances:
    """The covariance without each of some images, in the basis of S: C^-1 is the diagonal ``precision``, plus
    ``scaled``' ``update`` ``scaled``.

    Attributes:
        views: All views of the images that are left out.
    """

    views: Float[Tensor, "item view embed"]
    precision: Float[Tensor, "item embed"]
    scaled: Float[Tensor, "item row embed"]
    update: Float[Tensor, "item row row"]
    freedom: Float[Tensor, "item"]
    log_determinant: Float[Tensor, "item"]

    def distances(self, points: Float[Tensor, "*item point embed"]) -> Float[Tensor, "item point"]:
        """Of each image's first view to points, the same for all images or its own."""
        first, precision, scaled = self.views[:, 0], self.precision, self.scaled
        plain = (first.square() * precision).sum(dim=1, keepdim=True)
        if points.ndim == 2:  # the same for all: no tensor over items, points and embed
            cross, norms = (first * precision) @ points.T, precision @ points.square().T
            along = (scaled @ first.unsqueeze(2)) - scaled @ points.T
        else:
            cross = ((first * precision)[:, None] * points).sum(dim=2)
            norms = (precision[:, None] * points.square()).sum(dim=2)
            along = (scaled @ first.unsqueeze(2)) - scaled @ points.mT
        squared: Tensor = plain - 2 * cross + norms + (along * (self.update @ along)).sum(dim=1)
        return squared


def average_known(
    means: Float[Tensor, "class embed"], known: Bool[Tensor, "setting class"]
) -> Float[Tensor, "setting embed"]:
    """The mean of the means of the classes that are known in each setting."""
    weights = known.to(means)
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1) @ means


def _take_out(
    means: Float[Tensor, "item embed"], images: Int[Tensor, "item"], image: Float[Tensor, "item embed"]
) -> Float[Tensor, "item embed"]:
    """The mean of n images without one of them; zero if there is no other."""
    counts = images[:, None].to(means)
    return (counts * means - image) / (counts - 1).clamp(min=1)
