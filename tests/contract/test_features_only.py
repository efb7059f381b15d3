"""Methods on towers that give features only: those that need no more learn, the others are refused."""

import copy
from pathlib import Path

import pytest
import torch

from dear.adapters.attention import attention_maps
from dear.adapters.bundle import Bundle
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.open_clip_format import build_from, initial_weights_from
from dear.backbone.loading.tiny import WordTokenizer
from dear.backbone.names import REAL
from dear.errors import SettingsError, WeightsError
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.methods.atprompt import AtPromptSettings
from dear.methods.base import Method, TrainingImages
from dear.methods.optional import UsesAllImages, step_hooks
from dear.methods.registry import METHODS, build_method, methods_on
from tests.conftest import CONTEXT, MEAN, STD, WORDS
from tests.helpers.bundles import fitted
from tests.helpers.clips import COCA, RESNET, usual_view
from tests.helpers.data import CLASSES, noise_dataset
from tests.helpers.methods import LABELS, SETTINGS, TEMPLATE, role_table, seeded, state
from tests.helpers.runs import resolve_run
from tools.parity import small

OF_FEATURES = {
    "zero-shot",
    "ensemble",
    "linear-probe",
    "clip-adapter",
    "tip-adapter",
    "taskres",
    "clap",
    "gda",
    "lp++",
    "dear+",
}
OF_TEXTS = {"coop", "cocoop", "prograd", "tcp", "atprompt"}
KINDS = {"resnet": (RESNET, OF_FEATURES | OF_TEXTS), "coca": (COCA, OF_FEATURES)}


def clip_of(kind: str) -> Clip:
    words, config = WordTokenizer(WORDS, CONTEXT), copy.deepcopy(KINDS[kind][0])
    config["text_cfg"] |= {"vocab_size": words.vocab_size, "context_length": CONTEXT}
    with initial_weights_from(2):
        network = build_from("small", config)
    draw = seeded(4)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return to_clip(
        network, words, name="small", pretrained="random", preprocess=usual_view(network, MEAN, STD)
    )


def images(clip: Clip) -> torch.Tensor:
    return torch.rand(7, 3, clip.image_size, clip.image_size, generator=seeded(3))


def make(name: str, clip: Clip) -> Method:
    roles = role_table(clip) if METHODS[name].image == "heads" else None
    method = build_method(name, clip, seeded(1), roles=roles, settings=SETTINGS.get(name))
    method.set_classes(CLASSES, TEMPLATE)

    def view(_number: int | None) -> torch.Tensor:
        return method.read_out(method.image_trunk(images(clip)))

    if isinstance(method, UsesAllImages):
        method.before_training(TrainingImages(LABELS, view))
    return method


RUNS = [(kind, name) for kind, (_, names) in KINDS.items() for name in sorted(names)]


@pytest.mark.parametrize(("kind", "name"), RUNS)
def test_what_needs_no_more_learns(kind: str, name: str) -> None:
    clip = clip_of(kind)
    method, before = make(name, clip), state(clip)
    trunk = method.image_trunk(images(clip))
    assert trunk.shape == (7, 1, clip.image.embed_dim)
    losses = []
    if method.trainable and method.declaration.takes_steps(method.settings):
        optimizer = torch.optim.AdamW(method.trainable, lr=1e-2)
        for _ in range(12):
            optimizer.zero_grad()
            parts = method.loss(trunk, LABELS)
            step_hooks(method).backward(parts, small.unscaled)
            optimizer.step()
            losses.append(float(parts["loss"].detach()))
        assert losses[-1] < losses[0]
    with torch.no_grad():
        features = method.image_features(trunk)
        scores = method.logits(features, method.text_features())
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(len(method.features), 7))
    assert scores.shape == (7, 3)
    assert bool(scores.isfinite().all())
    assert state(clip) == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_others_are_refused(kind: str) -> None:
    clip, works = clip_of(kind), KINDS[kind][1]
    assert {*methods_on(clip.image.access, clip.text.access)} == works, (
        "a method that needs frozen features of images stands in OF_FEATURES, or in OF_TEXTS if it "
        "changes layers of the text tower"
    )
    for name in METHODS.keys() - works:
        with pytest.raises(SettingsError, match="but that of small gives features only") as caught:
            make(name, clip)
        assert all(words in str(caught.value) for words in (f"{name} needs the ", "zero-shot", REAL.model))


def test_settings_that_need_more() -> None:
    settings = AtPromptSettings(base="maple", attributes="sea, tree", tokens=1)
    with pytest.raises(SettingsError, match="atprompt with these settings changes layers of the image tower"):
        build_method("atprompt", clip_of("resnet"), seeded(1), settings=settings)


@pytest.mark.parametrize("name", ["coop", "clip-adapter"])
def test_a_run_and_its_bundle(name: str, tmp_path: Path) -> None:
    clip = clip_of("resnet")
    settings = SETTINGS.get(name, METHODS[name].settings())
    session, setup, train = Session(), MethodSetup(name, vars(settings)), {"epochs": 2, "batch": 4}
    run = resolve_run(session, clip, FewShot(), [noise_dataset()], setup, seed=1, shots=2, train=train)
    record = run_one(session, run, out=tmp_path / "runs")
    assert [len(record["train"]["epochs"]), record["weights"]["sha256"]] == [2, clip.identity.sha256]
    bundle, method = fitted(name, clip)
    bundle.save_pretrained(tmp_path / "bundle")
    predictor = Predictor(Bundle.from_pretrained(tmp_path / "bundle"), clip=clip)
    with torch.no_grad():
        expected = method.image_features(method.read_out(method.image_trunk(images(clip)))).transpose(0, 1)
    torch.testing.assert_close(predictor.encode(images(clip)), expected)
    with pytest.raises(WeightsError, match="no layers or attention heads"):
        attention_maps(method, images(clip)[0], 1, 0)
