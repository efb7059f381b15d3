"""What a classifier gets wrong, by hand and against scikit-learn, and what a record holds of it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.data.dataset import Dataset, assemble
from dear.data.fewshot import ClassSubset
from dear.data.images.photos import PhotoImages
from dear.evaluation import mistakes as module
from dear.evaluation.mistakes import Mistakes, content_hash, find_mistakes, record_entry, varied
from dear.evaluation.predictions import Predictions
from tests.unit.training.world import Noise

#         index  0  1  2  3  4  5  6
LABELS = [0, 2, 1, 2, 0, 2, 1]
PROBABILITIES = torch.tensor(
    [
        [0.9, 0.05, 0.05],
        [0.25, 0.5, 0.25],
        [0.2, 0.6, 0.2],
        [0.125, 0.75, 0.125],
        [0.005, 0.005, 0.99],
        [0.4, 0.3, 0.3],
        [0.25, 0.35, 0.4],
    ]
)


def predictions(classes: str, labels: list[int], probabilities: torch.Tensor) -> Predictions:
    logits = probabilities.log()
    return Predictions(tuple(classes), torch.tensor(labels), logits, logits)


PREDICTIONS = predictions("abc", LABELS, PROBABILITIES)


@pytest.fixture
def data() -> Dataset:
    images = Noise(LABELS)
    return assemble("noise", "Noise", ["a", "b", "c"], ["{}"], images, None, images)


def test_by_hand(data: Dataset) -> None:
    entry = record_entry(["all"], find_mistakes(PREDICTIONS, data.test, 12, torch.float32), data.test)
    assert entry["part"] == ["all"]
    assert entry["classes"] == ["a", "b", "c"]
    assert entry["images"] == [2, 2, 3]
    assert entry["correct"] == [1, 1, 0]
    assert entry["predicted"] == [2, 3, 2]
    assert entry["confusions"] == [[2, 1, 2], [0, 2, 1], [1, 2, 1], [2, 0, 1]]
    assert entry["left_out"] == 0
    assert "folder" not in entry
    examples = entry["examples"]
    assert [(m["index"], m["label"], m["prediction"]) for m in examples] == [
        (4, 0, 2), (3, 2, 1), (5, 2, 0), (6, 1, 2), (1, 2, 1),
    ]  # fmt: skip
    assert examples[1] == {
        "index": 3, "label": 2, "prediction": 1, "confidence": 0.75, "probability": 0.125,
    }  # fmt: skip


def test_an_entry_is_read_as_it_was_written(data: Dataset) -> None:
    mistakes = find_mistakes(PREDICTIONS, data.test, 3)
    read = Mistakes.from_record(record_entry(["all"], mistakes, data.test))
    assert replace(read, examples=()) == replace(mistakes, examples=())
    assert [m.index for m in read.examples] == [m.index for m in mistakes.examples] == [4, 3, 5]


def test_rare_confusions_are_counted_together(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDED_PAIRS", 2)
    entry = record_entry(["all"], find_mistakes(PREDICTIONS, data.test, 12), data.test)
    assert entry["confusions"] == [[2, 1, 2], [0, 2, 1]]
    assert entry["left_out"] == 2


def test_images_of_some_classes_keep_their_numbers(data: Dataset) -> None:
    tested = ClassSubset(data.test, [1, 2])  # indices 1, 2, 3, 5, 6; labels 1, 0, 1, 1, 0
    likely = torch.tensor([[0.3, 0.7], [0.7, 0.3], [0.3, 0.7], [0.7, 0.3], [0.7, 0.3]])
    mistakes = find_mistakes(predictions("bc", tested.labels.tolist(), likely), tested, 12)
    assert (mistakes.images, mistakes.correct, mistakes.confusions) == ((2, 3), (2, 2), ((1, 0, 1),))
    assert [mistake.index for mistake in mistakes.examples] == [5]


def test_without_a_mistake(data: Dataset) -> None:
    mistakes = find_mistakes(predictions("abc", LABELS, torch.eye(3)[LABELS] + 0.1), data.test, 12)
    assert (mistakes.confusions, mistakes.examples, mistakes.misclassified) == ((), (), 0)


def test_files_are_named_with_their_content(tmp_path: Path) -> None:
    Image.new("RGB", (5, 7)).save(tmp_path / "a.png")
    photos = PhotoImages(tmp_path, [("a.png", 0)])
    mistakes = find_mistakes(predictions("ab", [0], torch.tensor([[0.25, 0.75]])), photos, 12)
    entry = record_entry(["all"], mistakes, photos)
    assert entry["folder"] == str(tmp_path.resolve())
    (example,) = entry["examples"]
    assert (example["file"], example["sha256"]) == ("a.png", content_hash((tmp_path / "a.png").read_bytes()))


@pytest.mark.skipif(sys.platform == "darwin", reason="its file system takes UTF-8 only")
def test_names_that_are_not_utf_8_are_written_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "d\udce9"
    folder.mkdir()
    Image.new("RGB", (5, 7)).save(folder / "caf\udce9.png")
    photos = PhotoImages(folder, [("caf\udce9.png", 0)])
    mistakes = find_mistakes(predictions("ab", [0], torch.tensor([[0.25, 0.75]])), photos, 12)
    entry = record_entry(["all"], mistakes, photos)
    assert entry["folder"].endswith("/d?")
    assert entry["examples"][0]["file"] == "caf?.png"


COUNTS = Mistakes(tuple("abcde"), (3, 2, 0, 1, 0), (2, 1, 0, 1, 0), (2, 2, 1, 1, 0), ((0, 1, 1), (1, 2, 1)))


def test_confusions_have_classes_down_and_predictions_across() -> None:
    assert COUNTS.matrix().tolist() == [[2, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0] * 5, [0, 0, 0, 1, 0], [0] * 5]


def test_scores_of_the_classes_that_have_images_by_hand() -> None:
    first, second, last = COUNTS.class_scores()
    assert (first.name, first.images, first.accuracy, first.precision) == ("a", 3, 2 / 3, 1.0)
    assert first.f1 == pytest.approx(0.8)  # 2 (2/3) (1) / (2/3 + 1)
    assert (second.name, second.accuracy, second.precision, second.f1) == ("b", 0.5, 0.5, 0.5)
    assert (last.name, last.f1) == ("d", 1.0)


def test_a_class_that_is_never_predicted_has_no_precision_and_an_f1_of_0() -> None:
    (score,) = Mistakes(("a", "b"), (1, 0), (0, 0), (0, 1), ((0, 1, 1),)).class_scores()
    assert (score.accuracy, score.precision, score.f1) == (0.0, None, 0.0)


def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the extra `roles` is not installed")
    draw = torch.Generator().manual_seed(3)
    labels, predicted = torch.randint(7, (2, 211), generator=draw)
    images = Noise(labels.tolist())
    found = find_mistakes(predictions("abcdefg", labels.tolist(), torch.eye(7)[predicted] + 0.1), images, 0)
    expected = metrics.precision_recall_fscore_support(labels, predicted, labels=range(7))
    assert found.matrix().tolist() == metrics.confusion_matrix(labels, predicted).tolist()
    for score, precision, recall, f1, count in zip(found.class_scores(), *expected, strict=True):
        assert (score.precision, score.accuracy, score.f1) == pytest.approx((precision, recall, f1))
        assert score.images == count


def test_different_confusions_come_first() -> None:
    """Of the ranked items a to g: the first of each confusion, then the second, then the third."""
    confusions = {"a": (1, 2), "b": (1, 2), "c": (3, 2), "d": (1, 2), "e": (3, 2), "f": (2, 1), "g": (1, 2)}
    assert varied(confusions.items(), 7) == ["a", "c", "f", "b", "e", "d", "g"]
    assert varied(confusions.items(), 4) == ["a", "c", "f", "b"]
    assert varied({}.items(), 4) == []
