"""Images without labels for DeAR+, against loops and fits without the images that are left out."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from dear.methods.dear_plus import DearPlusSettings, unlabeled
from dear.methods.dear_plus.fitting import FOLDS, Examples, Fit, by_attribute, fit, fit_on
from dear.methods.dear_plus.gaussian import Gaussians, LabeledGaussians
from dear.methods.dear_plus.strengths import PRIOR
from dear.methods.dear_plus.unlabeled import (
    ALPHA_OF_SHARING,
    WEIGHTS,
    AttributeViews,
    fit_weights,
    fit_with_others,
    share_out,
)
from dear.methods.stacking import fit_term_weights

LABELS = torch.tensor([0, 2, 1, 0, 2, 2, 1, 0])
CLASSES, VIEWS, EMBED, OTHERS, ATTRIBUTES = 3, 2, 5, 11, 2


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build_readouts(labels: Tensor = LABELS) -> tuple[list[AttributeViews], Tensor]:
    """Of each attribute; and the prior of the others."""
    centers = draw(ATTRIBUTES, CLASSES, EMBED, seed=2)
    of_others = torch.arange(OTHERS) % CLASSES
    labeled = centers[:, labels][:, :, None] + draw(ATTRIBUTES, len(labels), VIEWS, EMBED, seed=3)
    others = centers[:, of_others] + draw(ATTRIBUTES, OTHERS, EMBED, seed=4)
    readouts = [*map(AttributeViews, labeled, others, (0.7, 1.3), (3.0, 5.0))]
    return readouts, draw(OTHERS, CLASSES, seed=5)


def covariance(gaussians: Gaussians) -> Tensor:
    return torch.linalg.inv(gaussians.whitening @ gaussians.whitening.T)


def test_a_mixture_by_loops() -> None:
    shares = draw(OTHERS, CLASSES, seed=6).softmax(dim=1)
    for readouts in build_readouts()[0]:
        gaussians = readouts.gaussians(LABELS, shares)
        points = [  # each with its class and weight
            (view, label, 1 / VIEWS)
            for item, label in zip(readouts.labeled, LABELS, strict=True)
            for view in item
        ]
        for other, of_other in zip(readouts.others, shares, strict=True):
            points += [(other, label, share) for label, share in enumerate(of_other)]
        means = []
        for label in range(CLASSES):
            mine = [(point, weight) for point, of_class, weight in points if of_class == label]
            means.append(sum(weight * point for point, weight in mine) / sum(weight for _, weight in mine))
        scatter = sum(
            weight * torch.outer(point - means[label], point - means[label])
            for point, label, weight in points
        )
        strength, total = readouts.strength, sum(weight for *_, weight in points)
        prior = strength * readouts.variance * torch.eye(EMBED, dtype=torch.float64)
        expected = (scatter + prior) / (total + strength)
        torch.testing.assert_close(gaussians.means, torch.stack(means))
        torch.testing.assert_close(covariance(gaussians), expected)
        freedom = (torch.linalg.inv(expected) @ scatter).trace() / (total + strength)
        torch.testing.assert_close(gaussians.freedom, freedom)


def test_one_round_in_one_dimension_by_hand() -> None:
    """Classes at -1 and 1, two images each, 0.5 off: S / N = 0.25, shrunk to 0.25 it stays, d is 4 / 5."""
    labeled = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=torch.float64)[:, None, None]
    others, labels = torch.tensor([[0.25]], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    readouts, prior = AttributeViews(labeled, others, 0.25, 1.0), torch.zeros(1, 2, dtype=torch.float64)
    mixture = share_out([readouts], labels, prior, 1.0, rounds=1)
    gap = (1.25**2 - 0.75**2) / 0.25 / 2  # of log densities; the surplus of both classes is the same
    share = 1 / (1 + math.exp(-ALPHA_OF_SHARING / math.sqrt(4 / 5) * gap))  # of the class at 1
    expected = [(-2 + (1 - share) * 0.25) / (3 - share), (2 + share * 0.25) / (2 + share)]
    assert mixture[0].means.flatten().tolist() == pytest.approx(expected)
    assert mixture[0].counts.tolist() == pytest.approx([3 - share, 2 + share])


def test_rounds_raise_the_likelihood() -> None:
    """Of features and labels, with each attribute's density to the power alpha, and the prior's."""
    (of_attributes, prior), alpha = build_readouts(), 0.4
    shares = torch.zeros(OTHERS, CLASSES).double()
    reached = []
    for _ in range(12):
        scores, objective = prior.clone(), 0.0
        for readouts in of_attributes:
            gaussians = readouts.gaussians(LABELS, shares)
            spread = covariance(gaussians)
            normals = [torch.distributions.MultivariateNormal(mean, spread) for mean in gaussians.means]
            scores += alpha * torch.stack([normal.log_prob(readouts.others) for normal in normals], dim=1)
            for item, label in zip(readouts.labeled, LABELS.tolist(), strict=True):
                objective += alpha * float(normals[label].log_prob(item).mean())
            pull = spread.logdet() + readouts.variance * torch.linalg.inv(spread).trace()
            objective -= alpha * float(readouts.strength * pull) / 2
        reached.append(objective + float(scores.logsumexp(dim=1).sum()))
        shares = scores.softmax(dim=1)
    assert all(later > earlier - 1e-9 for earlier, later in itertools.pairwise(reached))
    assert reached[-1] > reached[1] + 0.01  # the first has no shares yet


def build_clusters(apart: float, labeled: Sequence[int] = (0, 1, 2, 0, 1, 2, 0, 1, 2)) -> tuple[Any, ...]:
    """A fit of labeled unit features, with many others around the same centers, and the arguments of the
    fit with these.
    """
    centers, labels = draw(CLASSES, EMBED, seed=7), torch.tensor([*labeled])
    points = normalize(apart * centers[labels][:, None] + draw(len(labels), VIEWS, EMBED, seed=8), dim=-1)
    of_others = torch.arange(120) % CLASSES
    others = normalize(apart * centers[of_others] + draw(120, EMBED, seed=9), dim=-1)
    text = 2 * normalize(centers + draw(CLASSES, EMBED, seed=10), dim=-1)
    examples = Examples(points, points.unsqueeze(2), labels, text, torch.tensor([1, 2, 0]))
    settings = DearPlusSettings(views=1)
    return fit(examples, settings), examples, (others, others.unsqueeze(1)), settings


def test_scores_are_of_fits_that_know_nothing_of_the_images() -> None:
    """M, variance, shrinkage, means and shares of others from the images without a part of them; and
    strengths of these very scores.
    """
    plain, examples, others, settings = build_clusters(0.8)
    features, of_others = (by_attribute(of, plain.remainder)[0] for of in (examples.readouts, others[1]))
    labels, every = examples.labels, torch.ones_like(examples.labels).bool()
    first = examples.frozen[:, 0, 0].tolist()
    rank = [
        sum(first[other] < first[item] for other in range(len(labels)) if labels[other] == labels[item])
        for item in range(len(labels))
    ]
    fold = [(rank[item] + int(examples.order[label])) % FOLDS for item, label in enumerate(labels)]

    def mixture(rows: Tensor, weight: float, correction: Tensor) -> Gaussians:
        """Of some labeled images and all others."""
        within = [features[rows][labels[rows] == label].flatten(0, 1) for label in range(CLASSES)]
        squares = sum((part - part.mean(dim=0)).square().sum() for part in within)
        images = int(rows.sum())
        shrinkage = LabeledGaussians(features[rows], labels[rows], CLASSES, settings.spread).shrinkage
        variance, strength = float(squares / (images * VIEWS * EMBED)), images / (1 / shrinkage - 1)
        prior = normalize(others[0] + others[0] @ correction, dim=-1) @ examples.text.T
        readouts = AttributeViews(features[rows], of_others, variance, strength)
        [gaussians] = share_out([readouts], labels[rows], prior, weight)
        return gaussians

    for weight, found in zip(
        (0.0, *WEIGHTS), fit_weights(plain, examples, others, [0], settings), strict=True
    ):
        terms = torch.zeros(len(labels), CLASSES, 2, dtype=torch.float64)
        everywhere = mixture(every, weight, plain.correction).counts
        for item in range(len(labels)):
            rest = torch.tensor([of_item != fold[item] for of_item in fold])
            few = Examples(
                examples.frozen[rest], examples.readouts[rest], labels[rest], examples.text, examples.order
            )
            correction = fit_on(few, torch.ones_like(few.labels).bool(), settings.penalty)
            feature = normalize(examples.frozen[item, 0] + examples.frozen[item, 0] @ correction, dim=-1)
            terms[item, :, 0] = examples.text @ feature
            gaussians, whole = mixture(rest, weight, correction), found.evidence[0]
            gaps = features[item, 0] - torch.cat([gaussians.means, gaussians.means.mean(dim=0)[None]])
            *squares, background = (gaps @ gaussians.whitening).square().sum(dim=1)
            for label in range(CLASSES):
                lost = gaussians.freedom / gaussians.counts[label] - whole.freedom / everywhere[label]
                gain = background / 2 + gaussians.freedom * math.log(2) - squares[label] + lost
                terms[item, label, 1] = gain / 2
        least = torch.tensor([0.01, 0.0], dtype=torch.float64)
        strengths = fit_term_weights(lambda terms=terms: [(terms.movedim(2, 0), labels)], least, PRIOR)
        torch.testing.assert_close(found.strengths[0], strengths, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.left_out[2], terms @ strengths, rtol=1e-4, atol=1e-4)


def test_others_are_used_where_left_out_images_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = build_clusters(1.0)
    monkeypatch.setattr("dear.methods.dear_plus.unlabeled.SURE", 0.0)
    result, gain = fit_with_others(*arguments)
    assert gain.weight > 0
    assert gain.after < gain.before
    assert torch.equal(result.correction, arguments[0].correction)
    monkeypatch.setattr("dear.methods.dear_plus.unlabeled.SURE", 1e9)
    assert fit_with_others(*arguments)[0] is arguments[0]


def test_noise_is_refused_and_told_to_be_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 7 of 8 drawings at least; on average, where scores that the strengths were fitted to gain by choice
    alone.
    """
    plain, examples, (frozen, _), settings = build_clusters(0.5)
    used, told, fitted = 0, 0.0, 0.0

    def fit_and_note(*arguments: Any) -> list[Fit]:
        nonlocal fitted
        fits = fit_weights(*arguments)
        losses = [float(cross_entropy(of.left_out[2], examples.labels)) for of in fits]
        fitted += losses[0] - min(losses[1:])
        return fits

    monkeypatch.setattr(unlabeled, "fit_weights", fit_and_note)
    for seed in range(8):
        noise = normalize(draw(*frozen.shape, seed=50 + seed), dim=-1)
        result, gain = fit_with_others(plain, examples, (noise, noise.unsqueeze(1)), settings)
        assert (result is plain) == (gain.weight == 0)
        used += result is not plain
        told += gain.before - gain.after
    assert used <= 1
    assert told < fitted
    assert told / 8 < 0.01


def test_orders_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of labeled images, of the others, and of the numbers of classes."""
    monkeypatch.setattr("dear.methods.dear_plus.unlabeled.SURE", 0.0)
    plain, examples, (frozen, groups), settings = build_clusters(1.0)
    expected, gain = fit_with_others(plain, examples, (frozen, groups), settings)
    items, numbers = torch.tensor([4, 8, 0, 2, 7, 1, 3, 6, 5]), torch.tensor([2, 0, 1])
    back = numbers.argsort()
    text, order = examples.text[back], examples.order[back]
    other = Examples(
        examples.frozen[items], examples.readouts[items], numbers[examples.labels[items]], text, order
    )
    found, same_gain = fit_with_others(
        fit(other, settings), other, (frozen.flip(0), groups.flip(0)), settings
    )
    assert gain.weight == same_gain.weight > 0
    assert same_gain.after == pytest.approx(gain.after, abs=1e-6)
    torch.testing.assert_close(found.strengths, expected.strengths, rtol=1e-5, atol=1e-6)
    for one, same in zip(found.left_out, expected.left_out, strict=True):
        torch.testing.assert_close(one, same[items][:, back], rtol=1e-5, atol=1e-5)
