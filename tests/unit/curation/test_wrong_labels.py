"""Wrong labels by left-out scores, against a search over all shares and a case that is clear."""

import pytest
import torch
from torch import Tensor

from dear.curation.wrong_labels import TEMPERATURES, find_confused, fit_wrong_share, score_labels


def scores(items: int = 60, classes: int = 5, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Left-out scores that are mostly for the label."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(items) % classes
    noise = torch.randn(items, classes, generator=draw, dtype=torch.float64)
    return 12 * torch.nn.functional.one_hot(labels, classes).double() + noise, labels


def log_likelihood(of_label: Tensor, classes: int, share: float) -> float:
    parts = [(1 - share) * p + share * (1 - p) / (classes - 1) for p in of_label.tolist()]
    return float(torch.tensor(parts, dtype=torch.float64).log().mean())


def test_the_share_of_wrong_labels_is_the_likeliest() -> None:
    of_label, classes = torch.tensor([0.9, 0.8, 0.95, 0.01, 0.02, 0.7, 0.99], dtype=torch.float64), 5
    found, share = fit_wrong_share(of_label, classes)
    shares = [step / 2000 for step in range(1, 2000)]
    best = max(shares, key=lambda share: log_likelihood(of_label, classes, share))
    assert share == pytest.approx(best, abs=1e-3)
    assert found == pytest.approx(log_likelihood(of_label, classes, best), abs=1e-6)


def test_flipped_labels_look_wrong_and_no_others() -> None:
    values, true = scores()
    labels = true.clone()
    labels[[3, 17, 40]] = (true[[3, 17, 40]] + 2) % 5
    found = score_labels(values, labels)
    assert found.looks_wrong.nonzero().flatten().tolist() == [3, 17, 40]
    assert found.suggested[[3, 17, 40]].tolist() == true[[3, 17, 40]].tolist()
    assert found.wrong_share == pytest.approx(3 / 60, abs=0.02)


def test_the_probability_is_that_of_the_suggestion_beside_the_label() -> None:
    """By Bayes' rule, at the lowest temperature at which all labels are nearly the likeliest."""
    values, labels = scores(seed=2)
    labels = torch.where(torch.arange(60) % 10 == 0, (labels + 1) % 5, labels)
    found = score_labels(values, labels)

    def of_labels(temperature: float) -> Tensor:
        return (values / temperature).softmax(dim=1).gather(1, labels[:, None])[:, 0]

    fits = {t: log_likelihood(of_labels(t), 5, fit_wrong_share(of_labels(t), 5)[1]) for t in TEMPERATURES}
    best = min(t for t, value in fits.items() if 60 * (max(fits.values()) - value) <= 1)
    share = found.wrong_share
    for row, item in enumerate((values / best).softmax(dim=1).tolist()):
        label, other = int(labels[row]), int(found.suggested[row])
        assert other == max((k for k in range(5) if k != label), key=item.__getitem__)
        wrong, right = share / 4 * item[other], (1 - share) * item[label]
        assert float(found.probability[row]) == pytest.approx(wrong / (wrong + right), abs=1e-9)


def test_without_a_wrong_label_none_looks_wrong() -> None:
    assert not score_labels(*scores()).looks_wrong.any()
    assert not score_labels(torch.ones(4, 1), torch.zeros(4, dtype=torch.long)).looks_wrong.any()


def test_a_poor_classifier_only_says_where_to_look_first() -> None:
    """One that is sure and right of half of the labels contradicts right ones; a good one is believed."""
    values, labels = scores()
    assert score_labels(values, labels).is_precise
    poor = values.clone()
    poor[::2] = values[::2].roll(1, dims=1)
    found = score_labels(poor, labels)
    assert not found.is_precise


def test_classes_that_are_taken_for_each_other_are_paired() -> None:
    """Of ten images a class: 0 and 2 are confused five times, 1 and 3 three times, 3 and 4 six times."""
    labels = torch.arange(5).repeat_interleave(10)
    best = labels.clone()
    best[:2], best[20:23], best[10:13], best[30:36] = 2, 0, 3, 4
    assert find_confused(torch.nn.functional.one_hot(best, 5).double(), labels) == [
        (3, 4, 6, 20),
        (0, 2, 5, 20),
    ]
