"""The members of the ensemble: linear classifiers of unit features, each a matrix and a bias, in float64."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

SHRINKAGES = (0.1, 0.3, 0.7)
"""How far the covariances of the discriminants are shrunk towards their mean variance."""
WEIGHTS_OF_LOSS = (100.0, 1000.0)
"""C of the logistic regressions: the weight of the loss against half the squared weights."""
MEAN_SCALE = 20.0
"""Factor on the cosines with class means."""
NEGLIGIBLE = 1e-12
"""Mean squared distance of unit features from their class's mean up to which they do not vary."""
AFFORDABLE = 10_000_000, 100_000_000
"""Images x dimensions x classes up to which all logistic regressions are fitted, and one is: each costs some
hundred times as many operations, the closed forms a few times."""
MOST_ITERATIONS = 200
ENOUGH = 1e-5
"""Largest derivative of a mean loss at which a logistic regression is taken."""

Linear = tuple[Float[Tensor, "class embed"], Float[Tensor, "class"]]
"""W and b of scores W f + b."""
Member = Callable[[Float[Tensor, "item embed"], Int[Tensor, "item"], int], Linear]
"""Fits a classifier to unit features, their labels and the number of classes, each of which has images."""


def fit_means(features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int) -> Linear:
    """The nearest class mean by cosine: s_k = 20 f mu_k / |mu_k|."""
    weight = MEAN_SCALE * normalize(class_means(features, labels, classes), dim=1)
    return weight, weight.new_zeros(classes)


def fit_discriminant(
    features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int, shrinkage: float
) -> Linear:
    """The linear discriminant with equal priors, s_k = f P mu_k - mu_k P mu_k / 2, where P^-1 is the shrunk
    covariance within classes, (1 - a) S + a tr(S) / d I. That of class means if nothing varies within them.
    """
    means = class_means(features, labels, classes)
    centered = features - means[labels]
    covariance = centered.T @ centered / len(features)
    variance = covariance.diagonal().mean()
    if variance * len(covariance) <= NEGLIGIBLE:
        return fit_means(features, labels, classes)
    shrunk = (1 - shrinkage) * covariance
    shrunk.diagonal().add_(shrinkage * variance)
    weight = torch.cholesky_solve(means.T, torch.linalg.cholesky(shrunk)).T
    return weight, -(weight * means).sum(dim=1) / 2


def fit_regression(
    features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int, weight_of_loss: float
) -> Linear:
    """Multinomial logistic regression with an L2 penalty, by L-BFGS: W and b that minimize
    |W|^2 / 2 + C sum of CE(W f + b, y), as scikit-learn's.
    """
    items, embed = features.shape
    rows, penalty = torch.arange(items, device=features.device), 1 / (weight_of_loss * items)
    solution = features.new_zeros(classes, embed + 1).requires_grad_()
    weight, bias = solution[:, :embed].detach(), solution[:, embed].detach()
    solution.grad = torch.zeros_like(solution)

    @torch.no_grad()  # which the solver turns off
    def closure() -> Tensor:
        """The objective over C n; its gradient is left in ``solution``."""
        logarithms = torch.addmm(bias, features, weight.T).log_softmax(dim=1)
        loss = penalty / 2 * weight.square().sum() - logarithms[rows, labels].mean()
        residuals = logarithms.exp()
        residuals[rows, labels] -= 1
        assert solution.grad is not None
        torch.addmm(
            weight, residuals.T, features, beta=penalty, alpha=1 / items, out=solution.grad[:, :embed]
        )
        solution.grad[:, embed] = residuals.mean(dim=0)
        return loss

    solver = torch.optim.LBFGS(
        [solution],
        max_iter=MOST_ITERATIONS,
        max_eval=2 * MOST_ITERATIONS,
        tolerance_grad=ENOUGH,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )
    solver.step(closure)
    return weight, bias


def class_means(
    features: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int
) -> Float[Tensor, "class embed"]:
    """The mean feature of each class."""
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


def list_members(images: int, embed: int, classes: int) -> Mapping[str, Member]:
    """The members by name that can be fitted to so many images in reasonable time."""
    all_of, one_of = AFFORDABLE
    size = images * embed * classes
    losses = WEIGHTS_OF_LOSS if size <= all_of else WEIGHTS_OF_LOSS[:1] if size <= one_of else ()
    members: dict[str, Member] = {"means": fit_means}
    members |= {f"discriminant {each}": partial(fit_discriminant, shrinkage=each) for each in SHRINKAGES}
    return members | {f"regression {each:g}": partial(fit_regression, weight_of_loss=each) for each in losses}


VIEW_MEMBERS: Mapping[str, Member] = {
    f"discriminant {each} of views": partial(fit_discriminant, shrinkage=each) for each in SHRINKAGES
}
"""The members that are fitted to random views too, each of which counts as an image."""
