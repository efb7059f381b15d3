"""What is particular to each of the first six peers; what they share is in tests/contract, their numbers in
tests/parity.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.evaluation.metrics import evaluate
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.evaluation.runs import run_one
from dear.methods.base import Method
from dear.methods.coop import CoOpSettings
from dear.methods.coop.method import CoOp
from dear.methods.promptsrc.method import PromptSRC, average_weights
from dear.methods.registry import METHODS, build_method
from tests.unit.training.world import noise_dataset

CLASSES = ["red circle on the sea", "house", "green tree"]


def made(context: RunContext, setup: MethodSetup) -> dict[str, Any]:
    run = context.resolve(BaseToNovel(), [noise_dataset()], setup, seed=1, shots=2)
    return run_one(context, run)


def make(clip: Clip, name: str, **options: Any) -> Method:
    settings = METHODS[name].settings(**options)
    method = build_method(name, clip, torch.Generator().manual_seed(1), settings=settings)
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


def images(count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, 20, 20, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def scores(method: Method, count: int = 2) -> torch.Tensor:
    features = method.image_features(method.image_trunk(images(count)))
    return method.logits(features, method.text_features())


@pytest.mark.parametrize(
    ("name", "options", "first"),
    [
        ("maple", {}, (1, 1)),
        ("promptsrc", {}, (1, 1)),
        ("mmrl", {}, (3, 3)),  # 7 of 12 layers: 2.9 of 5, 2.3 of 4
        ("mmrl", {"first": 4, "share": False}, (4, 4)),
        ("mmrl++", {"first": 12}, (5, 4)),
    ],
)
def test_where_spans_begin(
    name: str, options: dict[str, Any], first: tuple[int, int], small_clip: Clip
) -> None:
    method = make(small_clip, name, **options)
    assert (method.image_from, method.text_from) == first


def test_prompted_layers_keep_their_share(make_small_clip: Callable[..., Clip]) -> None:
    """9 of 12 layers, or as they are: 5 and 4, 12 and 6."""
    small, tall = make_small_clip(), make_small_clip(depth=12, text_depth=6)
    assert make(small, "promptsrc").get_parameter("image_prompts").shape == (4, 4, 21)
    assert make(small, "promptsrc", share=False).get_parameter("image_prompts").shape == (5, 4, 21)
    assert make(tall, "promptsrc").get_parameter("image_prompts").shape == (9, 4, 21)
    assert make(tall, "promptsrc").get_parameter("text_prompts").shape == (4, 4, 22)
    assert make(tall, "maple").get_parameter("coupling_deep_weight").shape == (8, 21, 22)
    assert make(tall, "maple").get_parameter("prompts_deep").shape == (8, 2, 22)


class TestCoOp:
    def test_a_context_for_each_class(self, small_clip: Clip) -> None:
        method = make(small_clip, "coop", class_specific=True, tokens=3, words="")
        assert isinstance(method, CoOp)
        assert method.context.shape == (3, 3, 22)
        before = scores(method)
        with torch.no_grad():
            method.context[1] += 1
        changed = (scores(method) != before).all(dim=0)
        assert changed.tolist() == [False, True, False]
        with pytest.raises(SettingsError, match="cannot score classes other than"):
            method.set_classes(["house"], ["a photo of a {}"])

    def test_which_has_no_base_to_novel(self, small_clip: Clip) -> None:
        setup = MethodSetup("coop", settings=CoOpSettings(class_specific=True))
        with pytest.raises(SettingsError, match="coop with these settings cannot score classes"):
            made(RunContext(small_clip), setup)


class TestPromptSRC:
    def test_weights_of_epochs_by_hand(self) -> None:
        bell = [math.exp(-0.5 * ((epoch - 2) / 3) ** 2) for epoch in (1, 2, 3, 4)]
        assert average_weights(4, 2.0, 3.0) == pytest.approx([one / sum(bell) for one in bell])
        assert sum(average_weights(5, 60.0, 0.5)) == pytest.approx(1)

    def test_the_average_takes_the_place_of_the_prompts(self, small_clip: Clip) -> None:
        method = make(small_clip, "promptsrc", average_mean=2, average_std=1, teacher="dataset")
        assert isinstance(method, PromptSRC)
        for epoch, value in enumerate((1.0, 10.0, 100.0), start=1):
            torch.nn.init.constant_(method.image_prompts, value)
            method.after_epoch(epoch, 3)
        side = math.exp(-0.5)
        want = (side * 1 + 10 + side * 100) / (1 + 2 * side)
        torch.testing.assert_close(method.image_prompts.detach(), torch.full((4, 4, 21), want))

    def test_the_teacher_is_the_mean_over_templates(self, small_clip: Clip) -> None:
        method = make(small_clip, "promptsrc", teacher="dataset")
        assert isinstance(method, PromptSRC)
        templates = ["a photo of a {}", "the {}"]
        method.set_classes(CLASSES, templates)
        encoded = [small_clip.encode_text([t.format(c) for c in CLASSES]) for t in templates]
        mean = (encoded[0] + encoded[1]) / 2
        torch.testing.assert_close(method.teacher(), mean / mean.norm(dim=1, keepdim=True))


class TestMMRL:
    def test_novel_classes_are_scored_by_the_class_feature(self, small_clip: Clip) -> None:
        method, test = make(small_clip, "mmrl", space=19), noise_dataset().test
        method.set_classes(noise_dataset().classnames, ["a photo of a {}"])
        plain, novel = evaluate(method, test), evaluate(method, test, novel=True)
        assert novel.accuracy == novel.decoupled == plain.decoupled
        assert plain.accuracy != plain.decoupled
        assert novel.per_class != plain.per_class

    def test_alpha_mixes_the_two_features(self, small_clip: Clip) -> None:
        method = make(small_clip, "mmrl", space=19, alpha=0.25, scale=None)
        image = torch.eye(17)[[0, 0, 1, 2]].view(2, 2, 17)  # cls: e0, e0; rep: e1, e2
        text = torch.eye(17)[:3]
        want = float(small_clip.scale) * torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.0, 0.75]])
        torch.testing.assert_close(method.logits(image, text), want)

    def test_published_weights_are_those_of_the_data_set(self) -> None:
        published = METHODS["mmrl++"].settings()
        assert published.for_data("OxfordPets") == METHODS["mmrl++"].settings(beta=0.7, reg_weight=0.01)
        assert published.for_data("street-signs") == published
        uniform = METHODS["mmrl"].settings(regularisation="uniform", reg_weight=2.0)
        assert uniform.for_data("EuroSAT") == uniform
        eurosat = METHODS["mmrl"].settings().for_data("EuroSAT")
        assert eurosat == METHODS["mmrl"].settings(reg_weight=0.01, space=2048)

    def test_a_target_has_the_beta_of_its_authors(self, small_clip: Clip) -> None:
        def of(**options: Any) -> Method:
            return make(small_clip, "mmrl++", space=19, token_std=1.0, **options)

        method, plain = of(beta_per_target="published"), scores(of())
        assert method.settings.tuned_for("EuroSAT") == {"beta": 0.3}
        assert method.settings.tuned_for("street-signs") == {}
        method.for_target("EuroSAT")
        assert torch.equal(scores(method), scores(of(beta=0.3)))
        for target in ("street-signs", None):
            method.for_target("EuroSAT")
            method.for_target(target)
            assert torch.equal(scores(method), plain)
        method = of()
        method.for_target("EuroSAT")
        assert torch.equal(scores(method), plain)
        assert not torch.equal(plain, scores(of(beta=0.3)))
