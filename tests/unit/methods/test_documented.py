"""The classes in docs/add-a-method.md do what the page says of them."""

from typing import Any

import torch

from dear.backbone.clip import Clip
from dear.methods.vpt.method import VPT
from tests.documented import blocks
from tests.helpers.data import CLASSES
from tests.helpers.methods import LABELS, TEMPLATE, images, seeded


def documented(name: str, clip: Clip) -> Any:
    """A class of the page, built and with classes."""
    (code,) = (block for block in blocks("docs/add-a-method.md", "python") if f"class {name}(" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    method = names[name](clip, seeded(1))
    method.set_classes(CLASSES, TEMPLATE)
    return method


def test_each_earlier_layer_has_half_the_rate(small_clip: Clip) -> None:
    method, plain = documented("DecayedVPT", small_clip), VPT(small_clip, seeded(1))
    groups = method.parameter_groups()
    assert [group["rate"] for group in groups] == [0.0625, 0.125, 0.25, 0.5, 1.0]
    assert [part for group in groups for part in group["params"]] == method.trainable
    trunk = method.image_trunk(images())
    assert torch.equal(method.image_features(trunk), plain.image_features(trunk))
    method.loss(trunk, LABELS)["loss"].backward()
    assert all(part.grad.abs().max() > 0 for part in method.trainable)


def test_novel_classes_are_scored_by_the_first_feature(small_clip: Clip) -> None:
    method = documented("TwoFeatures", small_clip)
    assert method.declaration.decoupled_on == ("classes",)
    torch.nn.init.zeros_(method.map)
    method.map.data[0, 1] = 1.0
    features, text = method.image_features(method.image_trunk(images())), method.text_features()
    by_first, by_second = (small_clip.scale * feature @ text.T for feature in features)
    torch.testing.assert_close(method.logits(features, text, decoupled=True), by_first)
    torch.testing.assert_close(method.logits(features, text), (by_first + by_second) / 2)
