"""Confusions, scores by class and reliability, by hand and against scikit-learn."""

import pytest
import torch

from dear.evaluation.diagnosis import class_scores, confusion, expected_error, reliability

LABELS = torch.tensor([0, 0, 0, 1, 1, 3])
GUESSES = torch.tensor([0, 1, 0, 1, 2, 3])


def test_confusions_have_classes_down_and_answers_across() -> None:
    found = confusion(LABELS, GUESSES, 5)
    assert found.tolist() == [[2, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0] * 5, [0, 0, 0, 1, 0], [0] * 5]


def test_scores_of_the_classes_that_have_images_by_hand() -> None:
    first, second, last = class_scores(confusion(LABELS, GUESSES, 5), "abcde")
    assert (first.name, first.images, first.accuracy, first.precision) == ("a", 3, 2 / 3, 1.0)
    assert first.f1 == pytest.approx(0.8)  # 2 (2/3) (1) / (2/3 + 1)
    assert (second.name, second.accuracy, second.precision, second.f1) == ("b", 0.5, 0.5, 0.5)
    assert (last.name, last.f1) == ("d", 1.0)


def test_a_class_that_is_never_the_answer_has_no_precision_and_an_f1_of_0() -> None:
    (one,) = class_scores(confusion(torch.tensor([0]), torch.tensor([1]), 2), "ab")
    assert (one.accuracy, one.precision, one.f1) == (0.0, None, 0.0)


def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the extra `roles` is not installed")
    draw = torch.Generator().manual_seed(3)
    labels, guesses = torch.randint(7, (2, 211), generator=draw)
    wanted = metrics.precision_recall_fscore_support(labels, guesses, labels=range(7))
    found = class_scores(confusion(labels, guesses, 7), "abcdefg")
    assert confusion(labels, guesses, 7).tolist() == metrics.confusion_matrix(labels, guesses).tolist()
    for one, precision, recall, f1, images in zip(found, *wanted, strict=True):
        assert (one.precision, one.accuracy, one.f1) == pytest.approx((precision, recall, f1))
        assert one.images == images


def test_reliability_by_hand() -> None:
    # 15 bins: (0.4, 0.4667] holds two images, one of them right, (0.9333, 1] two, both right.
    confidence = torch.tensor([0.41, 0.45, 0.95, 1.0], dtype=torch.float64)
    bins = reliability(confidence, torch.tensor([True, False, True, True]))
    used = {at: one for at, one in enumerate(bins) if one.images}
    assert len(bins) == 15
    assert {*used} == {6, 14}
    assert (used[6].accuracy, used[14].accuracy) == (0.5, 1.0)
    assert (used[6].confidence, used[14].confidence) == pytest.approx((0.43, 0.975))
    assert (used[6].low, used[6].high) == pytest.approx((0.4, 7 / 15))
    assert expected_error(bins) == pytest.approx((2 * 0.07 + 2 * 0.025) / 4)


def test_no_confidence_at_all_is_in_the_first_bin() -> None:
    bins = reliability(torch.tensor([0.0]), torch.tensor([False]))
    assert [one.images for one in bins] == [1] + [0] * 14
