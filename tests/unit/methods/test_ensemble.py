"""The ensemble: its members against scikit-learn, its weights and its rule for names against plain loops."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip
from dear.methods.base import TrainingImages
from dear.methods.ensemble import EnsembleSettings, fitting
from dear.methods.ensemble.fitting import draw_folds, fit, fit_weights, measure_name_cost
from dear.methods.ensemble.members import (
    MEAN_SCALE,
    fit_discriminants,
    fit_means,
    fit_regression,
    list_regressions,
)
from dear.methods.ensemble.method import Ensemble
from tests.unit.methods.slow_names import slow_cost

CLASSES, EMBED, EACH = 3, 7, 11


def draw_features(seed: int = 1, classes: int = CLASSES, each: int = EACH) -> tuple[Tensor, Tensor]:
    """Unit features around a mean of each class, and their labels, in mixed order."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    means = torch.randn(classes, EMBED, generator=draw).double()
    noise = torch.randn(len(labels), EMBED, generator=draw).double()
    return normalize(means[labels] + 1.5 * noise, dim=1), labels


@pytest.mark.parametrize("shrinkage", [0.1, 0.7])
def test_the_discriminant_is_scikit_learns(shrinkage: float) -> None:
    features, labels = draw_features()
    new, _ = draw_features(2)
    equal = [1 / CLASSES] * CLASSES
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage, priors=equal)
    model.fit(features.numpy(), labels.numpy())
    [(weight, bias)] = fit_discriminants(features, labels, CLASSES, [shrinkage])
    found, expected = (new @ weight.T + bias).numpy(), model.decision_function(new.numpy())
    of_means = model.decision_function(model.means_)  # by row, of which each has a spread of 100 on average
    factor = 100 / of_means.std(axis=1).mean()
    centered = factor * (expected - expected.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(found - found.mean(axis=1, keepdims=True), centered, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_regression_is_scikit_learns(classes: int) -> None:
    features, labels = draw_features(classes=classes)
    model = LogisticRegression(C=10.0, tol=1e-10, max_iter=10_000)
    weight, bias = fit_regression(features, labels, classes, 10.0)

    def objective(matrix: Tensor, offset: Tensor) -> float:
        losses = cross_entropy(features @ matrix.T + offset, labels, reduction="sum")
        return float(matrix.square().sum() / 2 + 10.0 * losses)

    model.fit(features.numpy(), labels.numpy())
    coefficients, intercept = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if classes == 2:  # a single score, of which the penalty counts twice as much as of two
        assert (features @ weight.T + bias).argmax(dim=1).tolist() == model.predict(features.numpy()).tolist()
    else:
        assert objective(weight, bias) == pytest.approx(objective(coefficients, intercept), rel=1e-4)


def test_the_means_are_by_cosine() -> None:
    features, labels = draw_features()
    weight, bias = fit_means(features, labels, CLASSES)
    for label in range(CLASSES):
        mean = sum(feature for feature, of in zip(features, labels.tolist(), strict=True) if of == label)
        assert torch.allclose(weight[label], MEAN_SCALE * mean / mean.norm())  # type: ignore[union-attr]
    assert not bias.any()


def test_what_does_not_vary_within_classes_has_no_covariance() -> None:
    features = torch.eye(CLASSES, EMBED).double().repeat(2, 1)
    labels = torch.arange(CLASSES).repeat(2)
    [(weight, bias)] = fit_discriminants(features, labels, CLASSES, [0.3])
    by_means, _ = fit_means(features, labels, CLASSES)
    # Scores of the means are 20 for the own class and 0 for the two others.
    assert torch.allclose(weight, by_means * 100 / (20 * math.sqrt(2) / 3))
    assert not bias.any()


def test_classes_that_are_equal_stay_so() -> None:
    features = normalize(torch.ones(6, EMBED).double(), dim=1)
    [(weight, bias)] = fit_discriminants(features, torch.arange(CLASSES).repeat(2), CLASSES, [0.3])
    assert torch.equal(features @ weight.T + bias, (features @ weight.T + bias)[:1, :1].expand(6, CLASSES))


@torch.no_grad()
def test_with_two_images_of_a_class_it_is_as_good_as_the_nearest_mean() -> None:
    """The weights are fitted where each class has one image, and the first one two that are nearly the same
    and in one group: discriminants vary there much less than with all images.
    """
    classes, embed, draw = 60, 120, torch.Generator().manual_seed(1)
    labels = torch.arange(classes).repeat(10)
    directions = torch.randn(classes, embed, generator=draw).double()
    images = directions[labels] + 2 * torch.randn(len(labels), embed, generator=draw).double()
    images[classes] = images[0] + 0.02 * torch.randn(embed, generator=draw).double()
    features, new = normalize(images, dim=1).split([2 * classes, 8 * classes])
    groups = torch.arange(2 * classes)
    groups[classes] = 0
    shaken = features + 0.02 * torch.randn(2, *features.shape, generator=draw).double()
    names = directions + 2 * torch.randn(classes, embed, generator=draw).double()
    text, order = 30 * normalize(names, dim=1), torch.arange(classes)
    of_fitted, truth = labels.split([2 * classes, 8 * classes])
    fitted = fit(features, of_fitted, text, order, groups, 0.1, [*normalize(shaken, dim=2)])
    weight, _ = fit_means(features, of_fitted, classes)
    scores = new @ fitted.weight.T + fitted.bias + fitted.text_weight * new @ text.T
    right, by_means = ((each.argmax(dim=1) == truth).double().mean() for each in (scores, new @ weight.T))
    assert right >= by_means


def test_weights_are_at_least_0_and_the_best() -> None:
    """Against another solver of scipy; a term of noise gets nothing."""
    draw = torch.Generator().manual_seed(5)
    labels = torch.randint(5, (83,), generator=draw)
    good = torch.eye(5).double()[labels] * 2 + torch.randn(83, 5, generator=draw).double()
    noise = torch.randn(83, 5, generator=draw).double()
    terms = torch.stack([good, -good, noise]).log_softmax(dim=2)
    weights = fit_weights(terms, labels, 0.01)

    def objective(values: np.ndarray) -> float:
        mixed = sum(value * term for value, term in zip(values.tolist(), terms, strict=True))
        return float(cross_entropy(mixed, labels)) + 0.01 * float((values**2).sum())  # type: ignore[arg-type]

    best = minimize(objective, [0.3] * 3, bounds=[(0, None)] * 3, method="SLSQP", options={"ftol": 1e-12})
    assert weights.tolist() == pytest.approx(best.x.tolist(), abs=1e-3)
    assert weights[1] == 0


@torch.no_grad()
def test_views_that_teach_the_opposite_get_no_weight_and_others_do() -> None:
    """Mirrored views, in which each class looks like another one; and views with other noise."""
    features, labels = draw_features(each=24)
    features, new = features.chunk(2)
    labels, truth = labels.chunk(2)
    text, order = torch.zeros(CLASSES, EMBED).double(), torch.arange(CLASSES)
    plain = fit(features, labels, text, order, None, 0.01)
    turned = features[
        torch.cat([(labels == (label + 1) % CLASSES).nonzero()[:, 0] for label in labels.unique()])
    ]
    place = torch.cat([(labels == label).nonzero()[:, 0] for label in labels.unique()])
    misleading = torch.empty_like(features).index_copy_(0, place, turned)
    fitted = fit(features, labels, text, order, None, 0.01, [misleading])
    assert share_of_views(fitted.weights) < 0.05
    right, right_plain = (
        float(((new @ each.weight.T + each.bias).argmax(dim=1) == truth).double().mean())
        for each in (fitted, plain)
    )
    assert right >= right_plain - 1 / len(truth)
    again = fit(features, labels, text, order, None, 0.01, [features])
    assert share_of_views(again.weights) > 0.1


def share_of_views(weights: dict[str, float]) -> float:
    """Of the discriminants, which have one scale."""
    shares = {name: weight for name, weight in weights.items() if "discriminant" in name}
    return sum(weight for name, weight in shares.items() if "views" in name) / sum(shares.values())


def test_of_many_images_some_decide_the_weights_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = draw_features(each=20)
    text, order = draw_features(9)[0][:CLASSES], torch.arange(CLASSES)
    monkeypatch.setattr(fitting, "MOST_SCORES", len(labels) * CLASSES // 4)
    used = list[tuple[Tensor, Tensor]]()

    def record(terms: Tensor, labels: Tensor, penalty: float) -> Tensor:
        used.append((terms, labels))
        return fit_weights(terms, labels, penalty)

    monkeypatch.setattr(fitting, "fit_weights", record)
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    found, again = (
        fit(features[rows], labels[rows], text, order, None, 0.1)
        for rows in (torch.arange(len(labels)), mixed)
    )
    for terms, of_terms in used:
        assert terms.shape[1] == len(of_terms) == len(labels) // 4
    by_text = (features @ text.T).log_softmax(dim=1)
    rows = (by_text[:, None] - used[0][0][0]).abs().sum(dim=2).argmin(dim=0)
    assert torch.allclose(by_text[rows], used[0][0][0])
    assert torch.equal(labels[rows], used[0][1])
    assert list(found.weights.values()) == pytest.approx(list(again.weights.values()), abs=1e-6)
    assert torch.allclose(found.weight, again.weight, atol=1e-6)


def test_a_group_is_left_out_as_a_whole() -> None:
    features, labels = draw_features(each=12)
    groups = torch.arange(len(labels)) // (3 * CLASSES) * CLASSES + labels  # three images of a class each
    folds = draw_folds(features, labels, torch.arange(CLASSES), groups)
    assert {len(folds[groups == group].unique()) for group in groups.unique()} == {1}
    assert len(folds.unique()) == 4
    alone = draw_folds(features, labels, torch.arange(CLASSES), labels)
    assert alone.unique().tolist() == [-1]


@pytest.mark.parametrize("sure", [1, 40])
def test_a_name_takes_what_plain_loops_say(sure: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of images, and where one class has all but e^-100 of an image."""
    monkeypatch.setattr(fitting, "SCORES_AT_ONCE", 5 * 17)
    draw = torch.Generator().manual_seed(6)
    labels = torch.randint(5, (211,), generator=draw)
    truth = torch.eye(5).double()[labels]
    scores = sure * (3 * truth + torch.randn(211, 5, generator=draw).double())
    by_text = sure * (2 * truth + torch.randn(211, 5, generator=draw).double())
    cost = measure_name_cost(scores, by_text, labels)
    found = own = 0
    taken = list[tuple[list[float], int]]()
    for name in range(5):
        others, lost = [number for number in range(5) if number != name], list[float]()
        for item, label in enumerate(labels.tolist()):
            known = [float(scores[item, number]) for number in others]
            level = math.log(sum(map(math.exp, known)))
            level -= math.log(sum(math.exp(float(by_text[item, number])) for number in others))
            margin = float(by_text[item, name]) + level - max(known)
            if label == name:
                own, found = own + 1, found + (margin > cost.threshold + 1e-12)
            elif margin > 0 and others[int(np.argmax(known))] == label:
                lost.append(margin)
        taken.append((lost, int((labels != name).sum())))
    assert (cost.threshold, cost.taken) == pytest.approx(slow_cost(taken))
    assert cost.taken > 0
    assert cost.found == pytest.approx(found / own)


def train(clip: Clip, names: list[str], labels: list[int]) -> tuple[Ensemble, Tensor]:
    """An ensemble that was fitted to noise, and the features of other noise."""
    method = Ensemble(clip, torch.Generator(), EnsembleSettings())
    method.set_classes(names, ["a photo of a {}"])

    def draw(count: int, seed: int) -> Tensor:
        return torch.rand(count, 3, 20, 20, generator=torch.Generator().manual_seed(seed))

    trunk = method.image_trunk(draw(len(labels), 3) + torch.tensor(labels)[:, None, None, None] / 4)
    method.before_training(TrainingImages(torch.tensor(labels), lambda _: trunk))
    with torch.no_grad():
        return method, method.image_features(method.image_trunk(draw(13, 4)))


@torch.no_grad()
def test_a_name_has_the_odds_that_it_has_by_text(small_clip: Clip) -> None:
    names = ["house", "sea", "tree", "circle"]
    method, features = train(small_clip, names, [0, 1, 2, 3] * 5)
    known = method.logits(features, method.text_features())
    method.set_classes([*names, "square"], ["a photo of a {}"])
    scores = method.logits(features, method.text_features())
    torch.testing.assert_close(scores[:, :4], known)
    by_text = small_clip.scale * features[0] @ method.frozen_text.T
    expected = by_text[:, 4] - by_text[:, :4].logsumexp(dim=1) - method.threshold
    torch.testing.assert_close(scores[:, 4] - known.logsumexp(dim=1), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_one_image_of_each_class_counts_by_its_mean(small_clip: Clip) -> None:
    method, features = train(small_clip, ["house", "sea", "tree"], [0, 1, 2])
    assert method.fitted.weights["means"] == 1
    assert all(not weight for name, weight in method.fitted.weights.items() if name not in ("text", "means"))
    assert method.logits(features, method.text_features()).isfinite().all()


def test_few_regressions_are_fitted_to_much() -> None:
    sizes = (100, 100, 10), (2000, 500, 50), (20_000, 500, 1000)
    assert [len(list_regressions(*size)) for size in sizes] == [2, 1, 0]


@torch.no_grad()
def test_nothing_outside_of_the_span_of_few_images_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scores with more dimensions, in which no image has anything."""
    monkeypatch.setattr("dear.methods.ensemble.members.ENOUGH", 1e-10)
    features, labels = draw_features(each=2)
    text, order = (
        torch.randn(CLASSES, EMBED, generator=torch.Generator().manual_seed(9)).double(),
        torch.arange(3),
    )
    plain = fit(features, labels, text, order, None, 0.01)
    wide, wide_text = (torch.nn.functional.pad(part, (0, 31)) for part in (features, text))
    padded = fit(wide, labels, wide_text, order, None, 0.01)
    scores = features @ plain.weight.T + plain.bias
    torch.testing.assert_close(wide @ padded.weight.T + padded.bias, scores, rtol=1e-4, atol=1e-4)
