"""A method that learns from a teacher on unlabeled images: what each sees, what is recorded, who refuses."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dear.adapters.fit import fit
from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.errors import SettingsError
from dear.evaluation import trial as adapting
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial, build_untrained
from dear.methods.promptsrc import PromptSrcSettings
from dear.progress import TrainingStep
from dear.training import loop
from dear.training.settings import TrainSettings
from dear.writing import UNFINISHED
from tests.conftest import MakeClip
from tests.helpers.data import CLASSES, Noise, noise_dataset
from tests.helpers.records import numbers
from tests.helpers.runs import resolve_run, run_all

TRAINING = asdict(TrainSettings(epochs=2, batch=3, lr=1e-2))
EVERY = (*CLASSES, "blue square")
SETUP = MethodSetup("promptkd")
LARGER = {"teacher": "tiny", "teacher_pretrained": "random:3"}  # of 48 pixels


def run(
    clip: Clip, setups: list[MethodSetup], data: Dataset | None = None, **options: Any
) -> list[dict[str, Any]]:
    return run_all(clip, [data or noise_dataset()], setups, **{"shots": 2, "train": TRAINING} | options)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What each training was of: the method, its classes, the labels. Each takes 50 seconds."""
    seen: list[tuple[Any, ...]] = []
    clock = SimpleNamespace(perf_counter=lambda: 50.0 * len(seen))
    monkeypatch.setattr(adapting, "time", clock)

    def watched(method: Any, images: Any, *given: Any, **options: Any) -> Any:
        seen.append((method.name, method.classnames, images.labels.tolist()))
        return loop.train(method, images, *given, **options)

    monkeypatch.setattr(adapting, "train", watched)
    return seen


def test_the_teacher_sees_labels_and_the_student_images(
    small_clip: Clip, trained: list[tuple[Any, ...]]
) -> None:
    (record,) = run(small_clip, [SETUP])
    teacher, student = trained
    assert teacher == ("promptsrc", EVERY[:2], [0, 0, 1, 1])
    assert student == ("promptkd", EVERY, [-1] * 12)
    assert record["transductive"] is True
    assert len(record["fewshot"]["indices"]) == 4
    assert record["teacher"]["method"] == "promptsrc"
    assert record["teacher"]["weights"]["sha256"] == small_clip.identity.sha256
    assert [epoch["epoch"] for epoch in record["teacher"]["train"]["epochs"]] == [1, 2]
    assert set(record["results"]["base"]["per_class"]) == {*EVERY[:2]}
    assert set(record["results"]["novel"]["per_class"]) == {*EVERY[2:]}


def test_labels_of_novel_classes_change_nothing(small_clip: Clip) -> None:
    data = noise_dataset()
    swapped = Noise([0, 1, 2, 3] * 3, 1)
    swapped.labels = torch.tensor([0, 1, 3, 2] * 3)
    one, two = (run(small_clip, [SETUP], replace(data, train=train))[0] for train in (data.train, swapped))
    assert numbers(one)[:2] == numbers(two)[:2]


def test_students_share_a_teacher(small_clip: Clip, trained: list[tuple[Any, ...]]) -> None:
    two = MethodSetup("promptkd", {"temperature": 2.0}, label="T = 2")
    records = run(small_clip, [SETUP, two])
    assert [name for name, *_ in trained] == ["promptsrc", "promptkd", "promptkd"]
    assert records[0]["key"] != records[1]["key"]
    assert records[0]["teacher"] == records[1]["teacher"]
    losses = [[epoch["loss"] for epoch in record["train"]["epochs"]] for record in records]
    assert losses[0] != losses[1]
    assert [record["seconds"]["train"] for record in records] == [100, 100]


def test_a_teacher_of_another_backbone(small_clip: Clip) -> None:
    session, options = Session(), {"seed": 1, "shots": 2, "train": TRAINING}
    own, other = (
        resolve_run(
            session, small_clip, FewShot(), [noise_dataset()], MethodSetup("promptkd", settings), **options
        )
        for settings in ({}, LARGER)
    )
    assert own.teacher.weights["sha256"] != other.teacher.weights["sha256"]
    trial = Trial(session, other)
    trial.train(range(4))
    assert isinstance(trial.method.teacher, torch.nn.Module)
    assert trial.method.text_features().shape == (4, other.teacher.clip.image.embed_dim)
    assert not any("teacher" in name for name in trial.method.state_dict())


def test_a_teacher_trains_as_its_authors_do() -> None:
    """As published for its method, but for what the student's authors change; options are for both."""
    from dear.backbone.loading.load import load_clip

    clip = load_clip("tiny")
    for given, want in (({}, (0.005, 8, 20)), ({"epochs": 7}, (0.005, 8, 7))):
        protocol = PROTOCOLS["base-to-novel"]()
        run = resolve_run(Session(), clip, protocol, [noise_dataset()], SETUP, seed=1, train=given)
        training = run.teacher.training
        assert (training.lr, training.batch, training.epochs) == want
        assert run.teacher.settings == PromptSrcSettings(share=False)


def test_a_larger_teacher_has_prompts_in_nine_layers(make_small_clip: MakeClip) -> None:
    """As in zhengli97/PromptKD, whose ViT-L/14 has 24 layers; of its own runs PromptSRC would take 18."""
    clip = make_small_clip(depth=24, text_depth=12)
    session, arguments = Session(), (clip, FewShot(), [noise_dataset()])
    run = resolve_run(session, *arguments, SETUP, seed=1)
    assert run.teacher is not None
    prompts = {
        "promptkd": build_untrained(session, run).image_prompts,
        "its teacher": build_untrained(session, run.teacher).image_prompts,
        "promptsrc": build_untrained(
            session, resolve_run(session, *arguments, MethodSetup("promptsrc"), seed=1)
        ).image_prompts,
    }
    assert {name: len(of_layers) for name, of_layers in prompts.items()} == {
        "promptkd": 18, "its teacher": 9, "promptsrc": 18,
    }  # fmt: skip


@pytest.mark.parametrize("stopped", [1, 3], ids=["in the teacher", "in the student"])
def test_an_interrupted_run_goes_on(stopped: int, small_clip: Clip, tmp_path: Path) -> None:
    (whole,) = run(small_clip, [SETUP])
    epochs = 0

    def stop(_run: str, step: TrainingStep | None) -> None:
        nonlocal epochs
        epochs += step is not None and step.ends_epoch
        if epochs == stopped:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small_clip, [SETUP], out=tmp_path, progress=stop)
    kept = [path.name for path in (tmp_path / UNFINISHED).iterdir()]
    assert len(kept) == 1 + (stopped > 1)
    (again,) = run(small_clip, [SETUP], out=tmp_path)
    assert numbers(again) == numbers(whole)
    assert not [*(tmp_path / UNFINISHED).iterdir()]


def test_a_bundle_holds_the_teachers_features(tmp_path: Path) -> None:
    options = {"epochs": 2}
    data = noise_dataset()
    given: dict[str, Any] = {"model": "tiny", "method": "promptkd", "shots": 1, "train": options}
    bundle = fit(data, tmp_path / "b", settings=LARGER, **given)
    assert bundle.training.train_images == 4
    assert bundle.training.unlabeled_images == 12
    assert bundle.training.teacher is not None
    assert bundle.training.teacher["weights"]["pretrained"] == "random:3"
    predictor = Predictor(tmp_path / "b")
    assert not predictor.method.training
    size = predictor.clip.image_size
    views = torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([predictor.logits(view[None]) for view in views])
    torch.testing.assert_close(predictor.logits(views), alone, rtol=0, atol=1e-4)
    assert BundleEncoder(predictor).embed == predictor.encode(views).shape[-1]
    with pytest.raises(SettingsError, match="promptkd cannot score classes that it was not trained on"):
        predictor.logits(views, ["sea"])


def test_protocols_that_keep_images_for_later_refuse() -> None:
    able = [name for name in PROTOCOLS if "promptkd" in PROTOCOLS[name]().methods()]
    assert able == ["base-to-novel", "few-shot"]
    with pytest.raises(SettingsError, match="unlabeled images"):
        PROTOCOLS["cross-dataset"]().check_method(SETUP.declared)
