"""The methods that leave both towers alone and work on features: what their equations say, by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.training.world import noise_dataset
from torch.nn.functional import normalize

from dear.adapters.bundle import Bundle
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.evaluation.experiment import Experiment
from dear.evaluation.metrics import evaluate
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.registry import PROTOCOLS
from dear.evaluation.run_context import RunContext
from dear.evaluation.runs import run_one
from dear.methods.base import Method
from dear.methods.registry import METHODS, build_method
from dear.training.settings import TrainOptions

CLASSES = ["red circle on the sea", "house", "green tree"]
TEMPLATE = ["a photo of a {}"]
CLOSED = [name for name, declared in METHODS.items() if not declared.open_vocabulary]


def build(name: str, clip: Clip, **options: Any) -> Method:
    method = build_method(
        name, clip, torch.Generator().manual_seed(1), settings=METHODS[name].settings(**options)
    )
    method.set_classes(CLASSES, TEMPLATE)
    return method


class TestClipAdapter:
    @pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
    @torch.no_grad()
    def test_the_mix_is_of_features_before_they_are_normalised(self, ratio: float, small_clip: Clip) -> None:
        method = build("clip-adapter", small_clip, ratio=ratio)
        trunk = method.image_trunk(torch.rand(2, 3, 20, 20))
        own = small_clip.image.finish(trunk[:, 0])
        # A bottleneck of 4 (17 / 4), of which the first two read one number each, and the last is dead.
        method.get_parameter("down").zero_()[[0, 1, 3], [0, 1, 2]] = torch.tensor([2.0, -1.0, 0.0])
        method.get_parameter("up").zero_()[[5, 6], [0, 1]] = torch.tensor([3.0, 4.0])
        adapted = torch.zeros(2, 17)
        adapted[:, 5] = 3 * (2 * own[:, 0]).clamp(min=0)
        adapted[:, 6] = 4 * (-own[:, 1]).clamp(min=0)
        want = normalize(ratio * adapted + (1 - ratio) * own, dim=-1)
        torch.testing.assert_close(method.image_features(trunk)[0], want)

    def test_a_wide_reduction_leaves_one(self, small_clip: Clip) -> None:
        assert build("clip-adapter", small_clip, reduction=99).get_parameter("down").shape == (1, 17)


class TestTaskRes:
    @torch.no_grad()
    def test_a_residual_is_added_to_the_feature_before_it_is_normalised(self, small_clip: Clip) -> None:
        method = build("taskres", small_clip, alpha=0.25)
        torch.testing.assert_close(method.text_features(), method.frozen_text)  # one template, from zero
        base = small_clip.text(small_clip.tokenize([f"a photo of a {name}" for name in CLASSES]))
        method.get_parameter("residual")[1, 4] = 8.0
        base[1, 4] += 2.0
        torch.testing.assert_close(method.text_features(), normalize(base, dim=-1), rtol=0, atol=1e-5)

    @torch.no_grad()
    def test_several_templates_are_averaged_as_they_are(self, small_clip: Clip) -> None:
        method = build_method("taskres", small_clip, torch.Generator())
        templates = ["a photo of a {}", "the {}"]
        method.set_classes(CLASSES, templates)
        each = [small_clip.text(small_clip.tokenize([t.format(name) for name in CLASSES])) for t in templates]
        want = normalize((each[0] + each[1]) / 2, dim=-1)
        torch.testing.assert_close(method.text_features(), want, rtol=0, atol=1e-5)


class TestMethodsBoundToTheirClasses:
    @pytest.mark.parametrize("name", CLOSED)
    def test_protocols_with_other_classes_refuse_them_before_anything_is_loaded(self, name: str) -> None:
        for protocol in (kind() for kind in PROTOCOLS.values()):
            assert protocol.fits(Plan(name)) == (name in protocol.methods()) == (protocol.name == "few-shot")
        with pytest.raises(
            SettingsError, match=f"{name} learns something for each class.*run it with few-shot"
        ):
            Experiment(BaseToNovel(), Path("x"), ("nowhere",), (Plan(name),))

    @pytest.mark.parametrize("name", CLOSED)
    def test_a_few_shot_run(self, name: str, small_clip: Clip, tmp_path: Path) -> None:
        context = RunContext(small_clip, training=TrainOptions(epochs=2, warmup_epochs=0))
        run = context.resolve(FewShot(), [noise_dataset()], Plan(name), seed=1, shots=2)
        record = run_one(context, run, out=tmp_path)
        assert len(record["fewshot"]["indices"]) == 8
        assert record["results"]["all"]["accuracy"] > 0
        assert run_one(context, run, out=tmp_path) == record  # it is read, and it is sound

    @pytest.mark.parametrize("name", CLOSED)
    def test_a_bundle_knows_its_classes_alone(
        self, name: str, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dear.adapters.fit.load_clip", lambda *_args, **_options: small_clip)
        data = noise_dataset()
        made = fit(data, tmp_path / "bundle", method=name, shots=2, train=TrainOptions(epochs=2))
        one = Predictor(Bundle.from_pretrained(tmp_path / "bundle"), clip=small_clip)
        assert one.classes == data.classnames
        assert evaluate(one.method, data.test).accuracy == pytest.approx(made.metrics["accuracy"])
        with pytest.raises(SettingsError, match=f"{name} cannot score classes that it was not trained on"):
            one.vocabulary(["house"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clip-adapter", {"ratio": 1.5}, "clip_adapter.ratio is 1.5: it must be from 0 to 1"),
        ("clip-adapter", {"reduction": 0}, "clip_adapter.reduction is 0: it must be at least 1"),
        ("taskres", {"alpha": -1.0}, "taskres.alpha is -1.0: it must be at least 0"),
    ],
)
def test_settings_out_of_bounds(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        METHODS[name].settings(**options)
