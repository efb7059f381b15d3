"""Bundles: what is saved is what is loaded; whatever does not fit is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.contract.test_methods import CLASSES, SETTINGS, TEMPLATE, images, table
from torch import Tensor

from dear.backbone.clip import Clip
from dear.errors import BundleError, DataError, OutputError, SettingsError
from dear.methods.contract import Method
from dear.methods.registry import build_method, settings_of
from dear.methods.settings import METHODS, CoOpSettings
from dear.serving.bundle import Bundle, trained
from dear.serving.folder import ADAPTER, CARD, CONFIG
from dear.serving.predictor import Predictor

MakeClip = Callable[..., Clip]


def fitted(name: str, clip: Clip, settings: object = None) -> tuple[Bundle, Method]:
    """A method with parameters moved away from where they start, as training does, and its bundle."""
    mine = settings or SETTINGS.get(name) or settings_of(name, None)
    method = build_method(name, clip, torch.Generator().manual_seed(1), roles=table(clip), settings=mine)  # type: ignore[arg-type]
    method.set_classes(CLASSES, TEMPLATE)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in method.trainable:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    bundle = Bundle(
        method=name,
        settings=mine,  # type: ignore[arg-type]
        model="small",
        pretrained="random",
        weights=clip.identity,
        roles=table(clip) if name == "dear" else None,
        classes=tuple(CLASSES),
        templates=tuple(TEMPLATE),
        tensors={k: v.detach().clone() for k, v in trained(method).items()},
        temperature=1.7,
        metrics={"accuracy": 0.5},
        training={"data": "by hand", "shots": 3, "seed": 1, "test_images": 7},
    )
    return bundle, method


@torch.no_grad()
def scores(method: Method) -> Tensor:
    return method.logits(method.image_features(method.image_trunk(images())), method.text_features())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_saved_bundle_gives_the_same_bits(name: str, make_small_clip: MakeClip, tmp_path: Path) -> None:
    bundle, method = fitted(name, make_small_clip())
    folder = bundle.save_pretrained(tmp_path / "a bundle")
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, ADAPTER, CARD])
    assert [*tmp_path.iterdir()] == [folder]
    predictor = Predictor(folder, clip=make_small_clip())
    assert torch.equal(predictor.logits(images()), scores(method))
    loaded = Bundle.from_pretrained(folder)
    assert loaded.tensors.keys() == bundle.tensors.keys()
    assert all(torch.equal(loaded.tensors[key], bundle.tensors[key]) for key in bundle.tensors)
    assert replace(loaded, tensors={}) == replace(bundle, tensors={})


@pytest.mark.parametrize("name", sorted(METHODS))
def test_evidence_sums_to_the_logit(name: str, make_small_clip: MakeClip) -> None:
    clip = make_small_clip(dtype=torch.float64)
    bundle, _ = fitted(name, clip)
    predictor = Predictor(bundle, clip=clip)
    pictures = [Image.fromarray((255 * one).byte().permute(1, 2, 0).numpy()) for one in images()]
    found = predictor.predict(pictures, top=2)
    logits = predictor.logits(torch.stack([predictor.preprocess(one) for one in pictures]))
    assert predictor.features[0] == "class"
    for prediction, row in zip(found, logits, strict=True):
        shares = (row / 1.7).softmax(dim=0)
        order = row.argsort(descending=True)[:2].tolist()
        assert [one.name for one in prediction.top] == [CLASSES[at] for at in order]
        for one, at in zip(prediction.top, order, strict=True):
            assert tuple(one.evidence) == predictor.features
            assert sum(one.evidence.values()) == pytest.approx(one.logit, abs=1e-9)
            assert one.logit == pytest.approx(float(row[at]), abs=1e-9)
            assert one.probability == pytest.approx(float(shares[at]), abs=1e-12)
    assert len({round(one.best.logit, 9) for one in found}) == len(found)
