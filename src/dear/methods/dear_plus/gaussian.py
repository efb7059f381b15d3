"""Classes as Gaussians with one covariance: the evidence that an image is of a class (`DearPlus` derives it),
and how it is fitted, also without each of the images. All is computed in float64.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.methods.covariances import NEGLIGIBLE, invert_nearly_positive

IMAGES_AT_ONCE = 256
"""Images that are left out together, each on its own."""
SHRINKAGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
"""What the shrinkage is chosen from."""
ENOUGH_IMAGES = 1024
"""Images, spread evenly, that choose it."""
MOST_SHRUNK = 0.99
"""What a covariance is shrunk to is worth at most 99 times as many images as there are."""


@dataclass(frozen=True)
class Evidence:
    """E of one attribute for some classes, with w = W' (mu_k - mu); 0 if nothing varies within classes.

    Attributes:
        means: w of each class.
        center, whitening, freedom: mu, W and d.
    """

    means: Float[Tensor, "class embed"]
    center: Float[Tensor, "embed"]
    whitening: Float[Tensor, "embed embed"]
    freedom: Float[Tensor, ""]

    def factors(self, features: Float[Tensor, "item embed"], spread: float) -> Float[Tensor, "item class"]:
        """w f~ - |w|^2 / 2 - rho / (2 (1 + rho)) |f~|^2 + d / 2 log(1 + rho) of features f."""
        whitened = (features.to(self.whitening) - self.center) @ self.whitening
        typical = spread / (1 + spread) * whitened.square().sum(dim=1) - self.freedom * math.log1p(spread)
        return whitened @ self.means.T - (self.means.square().sum(dim=1) + typical[:, None]) / 2


@dataclass(frozen=True)
class BayesFactors:
    """E of images, (background - squares) / 2, for several sets of classes with images. So what is
    images x classes stands once.

    Attributes:
        squares: Squared Mahalanobis distances to the mean of each class.
        backgrounds: Those to the mean of each set's means, over 1 + rho, plus d log(1 + rho).
    """

    squares: Float[Tensor, "item class"]
    backgrounds: Float[Tensor, "item set"]

    def among(
        self, number: int, rows: Int[Tensor, "row"] | slice = slice(None)
    ) -> Float[Tensor, "row class"]:
        """E of some images, with the classes of one set."""
        return (self.backgrounds[rows, number, None] - self.squares[rows]) / 2


@dataclass(eq=False)
class Gaussians:
    """A mean for each class, and the covariance C within classes.

    Attributes:
        counts: How many images each class has, those without labels by their shares.
        whitening: W with C^-1 = W W'; zero if the images of a class do not differ.
        freedom: The effective degrees of freedom d of C: the dimensions, less what shrinking adds.
    """

    means: Float[Tensor, "class embed"]
    counts: Tensor
    whitening: Float[Tensor, "embed embed"]
    freedom: Float[Tensor, ""]

    @property
    def surplus(self) -> Float[Tensor, "class"]:
        """By how much the log density of a class is too low on average, because of its mean of few images."""
        return self.freedom / self.counts / 2

    def evidence(self) -> Evidence:
        """What scores images once all of them are fitted."""
        center = self.means.sum(dim=0) / max(1, len(self.means))
        return Evidence((self.means - center) @ self.whitening, center, self.whitening, self.freedom)

    def factors(
        self, features: Float[Tensor, "item embed"], sets: Bool[Tensor, "set class"], spread: float
    ) -> BayesFactors:
        """E of features, with the classes of each set."""
        whitened, means = features.double() @ self.whitening, self.means @ self.whitening
        weights = sets.to(means)
        centers = weights / weights.sum(dim=1, keepdim=True).clamp(min=1) @ means
        squares, to_centers = (torch.cdist(whitened, points).square() for points in (means, centers))
        return _compare(squares, to_centers, self.freedom.expand(len(squares)), spread)


class LabeledGaussians(Gaussians):
    """Gaussians fitted to labeled images. Means are over all views of a class's images, and the covariance is

        C = (1 - shrinkage) S / N + shrinkage tr(S) / (N d) I,    S the scatter of N views of d numbers

    of (1 - shrinkage) tr(C^-1 S / N) degrees of freedom. Views of an image are left out together; if there
    are at least two folds, with all images of its fold.

    Attributes:
        shrinkage: As given, or that of `SHRINKAGES` with the largest `left_out_likelihood`.
        variance: The mean square of what varies within classes, to which the covariance is shrunk.
        strength: As of how many images it is shrunk.
    """

    def __init__(
        self,
        views: Float[Tensor, "item view embed"],
        labels: Int[Tensor, "item"],
        classes: int,
        spread: float,
        shrinkage: float | None = None,
        *,
        pooled: bool = False,
        folds: Int[Tensor, "item"] | None = None,
    ) -> None:
        """Fit them. Each class needs an image, and one of them two if the shrinkage is to be chosen.

        If ``pooled``, for classes of about one image, within which nothing varies but views: images of all
        classes vary by (1 + spread) C, so C comes from all around one mean.
        """
        self.views, self.labels, self.spread = views.double(), labels, spread
        self.means, self.counts = self._average(labels, classes)
        # What varies within groups of images: classes, or all of them.
        self._groups = torch.zeros_like(labels) if pooled else labels
        self._group_means, self._group_counts = self._average(self._groups, 1 if pooled else classes)
        self._precision_factor = 1 + spread if pooled else 1.0
        centered = (self.views - self._group_means[self._groups][:, None]).flatten(0, 1)
        values, self._basis = torch.linalg.eigh(centered.T @ centered)
        self._scatter = values.clamp(min=0)  # S in its own basis
        trace, count = self._scatter.sum(), max(1, len(centered))
        self.variance = float(trace / count / len(values))
        rows = [] if folds is None else [folds == number for number in folds.unique()]
        self._without = [
            (
                fold,
                LabeledGaussians(views[~fold], labels[~fold], classes, spread, SHRINKAGES[-1], pooled=pooled),
            )
            for fold in (rows if len(rows) > 1 else ())  # without the only one nothing would be left
        ]
        self._shrink(max(SHRINKAGES, key=self.left_out_likelihood) if shrinkage is None else shrinkage)

    def _shrink(self, shrinkage: float) -> None:
        """Compute all that depends on the shrinkage."""
        trace, count = self._scatter.sum(), max(1, self.views[:, :, 0].numel())
        precision = self._precision(trace, count, shrinkage)
        self.whitening = self._basis * (self._precision_factor * precision).sqrt()
        self.freedom = (precision * self._scatter).sum() * (1 - shrinkage) / count
        self.shrinkage = shrinkage
        self.strength = len(self.labels) / (1 / min(shrinkage, MOST_SHRUNK) - 1)
        for _, without in self._without:
            without._shrink(shrinkage)

    def _average(
        self, labels: Int[Tensor, "item"], classes: int
    ) -> tuple[Float[Tensor, "class embed"], Int[Tensor, "class"]]:
        """The mean and the number of the images of each class."""
        counts, images = torch.bincount(labels, minlength=classes), self.views.mean(dim=1)
        sums = images.new_zeros(classes, images.shape[1]).index_add_(0, labels, images)
        return sums / counts.clamp(min=1)[:, None], counts

    def left_out_likelihood(self, shrinkage: float) -> float:
        """The mean log-likelihood of images in their groups, each left out, up to a constant. The mean of
        n - 1 images is off by a share of C: the covariance is n / (n - 1) s C, with the best s.
        """
        if self._without:
            return self._likelihood_of_folds(shrinkage)
        can_leave = (self._group_counts[self._groups] > 1).nonzero().flatten()
        if not len(can_leave):
            return shrinkage  # the largest
        in_order = can_leave[self.views[can_leave, 0, 0].argsort(stable=True)]  # whatever their order was
        squares, determinants = list[Tensor](), list[Tensor]()
        for items in in_order[:: math.ceil(len(in_order) / ENOUGH_IMAGES)].split(IMAGES_AT_ONCE):
            without_image = self._leave_out(items, shrinkage)
            images, means = self._group_counts[self._groups[items]], self._group_means[self._groups[items]]
            without = _take_out(means @ self._basis, images, without_image.views.mean(dim=1))
            squares.append(without_image.distances(without[:, None])[:, 0] * (images - 1) / images)
            determinants.append(without_image.log_determinant)
        return _log_likelihood(self.views.shape[2], torch.cat(squares), torch.cat(determinants))

    def _likelihood_of_folds(self, shrinkage: float) -> float:
        """`left_out_likelihood` where each image is left out with its fold."""
        squares, determinants = list[Tensor](), list[Tensor]()
        for fold, without in self._without:
            groups = self._groups[fold]
            counts = without._group_counts[groups]
            precision = without._precision(without._scatter.sum(), without.views[:, :, 0].numel(), shrinkage)
            residuals = (self.views[fold, 0] - without._group_means[groups]) @ without._basis
            distances = (residuals.square() * precision).sum(dim=1) * counts / (counts + 1)
            squares.append(distances[counts > 0])
            determinants.append(-precision.log().sum().expand(len(squares[-1])))
        if not sum(map(len, squares)):  # no fold has a class that another one has
            return shrinkage  # the largest
        return _log_likelihood(self.views.shape[2], torch.cat(squares), torch.cat(determinants))

    def _precision(
        self, trace: Float[Tensor, "*item"], views: int, shrinkage: float
    ) -> Float[Tensor, "*item embed"]:
        """C^-1 in the basis of S, for another trace and number of views; zero without any variance."""
        variance = (1 - shrinkage) / views * self._scatter
        trace = trace.unsqueeze(-1)
        shrunk = shrinkage / (views * len(variance)) * trace + variance
        return torch.where(trace > NEGLIGIBLE * views, 1 / shrunk, 0)

    def left_out(self, sets: Bool[Tensor, "set class"]) -> BayesFactors:
        """E of each image's first view after means and covariance were fitted without the image, with the
        classes of each set. A class that has no other image is not among these, and its E means
        nothing.
        """
        if self._without:
            squares = self.views.new_zeros(len(self.labels), len(self.counts))
            backgrounds = self.views.new_zeros(len(self.labels), len(sets))
            for fold, without in self._without:
                factors = without.factors(self.views[fold, 0], sets & (without.counts > 0), self.spread)
                backgrounds[fold] = factors.backgrounds
                # A class without other images has no evidence there.
                squares[fold] = factors.squares.where(without.counts > 0, factors.backgrounds[:, -1:])
            return BayesFactors(squares, backgrounds)
        parts = [
            self._left_out(items, sets)
            for items in torch.arange(len(self.labels), device=self.labels.device).split(IMAGES_AT_ONCE)
        ]
        squares, to_centers, freedom = (torch.cat(of_items) for of_items in zip(*parts, strict=True))
        return _compare(squares, to_centers, freedom, self.spread)

    def _left_out(
        self, items: Int[Tensor, "item"], sets: Bool[Tensor, "set class"]
    ) -> tuple[Float[Tensor, "item class"], Float[Tensor, "item set"], Float[Tensor, "item"]]:
        """The squared distances to classes and to centers, and d."""
        without_image, label = self._leave_out(items, self.shrinkage), self.labels[items]
        means = self.means @ self._basis
        images = self.counts[label]
        without = _take_out(means[label], images, without_image.views.mean(dim=1))
        squares = without_image.distances(means)
        squares[torch.arange(len(items)), label] = without_image.distances(without[:, None])[:, 0]
        members = sets.to(means)
        has_label = members[:, label].T.unsqueeze(2)  # item set 1
        sums = members @ means + has_label * (without - means[label])[:, None]
        counts = members.sum(dim=1)[:, None] - has_label * (images == 1)[:, None, None]
        to_centers = without_image.distances(sums / counts.clamp(min=1))
        return self._precision_factor * squares, self._precision_factor * to_centers, without_image.freedom

    def _leave_out(self, items: Int[Tensor, "item"], shrinkage: float) -> "_Covariances":
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
        remaining = max(1, len(self.labels) - 1) * count
        trace = (self._scatter.sum() - taken.square().sum(dim=(1, 2))).clamp(min=0)
        precision = self._precision(trace, remaining, shrinkage)  # item embed
        scaled = taken * precision[:, None]
        weight = (1 - shrinkage) / remaining
        inner = torch.eye(count + 1).to(views) - weight * taken @ scaled.mT
        inverse, inner_determinant = invert_nearly_positive(inner)
        update = weight * inverse  # item row row
        inverse_trace = precision.sum(dim=1) + ((scaled @ scaled.mT) * update).sum(dim=(1, 2))  # of C^-1
        width = views.shape[2]
        freedom = (width - shrinkage / (remaining * width) * trace * inverse_trace) * (precision[:, 0] > 0)
        log_determinant = inner_determinant - precision.log().sum(dim=1)
        return _Covariances(views, precision, scaled, update, freedom, log_determinant)


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
        """Of each image's first view to points, the same for all images or its own, squared."""
        first, precision, scaled = self.views[:, 0], self.precision, self.scaled
        if points.ndim == 2:  # the same for all: no tensor over items, points and embed
            cross, norms = (first * precision) @ points.T, precision @ points.square().T
        else:
            cross = ((first * precision)[:, None] * points).sum(dim=2)
            norms = (precision[:, None] * points.square()).sum(dim=2)
        plain = (first.square() * precision).sum(dim=1, keepdim=True) - 2 * cross + norms
        along = scaled @ first.unsqueeze(2) - scaled @ points.mT
        return plain + (along * (self.update @ along)).sum(dim=1)


def _compare(
    squares: Float[Tensor, "item class"],
    to_centers: Float[Tensor, "item set"],
    freedom: Float[Tensor, "item"],
    spread: float,
) -> BayesFactors:
    """log N(f; mu_k, C) - log N(f; mu, (1 + rho) C) by squared distances, with mu the center of a set."""
    return BayesFactors(squares, to_centers / (1 + spread) + freedom[:, None] * math.log1p(spread))


def _log_likelihood(
    width: int, squares: Float[Tensor, "item"], log_determinants: Float[Tensor, "item"]
) -> float:
    """The mean log density at the best size of the covariance, up to a constant."""
    twice = width * squares.mean().log() + log_determinants.mean()
    return float((-twice / 2).nan_to_num(nan=-math.inf))


def _take_out(
    means: Float[Tensor, "item embed"], images: Int[Tensor, "item"], image: Float[Tensor, "item embed"]
) -> Float[Tensor, "item embed"]:
    """The mean of n images without one of them; zero if there is no other."""
    counts = images[:, None].to(means)
    return (counts * means - image) / (counts - 1).clamp(min=1)
