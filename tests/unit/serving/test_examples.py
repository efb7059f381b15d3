"""Example images of the page: of a folder, or of a task of the Attribute World."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.backbone.clip import Clip
from dear.data.images.decode import as_image
from dear.data.loading import load_dataset
from dear.errors import DataError, SettingsError
from dear.serving.examples import load_examples
from tests.unit.serving.small import picture, small_predictor


def test_examples_of_a_folder(small_clip: Clip, tmp_path: Path) -> None:
    for seed in range(3):
        path = tmp_path / "some" / ("more" if seed else "") / f"cup {seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(seed).save(path)
    (tmp_path / "some" / "bad.png").write_bytes(b"x")
    bundle = small_predictor(small_clip).bundle
    examples = {example.name: example.png for example in load_examples(bundle, tmp_path / "some")}
    assert {*examples} == {"cup 0", "more/cup 1", "more/cup 2"}
    for name, content in examples.items():
        assert Image.open(io.BytesIO(content)).tobytes() == picture(int(name[-1])).tobytes()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        load_examples(bundle, tmp_path / "empty")
    with pytest.raises(SettingsError):
        load_examples(bundle, tmp_path / "none")


def test_examples_are_small(small_clip: Clip, tmp_path: Path) -> None:
    Image.new("RGB", (3000, 600)).save(tmp_path / "a.png")
    (example,) = load_examples(small_predictor(small_clip).bundle, tmp_path)
    assert Image.open(io.BytesIO(example.png)).size == (1024, 205)  # 600 pixels become 512, 3000 2560


def test_only_a_bundle_of_a_world_task_has_examples_of_its_own(small_clip: Clip) -> None:
    bundle, task = small_predictor(small_clip).bundle, load_dataset("mixed-paints")
    assert load_examples(bundle) == ()
    of_world = replace(bundle, training={"data": task.name, "data_identity": task.identity})
    examples = load_examples(of_world)
    assert len(examples) == len({example.name for example in examples}) == 8
    assert {example.name for example in examples} <= {*task.classnames}
    label = task.classnames.index(examples[3].name)
    rows = [row for row, row_label in enumerate(task.test.labels.tolist()) if row_label == label]
    pixels = Image.open(io.BytesIO(examples[3].png))
    assert any(as_image(image).tobytes() == pixels.tobytes() for image in task.test.load(torch.tensor(rows)))
    other = replace(bundle, training={"data": task.name, "data_identity": "a folder of that name"})
    assert load_examples(other) == ()
