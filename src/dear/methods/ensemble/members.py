"""The members of the ensemble: linear classifiers of unit features, each a matrix and a bias, in float64."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.methods.solver import RegressionCoordinates, find_minimum

SHRINKAGES = (0.1, 0.3, 0.7)
"""How far the covariances of the discriminants are shrunk towards their mean variance."""
WEIGHTS_OF_LOSS = (100.0, 1000.0)
"""C of the logistic regressions: the weight of the loss against half the squared weights."""
MEAN_SCALE = 20.0
"""Factor on the cosines with class means."""
SPREAD = 100.0
"""Standard deviation, over classes, of a discriminant's scores of the class means."""
NEGLIGIBLE = 1e-12
"""Mean squared distance of unit features from their class's mean up to which they do not vary. Also the share
of scores up to which they are equal."""
AFFORDABLE = 10_000_000, 100_000_000
"""Images x dimensions x classes up to which all logistic regressions are fitted, and one is: each costs some
hundred times as many operations, the closed forms a few times."""
MOST_STEPS = 300
ENOUGH = 1e-5
"""Largest derivative of a mean loss, by what the solver varies, at which a logistic regression is taken: its
scores are then within some hundredths of the exact ones."""

Linear = tuple[Float[Tensor, "class embed"], Float[Tensor, "class"]]
"""W and b of scores W f + b."""


def fit_means(features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int) -> Linear:
    """The nearest class mean by cosine: s_k = 20 f mu_k / |mu_k|."""
    weight = MEAN_SCALE * normalize(class_means(features, labels, classes), dim=1)
    return weight, weight.new_zeros(classes)


def fit_discriminants(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    classes: int,
    shrinkages: Sequence[float] = SHRINKAGES,
) -> list[Linear]:
    """Linear discriminants with equal priors, s_k = f P mu_k - mu_k P mu_k / 2, where P^-1 is the shrunk
    covariance within classes, (1 - a) S + a tr(S) / d I, for each a. Those of class means if nothing varies
    within them. All times a factor (`scale_spread`).
    """
    means = class_means(features, labels, classes)
    centered = features - means[labels]
    covariance = centered.T @ centered / len(features)  # which is what takes long, once for all
    variance = covariance.diagonal().mean()
    if variance * len(covariance) <= NEGLIGIBLE:
        return [scale_spread(fit_means(features, labels, classes), means)] * len(shrinkages)
    fitted = []
    for shrinkage in shrinkages:
        shrunk = (1 - shrinkage) * covariance
        shrunk.diagonal().add_(shrinkage * variance)
        weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(shrunk)).T
        fitted.append(scale_spread((weight, -(weight * means).sum(dim=1) / 2), means))
    return fitted


def scale_spread(classifier: Linear, means: Float[Tensor, "class embed"]) -> Linear:
    """The classifier times a factor: its scores of the class means then have `SPREAD`, on average. So its
    scale does not depend on the number of images, and a weight that was found with some of them suits the
    classifier that is fitted to all. Unchanged if these scores are equal.
    """
    weight, bias = classifier
    scores = means @ weight.T + bias
    spread = scores.std(dim=1, correction=0).mean()
    if spread <= NEGLIGIBLE * scores.abs().mean():
        return classifier
    return weight * (SPREAD / spread), bias * (SPREAD / spread)


def fit_regression(
    features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int, weight_of_loss: float
) -> Linear:
    """Multinomial logistic regression with an L2 penalty: W and b that minimize
    |W|^2 / 2 + C sum of CE(W f + b, y), as scikit-learn's.
    """
    items, rows = len(features), torch.arange(len(features), device=features.device)
    coordinates = RegressionCoordinates(features, 1 / (weight_of_loss * items))
    inside, penalties = coordinates.features, coordinates.penalties

    def objective(solution: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimized over C n."""
        logarithms = (inside @ solution.T).log_softmax(dim=1)
        weighed = penalties * solution
        loss = (weighed * solution).sum() / 2 - logarithms[rows, labels].mean()
        residuals = logarithms.exp_()
        residuals[rows, labels] -= 1
        return loss, residuals.T @ inside / items + weighed

    start = coordinates.start(classes)
    return coordinates.read(find_minimum(objective, start, enough=ENOUGH, steps=MOST_STEPS))


def class_means(
    features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int
) -> Float[Tensor, "class embed"]:
    """The mean feature of each class."""
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


def list_regressions(images: int, embed: int, classes: int) -> Sequence[float]:
    """The C of those that can be fitted to so many images in reasonable time."""
    all_of, one_of = AFFORDABLE
    size = images * embed * classes
    return WEIGHTS_OF_LOSS if size <= all_of else WEIGHTS_OF_LOSS[:1] if size <= one_of else ()


def list_members(regressions: Sequence[float], *, has_views: bool) -> list[str]:
    """The names of what `fit_members` fits, in its order."""
    names = ["means", *(f"discriminant {each}" for each in SHRINKAGES)]
    names += [f"regression {each:g}" for each in regressions]
    return names + [f"discriminant {each} of views" for each in SHRINKAGES if has_views]


def fit_members(
    images: Float[Tensor, "item view embed"],
    labels: Int[Tensor, "item"],
    classes: int,
    regressions: Sequence[float],
) -> list[Linear]:
    """All members: fitted to the first view of each image and, if there are others, to all of them, each of
    which counts as an image. Each class has images.
    """
    features, views = images[:, 0], images.shape[1]
    members = [fit_means(features, labels, classes), *fit_discriminants(features, labels, classes)]
    members += [fit_regression(features, labels, classes, each) for each in regressions]
    if views > 1:
        members += fit_discriminants(images.flatten(0, 1), labels.repeat_interleave(views), classes)
    return members
