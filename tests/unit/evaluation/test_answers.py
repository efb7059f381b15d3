"""What a record holds of answers, by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.data.dataset import Dataset, assemble
from dear.data.fewshot import ClassSubset
from dear.data.images.photos import PhotoImages
from dear.evaluation import answers as module
from dear.evaluation.answers import answers_of, content_hash
from dear.evaluation.metrics import Answers
from tests.unit.training.world import Noise

#                    index     0  1  2  3  4  5  6
LABELS = [0, 2, 1, 2, 0, 2, 1]
SAID = Answers(
    guesses=torch.tensor([0, 1, 1, 1, 2, 0, 2]),
    confidence=torch.tensor([0.9, 0.5, 0.6, 0.75, 0.99, 0.4, 0.4]),
    probability=torch.tensor([0.9, 0.25, 0.6, 0.125, 0.005, 0.3, 0.35]),
)


@pytest.fixture
def data() -> Dataset:
    images = Noise(LABELS)
    return assemble("noise", "Noise", ["a", "b", "c"], ["{}"], images, None, images)


def test_by_hand(data: Dataset) -> None:
    found = answers_of(["all"], data, data.test, "abc", SAID)
    assert found["part"] == ["all"]
    assert found["classes"] == ["a", "b", "c"]
    assert found["images"] == [2, 2, 3]
    assert found["right"] == [1, 1, 0]
    assert found["answered"] == [2, 3, 2]
    assert found["confusions"] == [[2, 1, 2], [0, 2, 1], [1, 2, 1], [2, 0, 1]]
    assert found["left_out"] == 0
    assert "folder" not in found
    assert [(one["index"], one["label"], one["answer"]) for one in found["mistakes"]] == [
        (4, 0, 2), (3, 2, 1), (1, 2, 1), (5, 2, 0), (6, 1, 2),
    ]  # fmt: skip
    assert found["mistakes"][1] == {
        "index": 3, "label": 2, "answer": 1, "confidence": 0.75, "probability": 0.125,
    }  # fmt: skip


def test_rare_confusions_are_counted_together(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS", 2)
    found = answers_of(["all"], data, data.test, "abc", SAID)
    assert found["confusions"] == [[2, 1, 2], [0, 2, 1]]
    assert found["left_out"] == 2


def test_images_of_some_classes_keep_their_numbers(data: Dataset) -> None:
    tested = ClassSubset(data.test, [1, 2])  # indices 1, 2, 3, 5, 6; labels 1, 0, 1, 1, 0
    said = Answers(torch.tensor([1, 0, 1, 0, 0]), torch.full((5,), 0.5), torch.full((5,), 0.25))
    found = answers_of(["novel"], data, tested, "bc", said)
    assert (found["images"], found["right"], found["confusions"]) == ([2, 3], [2, 2], [[1, 0, 1]])
    assert [one["index"] for one in found["mistakes"]] == [5]


def test_without_a_mistake(data: Dataset) -> None:
    said = replace(SAID, guesses=torch.tensor(LABELS))
    found = answers_of(["all"], data, data.test, "abc", said)
    assert (found["confusions"], found["mistakes"], found["left_out"]) == ([], [], 0)


def test_files_are_named_with_their_content(tmp_path: Path) -> None:
    Image.new("RGB", (5, 7)).save(tmp_path / "a.png")
    photos = PhotoImages(tmp_path, ["a.png"], torch.tensor([0]))
    data = assemble("photos", "Photos", ["a", "b"], ["{}"], photos, None, photos)
    said = Answers(torch.tensor([1]), torch.tensor([0.75]), torch.tensor([0.25]))
    found = answers_of(["all"], data, photos, "ab", said)
    assert found["folder"] == str(tmp_path.resolve())
    (one,) = found["mistakes"]
    assert (one["file"], one["sha256"]) == ("a.png", content_hash((tmp_path / "a.png").read_bytes()))
