"""Classes as Gaussians with one shrunk covariance: what fits them, and what they are without an image.

All is computed in float64. Views of an image are left out together.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

AT_ONCE = 256
"""Images that are left out together, each on its own."""
SHRINKAGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
"""What the shrinkage is chosen from."""
ENOUGH_IMAGES = 1024
"""Images, spread evenly, that choose it."""
NEGLIGIBLE = 1e-12
"""Mean squared distance of unit features from their class's mean up to which they do not vary."""


@dataclass(frozen=True)
class Distances:
    """Squared Mahalanobis distances of each image's first view, from Gaussians fitted without the image.

    Attributes:
        to_classes: To the mean of each class.
        to_centres: To weighted means of the classes' means.
        freedom: The degrees of freedom of the covariance.
        log_determinant: That of the covariance.
    """

    to_classes: Float[Tensor, "item class"]
    to_centres: Float[Tensor, "item centre"]
    freedom: Float[Tensor, "item"]
    log_determinant: Float[Tensor, "item"]


class Gaussians:
    """A mean for each class over all views of its images, and the covariance within classes, shrunk:

        C = (1 - shrinkage) S / N + shrinkage tr(S) / (N d) I,    S the scatter of N views of d numbers

    Attributes:
        means: Of each class.
        shrinkage: As given, or that of `SHRINKAGES` with the largest `left_out_likelihood`.
        whitening: W with C^-1 = W W'; zero if the views of a class do not differ.
        freedom: Its effective degrees of freedom, (1 - shrinkage) tr(C^-1 S / N): d if nothing is shrunk and
            nothing is missing, less where few directions vary.
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
        """Fit them. Each class needs an image, and two if neither shrinkage nor ``spread`` is given.

        With ``spread``, for classes of about one image, within which nothing varies but views: images of all
        classes vary by (1 + spread) C, so C comes from all around one mean, and no image can be left out.
        """
        self.views, self.labels = views.double(), labels if spread is None else torch.zeros_like(labels)
        self.means, self.counts = self._average(self.labels, classes if spread is None else 1)
        centred = (self.views - self.means[self.labels][:, None]).flatten(0, 1)
        values, self._basis = torch.linalg.eigh(centred.T @ centred)
        self._scatter = values.clamp(min=0)  # S in its own basis
        self.shrinkage = max(SHRINKAGES, key=self.left_out_likelihood) if shrinkage is None else shrinkage
        precision = self._precision(self._scatter.sum(), len(centred))
        self.whitening = self._basis * precision.sqrt()
        self.freedom = (precision * self._scatter).sum() * (1 - self.shrinkage) / len(centred)
        if spread is not None:
            self.means, self.counts = self._average(labels, classes)
            self.whitening = self.whitening * (1 + spread) ** 0.5

    def _average(
        self, labels: Int[Tensor, "item"], classes: int
    ) -> tuple[Float[Tensor, "class embed"], Int[Tensor, "class"]]:
        """The mean and the number of the images of each class."""
        counts, images = torch.bincount(labels, minlength=classes), self.views.mean(dim=1)
        return images.new_zeros(classes, images.shape[1]).index_add_(0, labels, images) / counts[
            :, None
        ], counts

    def left_out_likelihood(self, shrinkage: float) -> float:
        """The mean log-likelihood of images in their classes, each left out, up to a constant. The mean of
        n - 1 images is off by a share of C: the covariance is n / (n - 1) s C, with the best s.
        """
        self.shrinkage, items = shrinkage, self._items()[:: math.ceil(len(self.labels) / ENOUGH_IMAGES)]
        left_out, images = self.left_out(None, items), self.counts[self.labels[items]]
        squares = left_out.to_classes[:, 0] * (images - 1) / images
        twice = self.views.shape[2] * squares.mean().log() + left_out.log_determinant.mean()
        return float((-twice / 2).nan_to_num(nan=-math.inf))

    def _precision(self, trace: Float[Tensor, "*item"], views: int) -> Float[Tensor, "*item embed"]:
        """C^-1 in the basis of S, for another trace and number of views; zero without any variance."""
        variance = (1 - self.shrinkage) / views * self._scatter
        trace = trace.unsqueeze(-1)
        shrunk = self.shrinkage / (views * len(variance)) * trace + variance
        return torch.where(trace > NEGLIGIBLE * views, 1 / shrunk, 0)

    def left_out(
        self, centres: Float[Tensor, "centre class"] | None, items: Int[Tensor, "item"] | None = None
    ) -> Distances:
        """The distances of each image, or of some, after its class's mean and the covariance were fitted
        without it: to all classes and to ``centres``, weights of the classes' means; without these, to its
        own class alone. Each class needs two images.

        An image of n - 1 others in its class, of V views x_v with mean g, leaves the class's mean m at
        (n m - g) / (n - 1), and takes from S the V + 1 products r r' with r = x_v - g and
        sqrt(V n / (n - 1)) (g - m): C changes by its trace and these alone (Woodbury, and
        the determinant lemma).
        """
        items = self._items() if items is None else items
        parts = [vars(self._left_out(some, centres)) for some in items.split(AT_ONCE)]
        return Distances(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def distances(
        self, points: Float[Tensor, "item embed"], centres: Float[Tensor, "centre class"]
    ) -> Distances:
        """The distances of other points."""
        whitened, means = points.double() @ self.whitening, self.means @ self.whitening
        to_classes = torch.cdist(whitened, means).square()
        to_centres = torch.cdist(whitened, centres.double() @ means).square()
        determinant = -self.whitening.square().sum(dim=0).log().sum()
        of_all = (part.expand(len(points)) for part in (self.freedom, determinant))
        return Distances(to_classes, to_centres, *of_all)

    def _items(self) -> Int[Tensor, "item"]:
        return torch.arange(len(self.labels), device=self.labels.device)

    def _left_out(
        self, items: Int[Tensor, "item"], centres: Float[Tensor, "centre class"] | None
    ) -> Distances:
        count, width = self.views.shape[1], self.views.shape[2]
        views, means = self.views[items] @ self._basis, self.means @ self._basis
        label = self.labels[items]
        images = self.counts[label].double().unsqueeze(1)
        centre, mean = views.mean(dim=1), means[label]
        offset = (count * images / (images - 1)).sqrt() * (centre - mean)
        taken = torch.cat([views - centre[:, None], offset[:, None]], dim=1)  # item row embed
        remaining = (len(self.labels) - 1) * count
        trace = (self._scatter.sum() - taken.square().sum(dim=(1, 2))).clamp(min=0)
        precision = self._precision(trace, remaining)  # item embed
        scaled = taken * precision[:, None]
        weight = (1 - self.shrinkage) / remaining
        rows = torch.eye(count + 1, dtype=views.dtype, device=views.device)
        inner = rows - weight * taken @ scaled.mT
        update = weight * torch.linalg.inv(inner)  # item row row

        def distances(points: Float[Tensor, "*item point embed"]) -> Float[Tensor, "item point"]:
            """Of the first view to points in the basis."""
            first = views[:, 0]
            plain = (first.square() * precision).sum(dim=1, keepdim=True)
            if points.ndim == 2:  # the same for all images: no tensor over items, points and embed
                cross, norms = (first * precision) @ points.T, precision @ points.square().T
                along = (scaled @ first.unsqueeze(2)) - scaled @ points.T
            else:
                cross = ((first * precision)[:, None] * points).sum(dim=2)
                norms = (precision[:, None] * points.square()).sum(dim=2)
                along = (scaled @ first.unsqueeze(2)) - scaled @ points.mT
            squared: Tensor = plain - 2 * cross + norms + (along * (update @ along)).sum(dim=1)
            return squared

        without = (images * mean - centre) / (images - 1)
        own = distances(without[:, None])
        inverse_trace = precision.sum(dim=1) + ((scaled @ scaled.mT) * update).sum(dim=(1, 2))  # of C^-1
        freedom = width - self.shrinkage / (remaining * width) * trace * inverse_trace
        log_determinant = torch.linalg.slogdet(inner)[1] - precision.log().sum(dim=1)
        if centres is None:
            return Distances(own, own[:, :0], freedom, log_determinant)
        to_classes = distances(means)
        to_classes[torch.arange(len(items)), label] = own[:, 0]
        weights = centres.to(means)
        moved = weights.T[label].unsqueeze(2) * (without - mean)[:, None]  # item centre embed
        return Distances(to_classes, distances(weights @ means + moved), freedom, log_determinant)
