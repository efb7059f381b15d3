"""PromptKD's projector and loss against their equations, and what a step changes."""

import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip
from dear.methods.base import Method
from dear.methods.promptkd import PromptKdSettings
from tests.conftest import MakeClip
from tests.helpers.data import CLASSES
from tests.helpers.methods import LABELS, TEMPLATE, images, make, target


def student(clip: Clip, settings: PromptKdSettings | None = None) -> Method:
    return make("promptkd", clip, settings=settings)


def given(method: Method) -> tuple[Tensor, Tensor]:
    return method.image_trunk(images(torch.float64)), method.target_features(images(torch.float64))


def test_the_loss_is_the_divergence_by_images_and_classes(make_small_clip: MakeClip) -> None:
    settings = PromptKdSettings(temperature=3.0, kd_weight=50.0)
    method = student(make_small_clip(dtype=torch.float64), settings)
    trunk, frozen = given(method)
    scale = float(method.clip.scale)
    with torch.no_grad():
        got = float(method.loss(trunk, LABELS, frozen)["loss"])
        mine, text = method.image_features(trunk)[0], method.text_features()
    want = 0.0
    for z, z0 in zip(mine, frozen, strict=True):
        q = [float((scale * z @ w / 3).exp()) for w in text]
        p = [float((scale * z0 @ w / 3).exp()) for w in text]
        for one, other in zip(p, q, strict=True):
            one, other = one / sum(p), other / sum(q)
            want += one * float(torch.tensor(one / other, dtype=torch.float64).log())
    assert got == pytest.approx(50 * 9 * want / (7 * 3), rel=1e-9)


def test_the_projector_is_as_torch_has_it(make_small_clip: MakeClip) -> None:
    """With the statistics of the batch in training, else with the running ones, which a batch moves."""
    method = student(make_small_clip(dtype=torch.float64))
    values = dict(method.named_parameters())
    norm = torch.nn.BatchNorm1d(17).double()
    norm.weight.data, norm.bias.data = values["norm_weight"].data + 0.3, values["norm_bias"].data - 0.2
    values["norm_weight"].data += 0.3
    values["norm_bias"].data -= 0.2
    first, second = torch.nn.Linear(17, 17, bias=False).double(), torch.nn.Linear(17, 17).double()
    first.weight.data, second.weight.data = values["first"].data, values["second"].data
    second.bias.data = values["bias"].data
    layers = torch.nn.Sequential(first, norm, torch.nn.ReLU(), second)
    rows = torch.randn(7, 17, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for training in (True, False, True, True, False):
        method.train(training)
        layers.train(training)
        torch.testing.assert_close(method._projected(rows), layers(rows))  # type: ignore[operator]
    torch.testing.assert_close(method.get_buffer("running_var"), norm.running_var)


def test_one_image_is_normalized_by_the_running_statistics(make_small_clip: MakeClip) -> None:
    method = student(make_small_clip(dtype=torch.float64))
    trunk, _ = given(method)
    with torch.no_grad():
        want = method.image_features(trunk[:1])
        before = method.get_buffer("running_mean").clone()
        assert torch.equal(method.train().image_features(trunk[:1]), want)
        assert torch.equal(method.get_buffer("running_mean"), before)
        assert not torch.equal(method.image_features(trunk)[:, :1], want)


def test_views_are_resized_for_a_teacher_of_another_size(small_clip: Clip) -> None:
    from dear.backbone.loading.load import load_clip

    method, teacher = student(small_clip), make("promptsrc", load_clip("tiny"))
    method.set_teacher(teacher)
    method.set_classes(CLASSES, TEMPLATE)
    gray = torch.full((2, 3, 20, 20), 0.25)
    with torch.no_grad():
        want = teacher.image_features(teacher.image_trunk(torch.full((2, 3, 48, 48), 0.25)))[0]
        torch.testing.assert_close(method.target_features(gray), want, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        method.loss(method.image_trunk(images()), LABELS, *target(method))["loss"],
        method.loss(method.image_trunk(images()), -LABELS, *target(method))["loss"],
    )
