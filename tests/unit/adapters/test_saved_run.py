"""Runs whose trained parameters are saved: what is loaded gives the recorded scores."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.adapters.bundle_config import check_bundle
from dear.adapters.predictor import Predictor
from dear.adapters.saved_run import bundle_of_run, load_bundle, load_run
from dear.backbone.clip import Clip
from dear.data.fewshot import ClassSubset
from dear.data.images.transforms import load_test_views, to_unit
from dear.errors import BundleError
from dear.evaluation.predictions import load_predictions
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.records import read_record
from dear.evaluation.resolve import MethodSetup
from dear.methods import registry
from dear.methods.base import Method
from dear.methods.declaration import Declaration
from dear.methods.registry import METHODS, register
from tests.conftest import small_clip_of
from tests.helpers.data import noise_dataset
from tests.helpers.errors import refuses
from tests.helpers.methods import role_table
from tests.helpers.records import numbers
from tests.helpers.runs import run_all

SETTINGS: dict[str, dict[str, Any]] = {
    "dear": {"first": 8},
    "coop": {"tokens": 4},
    "prolip": {"epochs": 3, "views": 2, "lr": 1e-3},
    "clap": {"epochs": 3, "views": 2},
    "tac": {"clusters": 2, "text_tokens": 2, "image_tokens": 2},
}
METHODS_TRIED = [
    "zero-shot", "coop", "dear", "dear+", "clip-lora", "gda", "tip-adapter", "linear-probe", "clap", "prolip",
    "promptkd", "tac",
]  # fmt: skip


def save(clip: Clip, out: Path, method: str, protocol: str = "few-shot", **options: Any) -> Path:
    """Make a run with its weights; the path of its record."""
    run_all(
        clip,
        [noise_dataset()],
        [MethodSetup(method, SETTINGS.get(method, {}))],
        protocol=PROTOCOLS[protocol](),
        shots=2,
        train={"epochs": 2, "batch": 3, "lr": 1e-2, "warmup_epochs": 0},
        roles=role_table(clip),
        out=out,
        **{"keep_weights": True} | options,
    )
    (path,) = out.glob("*.json")
    return path


def views_of(clip: Clip, labels: list[int]) -> Tensor:
    images = ClassSubset(noise_dataset().test, labels)
    return to_unit(load_test_views(images, torch.arange(len(images)), clip.preprocess))


@pytest.mark.parametrize("name", METHODS_TRIED)
def test_a_loaded_run_has_the_recorded_scores(name: str, small_clip: Clip, tmp_path: Path) -> None:
    is_open = METHODS[name].open_vocabulary
    path = save(small_clip, tmp_path, name, "base-to-novel" if is_open else "few-shot")
    loaded = load_run(path, clip=small_clip)
    names, method = noise_dataset().classnames, loaded.method
    parts = {"base": [0, 1], "novel": [2, 3]} if is_open else {"all": [0, 1, 2, 3]}
    trained_on = names if METHODS[name].unlabeled or not is_open else names[:2]
    assert loaded.classes == method.classnames == trained_on
    for part, labels in parts.items():
        if not {names[label] for label in labels} <= {*method.classnames}:
            method.set_classes([names[label] for label in labels], noise_dataset().templates)
        with torch.no_grad():
            features = method.image_features(
                method.read_out(method.image_trunk(views_of(small_clip, labels)))
            )
            is_novel = part == "novel" and "classes" in method.declaration.decoupled_on
            logits = method.logits(features, method.text_features(), decoupled=is_novel)
        columns = [method.classnames.index(names[label]) for label in labels]
        recorded = load_predictions(path.with_suffix(".npz"), part)
        expected = torch.from_numpy(recorded.logits)
        at = torch.from_numpy(recorded.top.astype("int64"))
        torch.testing.assert_close(logits[:, columns].gather(1, at), expected, rtol=1e-5, atol=1e-4)


class Contrary(Method):
    """A method with one feature that prefers the most distant class where it was not trained."""

    declaration = Declaration(trains=None, decoupled_on=("classes",), image="features", text="features")

    def logits(self, image: Tensor, text: Tensor, *, decoupled: bool = False) -> Tensor:
        return (-3 if decoupled else 2) * image[0] @ text.T


def test_a_single_feature_is_decoupled_in_runs_and_in_bundles(
    small_clip: Clip, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whatever the number of features, a declaration decides where ``logits`` are decoupled."""
    name = register(f"{__name__}:Contrary").name
    request.addfinalizer(lambda: registry._methods.pop(name))
    path = save(small_clip, tmp_path, name, "base-to-novel")
    zero_shot, predictor = Method(small_clip), Predictor(path, clip=small_clip)
    for part, labels, factor in (("base", [0, 1], 2), ("novel", [2, 3], -3)):
        names, views = [noise_dataset().classnames[label] for label in labels], views_of(small_clip, labels)
        zero_shot.set_classes(names, noise_dataset().templates)
        image, text = zero_shot.image_features(zero_shot.image_trunk(views))[0], zero_shot.text_features()
        expected = factor * image @ text.T
        recorded = load_predictions(path.with_suffix(".npz"), part)
        at = torch.from_numpy(recorded.top.astype("int64"))
        torch.testing.assert_close(torch.from_numpy(recorded.logits), expected.gather(1, at))
        loaded = predictor.vocabulary(names)
        torch.testing.assert_close(loaded.logits(loaded.image_features(views)), expected)
        chosen = expected.argmax(dim=1) == ClassSubset(noise_dataset().test, labels).labels
        assert read_record(path)["results"][part]["accuracy"] == pytest.approx(float(chosen.double().mean()))
    decoupled = Predictor(path, clip=small_clip, decoupled=True)
    torch.testing.assert_close(
        decoupled.logits(views_of(small_clip, [0, 1])), predictor.logits(views_of(small_clip, [0, 1])) * -1.5
    )


def test_a_loaded_run_trains_on_and_becomes_a_bundle(small_clip: Clip, tmp_path: Path) -> None:
    loaded = load_run(save(small_clip, tmp_path / "runs", "coop"), clip=small_clip)
    views, labels = views_of(small_clip, [0, 1, 2, 3]), noise_dataset().test.labels
    folder = loaded.bundle.save_pretrained(tmp_path / "bundle")
    predicted = Predictor(folder, clip=small_clip).logits(views)
    torch.testing.assert_close(predicted, loaded.method(views).detach(), rtol=1e-5, atol=1e-4)
    (record,) = (tmp_path / "runs").glob("*.json")
    check_bundle(record)
    assert load_bundle(folder).tensors.keys() == load_bundle(record).tensors.keys()
    assert load_bundle(loaded.bundle) is loaded.bundle
    assert torch.equal(Predictor(record, clip=small_clip).logits(views), predicted)
    trunk = loaded.method.image_trunk(views)
    optimizer = torch.optim.SGD(loaded.method.trainable, lr=0.1)
    before = loaded.method.loss(trunk, labels)["loss"]
    before.backward()
    optimizer.step()
    assert loaded.method.loss(trunk, labels)["loss"] < before
    assert torch.equal(Predictor(loaded.bundle, clip=small_clip).logits(views), predicted)
    tensors = {name: values.detach().clone() for name, values in loaded.method.stored_tensors().items()}
    trained_on = Predictor(replace(loaded.bundle, tensors=tensors), clip=small_clip).logits(views)
    torch.testing.assert_close(trained_on, loaded.method(views).detach(), rtol=1e-5, atol=1e-4)
    assert not torch.allclose(trained_on, predicted, rtol=1e-5, atol=1e-4)


def test_facts_of_the_training_are_those_of_the_record(small_clip: Clip, tmp_path: Path) -> None:
    bundle = bundle_of_run(save(small_clip, tmp_path, "dear"))
    assert (bundle.settings.first, bundle.training.shots, bundle.training.train_images) == (8, 2, 8)
    assert (bundle.training.epoch, len(bundle.training.epochs)) == (2, 2)
    assert bundle.training.overrides["train"]["lr"] == 1e-2
    assert bundle.roles == role_table(small_clip)


def test_a_record_without_weights_is_made_again_if_they_are_asked_for(
    small_clip: Clip, tmp_path: Path
) -> None:
    path = save(small_clip, tmp_path, "coop", keep_weights=False)
    refuses(BundleError, "--keep-weights", load_run, path, clip=small_clip)
    first, record = path.stat().st_mtime_ns, read_record(path)
    save(small_clip, tmp_path, "coop")
    assert path.stat().st_mtime_ns > first
    with_weights = path.stat().st_mtime_ns
    for keep in (True, False):  # neither is made again
        save(small_clip, tmp_path, "coop", keep_weights=keep)
        assert path.stat().st_mtime_ns == with_weights
    assert numbers(record) == numbers(read_record(path) | {"adapter": None})


def test_other_weights_are_refused(small_clip: Clip, tmp_path: Path) -> None:
    path = save(small_clip, tmp_path, "coop")
    refuses(BundleError, "was fitted on small/random", load_run, path, clip=small_clip_of(seed=1))
    others = save(small_clip, tmp_path / "others", "coop", seeds=[2])
    path.with_suffix(".safetensors").write_bytes(others.with_suffix(".safetensors").read_bytes())
    refuses(BundleError, "its record", load_run, path, clip=small_clip)
    path.with_suffix(".safetensors").write_bytes(b"\0")
    refuses(BundleError, "not a complete", load_run, path, clip=small_clip)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": {"sha256": "0"}},
        {"weights": {"model": 3, "pretrained": None, "sha256": "0"}},
        {"settings": {"method": {"tokens": "many"}, "train": {}}},
        {"settings": {}},
        {"fewshot": {"indices": 7}},
        {"train": {"epochs": [1]}},
        {"roles": {"source": "mine"}},
        {"adapter": {"classes": []}},
        {"adapter": {"templates": ["no place for a name"]}},
    ],
)
def test_a_record_that_describes_no_method_is_refused(
    change: dict[str, Any], small_clip: Clip, tmp_path: Path
) -> None:
    path = save(small_clip, tmp_path, "coop")
    record = read_record(path)
    if "adapter" in change:
        change = {"adapter": record["adapter"] | change["adapter"]}
    path.write_text(json.dumps(record | change))
    refuses(BundleError, str(path), load_run, path, clip=small_clip)
