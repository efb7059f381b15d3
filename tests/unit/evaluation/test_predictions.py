"""The file of predictions: what it holds by hand, and that it is read as it was written."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dear.data.fewshot import ClassSubset
from dear.errors import DataError
from dear.evaluation import predictions as module
from dear.evaluation.predictions import (
    ImagePredictions,
    Predictions,
    list_parts,
    load_predictions,
    predictions_file,
)
from tests.helpers.data import Noise

LABELS = [0, 2, 1, 2, 0]
PROBABILITIES = torch.tensor([[0.9, 0.1, 0], [0.25, 0.5, 0.25], [0.2, 0.6, 0.2], [0, 0.25, 0.75], [0, 0, 1]])


def predict(probabilities: torch.Tensor, labels: list[int], classes: str = "abc") -> Predictions:
    logits = (probabilities + 1e-6).log() + 3
    return Predictions(tuple(classes), torch.tensor(labels), logits, logits, logits)


@pytest.fixture
def rows() -> ImagePredictions:
    return ImagePredictions.of(predict(PROBABILITIES, LABELS), Noise(LABELS))


def test_by_hand(rows: ImagePredictions) -> None:
    assert rows.top.tolist() == [[0, 1, 2], [1, 0, 2], [1, 0, 2], [2, 1, 0], [2, 0, 1]]
    assert np.exp(rows.logits[:, 0] - rows.log_sums) == pytest.approx([0.9, 0.5, 0.6, 0.75, 1], abs=1e-5)
    assert np.exp(rows.label_logits - rows.log_sums) == pytest.approx([0.9, 0.25, 0.6, 0.75, 0], abs=1e-5)
    assert (rows.labels.tolist(), rows.indices.tolist()) == (LABELS, [0, 1, 2, 3, 4])
    assert (len({*rows.groups}), len(rows.paths), str(rows.folder)) == (5, 0, "")


def test_images_of_some_classes_keep_their_numbers_and_groups() -> None:
    images = Noise(LABELS)
    images.groups = ["clip", "clip", "", "clip", "other"]
    tested = ClassSubset(images, [1, 2])  # images 1, 2, 3
    rows = ImagePredictions.of(predict(torch.eye(2)[tested.labels], tested.labels.tolist(), "bc"), tested)
    assert rows.indices.tolist() == [1, 2, 3]
    assert rows.groups[0] == rows.groups[2] != rows.groups[1]


def test_a_file_is_read_as_it_was_written(rows: ImagePredictions, tmp_path: Path) -> None:
    parts = {"base": rows, "targets/a/b": ImagePredictions.of(predict(PROBABILITIES, LABELS), Noise(LABELS))}
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    for path in (first, second):
        path.write_bytes(predictions_file(parts))
    assert first.read_bytes() == second.read_bytes()
    assert list_parts(first) == ["base", "targets/a/b"]
    read = load_predictions(first, "targets/a/b")
    for name in ImagePredictions.__annotations__:
        np.testing.assert_allclose(getattr(read, name), getattr(rows, name)) if "log" in name else (
            np.testing.assert_array_equal(getattr(read, name), getattr(rows, name))
        )
    first.write_bytes(first.read_bytes()[:300])
    with pytest.raises(DataError, match=r"first\.npz is damaged"):
        list_parts(first)


def test_of_many_logits_the_highest_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LOGITS", 11)  # two of each image
    monkeypatch.setattr(module, "FEWEST_LOGITS", 1)
    rows = ImagePredictions.of(predict(PROBABILITIES, LABELS), Noise(LABELS))
    assert rows.top.tolist() == [[0, 1], [1, 0], [1, 0], [2, 1], [2, 0]]
    assert np.exp(rows.label_logits - rows.log_sums)[1] == pytest.approx(0.25, abs=1e-5)
