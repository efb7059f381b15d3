"""What every method keeps to, whatever it does: parametrised over the registry."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip, tensors_hash
from dear.backbone.precision import half
from dear.errors import DearError, RoleTableError
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.methods.atprompt import AtPromptSettings
from dear.methods.base import Method, TokenLayout, TrainingImages
from dear.methods.cocoop import CoCoOpSettings
from dear.methods.coop import CoOpSettings
from dear.methods.dear import DearSettings
from dear.methods.dear_plus import DearPlusSettings
from dear.methods.declaration import MethodSettings
from dear.methods.prograd import ProGradSettings
from dear.methods.promptsrc import PromptSrcSettings
from dear.methods.registry import METHODS, build_method
from dear.methods.tac import TacSettings
from dear.methods.tip_adapter import TipAdapterSettings
from dear.progress import TrainingStep
from dear.roles.table import HeadRole, RoleTable
from dear.training import loop
from dear.training.settings import TrainSettings
from tests.parity import small
from tests.unit.training.world import Noise, noise_dataset

ROOT = Path(__file__).parents[2]
CLASSES = ["red circle on the sea", "house", "green tree"]
OTHERS = ["blue square", "a tree", "red house", "sea", "green circle"]
TEMPLATE = ["a photo of a {}"]
OURS: dict[str, tuple[set[str], str]] = {
    "zero-shot": (set(), "tests/contract/test_zero_shot.py"),
    "linear-probe": ({"weight", "bias"}, "tests/parity/test_linear_probe.py"),
    "gda": ({"weight", "bias"}, "tests/parity/test_gda.py"),
    "lp++": ({"weight", "bias", "text_weights"}, "tests/parity/make_probes.py"),
    "clap": ({"class_vectors"}, "tests/parity/make_probes.py"),
    "prolip": ({"projection"}, "tests/parity/make_probes.py"),
    "clip-lora": ({"image_down", "image_up", "text_down", "text_up"}, "tests/parity/test_clip_lora.py"),
    "dear": ({"attribute_tokens", "text_tokens", "projection", "fusion"}, "tests/parity/test_naive.py"),
    "dear+": ({"correction", "means", "strengths"}, "tests/unit/methods/test_dear_plus_fitting.py"),
}
"""Trained parameters of methods without a case in tests/parity/public, and the file that has a reference."""
DECLARED = {name: declared for name, (declared, _) in OURS.items()}
DECLARED |= {name: set(public["parameters"]) for name, public in small.references().items()}


# Where the published settings leave nothing to test on the small CLIP.
SETTINGS: dict[str, MethodSettings] = {
    "dear": DearSettings(first=8),  # 5 of 12 layers: layers 4 and 5 of 5
    "dear+": DearPlusSettings(first=8),  # as DeAR
    "coop": CoOpSettings(tokens=3, words=""),  # a random start
    "atprompt": AtPromptSettings(attributes="sea, tree", tokens=1),  # words that are one token
    "promptsrc": PromptSrcSettings(teacher="dataset"),  # of one template, not 60
    "prograd": ProGradSettings(tokens=5),  # 13 places in all
    "cocoop": CoCoOpSettings(tokens=3, words="", reduction=4),  # a hidden layer of more than one
    "tac": TacSettings(clusters=2, text_tokens=1, words=""),  # 13 places in all
    "tip-adapter": TipAdapterSettings(tuned=True),  # as published nothing is trained
}
TRAINED = sorted(name for name, declared in DECLARED.items() if declared)
MakeClip = Callable[..., Clip]


@pytest.fixture
def clip(make_small_clip: MakeClip) -> Clip:
    return make_small_clip()


def table(clip: Clip) -> RoleTable:
    kinds: list[Any] = [
        ("core", "color"), ("mixed", None), ("generalization", None), ("core", "object"),
        ("other-specialized", None), ("mixed", None),
    ]  # fmt: skip
    heads = tuple(HeadRole(4 + i // 3, i % 3, role, attribute) for i, (role, attribute) in enumerate(kinds))
    return RoleTable("by hand", clip.identity, ("color", "object"), heads)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(
    name: str, clip: Clip, seed: int | torch.Generator = 1, classes: list[str] = CLASSES,
    settings: MethodSettings | None = None,
) -> Method:  # fmt: skip
    generator = seeded(seed) if isinstance(seed, int) else seed
    settings = settings or SETTINGS.get(name)
    method = build_method(name, clip, generator, roles=table(clip), settings=settings)
    if (teacher := METHODS[name].teacher) is not None:
        method.set_teacher(make(teacher, clip, seed))
    method.set_classes(classes, TEMPLATE)
    if method.takes_steps:  # else it is taken untrained: steps would find nothing left to learn
        method.before_training(all_images(method))
    return method


def all_images(method: Method) -> TrainingImages:
    """The images of these tests, as training gives them."""
    like = method.clip.image.projection

    @torch.no_grad()
    def view(_number: int | None) -> Tensor:
        return method.read_out(method.image_trunk(images().to(like)))

    return TrainingImages(LABELS, view)


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(7, 3, 20, 20, generator=seeded(3), dtype=torch.float64).to(dtype)


def target(method: Method) -> tuple[Tensor, ...]:
    """What the loss gets besides the trunk and the labels, if it always does."""
    return (
        ()
        if method.target in (None, "trunk")
        else (method.target_features(images(method.clip.image.projection.dtype)),)
    )


LABELS = torch.tensor([0, 1, 2, 0, 2, 1, 1])


@torch.no_grad()
def scores(method: Method, decoupled: bool = False) -> Tensor:
    features = method.image_features(method.image_trunk(images()))
    return method.logits(features, method.text_features(), decoupled=decoupled)


def train(method: Method, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(method.trainable, lr=1e-2)
    trunk, losses = method.image_trunk(images()), []
    method.train()
    for step in range(steps):
        optimizer.zero_grad()
        parts = method.loss(trunk, LABELS, *target(method))
        method.backward(parts, small.unscaled)
        optimizer.step()
        method.after_step((step + 1) / steps)
        method.after_epoch(step + 1, steps)
        losses.append(float(parts["loss"].detach()))
    method.eval()
    return losses


def state(clip: Clip) -> str:
    """Hash over all parameters and buffers."""
    return tensors_hash(dict(clip.named_parameters()) | dict(clip.named_buffers()))


@pytest.mark.parametrize("name", METHODS)
def test_it_has_a_reference(name: str) -> None:
    """Stored values of its public code, or a test of its own."""
    assert name in DECLARED, (
        f"{name} has no tests/parity/public/{name}.json. Make it (docs/add-a-method.md), or add to OURS in "
        "tests/contract/test_methods.py its trained parameters and the test that holds it to a reference."
    )
    assert {*DECLARED} <= {*METHODS}
    if name in OURS:
        text = (ROOT / OURS[name][1]).read_text(encoding="utf-8")
        assert METHODS[name].settings.__name__ in text or f'"{name}"' in text


@pytest.mark.parametrize("name", [name for name in METHODS if name in DECLARED])
def test_it_is_as_its_folder_declares(name: str, clip: Clip) -> None:
    method, declared = make(name, clip), METHODS[name]
    assert method.name == name
    assert type(method).__name__ == declared.implementation
    assert type(method).__module__ == f"dear.methods.{declared.folder}.method"
    assert type(method.settings) is declared.settings
    assert bool(method.trainable) == declared.trains
    assert method.open_vocabulary == declared.open_vocabulary
    trained = {small.of_any_layer(n) for n, p in method.named_parameters() if p.requires_grad}
    assert trained == DECLARED[name]
    buffers = dict(method.named_buffers()).keys()
    assert {small.of_any_layer(n) for n in method.state_dict().keys() - buffers} == DECLARED[name]
    assert not any(p.requires_grad for p in clip.parameters())
    without = partial(build_method, name, clip, torch.Generator())
    if declared.needs_roles and not declared.without_roles:
        with pytest.raises(RoleTableError, match="--roles FILE"):
            without()
    else:
        without()


@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_the_layout_says_where_the_patches_are(name: str, clip: Clip) -> None:
    """In the first layer that has learned tokens, keys of the patches are those of the untouched image."""
    method, tower = make(name, clip), clip.image
    if method.image_from > tower.depth:
        assert method.layout == TokenLayout()
        return
    block = method.image_block(method.image_from)
    trunk, seen, attend = method.image_trunk(images()), list[Tensor](), block.attend

    def watched(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(key)
        return attend(query, key, value, bias)

    block.attend = watched
    method.image_features(trunk)
    learned = seen[0].shape[2] - 26
    first = 1 + learned * method.layout.before_patches
    torch.testing.assert_close(
        seen[0][:, :, first : first + 25], block.query_key_value(trunk)[1][:, :, 1:], rtol=1e-5, atol=1e-5
    )
    assert 0 <= sum(method.layout.tokens_by_name.values()) <= learned
    assert {*method.layout.tokens_by_name} <= {*method.features}


@pytest.mark.parametrize("name", TRAINED)
def test_training_learns_and_leaves_the_frozen_weights_bitwise_alone(name: str, clip: Clip) -> None:
    before = state(clip)
    method = make(name, clip)
    start = copy.deepcopy(method.state_dict())
    losses = train(method, 5)
    assert state(clip) == before
    assert losses[-1] < losses[0]
    assert all(not torch.equal(value, start[key]) for key, value in method.named_parameters())
    assert all(p.grad is None for p in clip.parameters())


@pytest.mark.parametrize("name", TRAINED)
def test_same_seed_same_parameters_and_losses(name: str, clip: Clip) -> None:
    generator = seeded(2)
    one, two, other = make(name, clip, 1), make(name, clip, 1), make(name, clip, generator)
    torch.rand(5)  # the global generator plays no part
    assert tensors_hash(one.state_dict()) == tensors_hash(two.state_dict())
    drawn = not torch.equal(generator.get_state(), seeded(2).get_state())  # some start at fixed values
    assert (tensors_hash(one.state_dict()) != tensors_hash(other.state_dict())) == drawn
    assert train(one, 3) == train(two, 3)
    assert tensors_hash(one.state_dict()) == tensors_hash(two.state_dict())


@pytest.mark.parametrize("name", METHODS)
def test_state_dict_round_trip(name: str, clip: Clip) -> None:
    method = make(name, clip)
    if method.trainable:
        train(method, 3)
    saved = copy.deepcopy(method.state_dict())
    fresh = make(name, clip, seed=5)
    if method.trainable:
        assert not torch.equal(scores(fresh), scores(method))
    fresh.load_state_dict(saved)
    assert torch.equal(scores(fresh), scores(method))


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, None) for name in METHODS), ("coop", CoOpSettings(class_specific=True))]
)
def test_classes_can_be_changed_and_changed_back(
    name: str, settings: MethodSettings | None, clip: Clip
) -> None:
    """Or other classes are refused, and the method is left as it was."""
    method = make(name, clip, settings=settings)
    assert (before := scores(method)).shape == (7, 3)
    if method.open_vocabulary:
        method.set_classes(OTHERS, TEMPLATE)
        assert (method.classnames, scores(method).shape) == (tuple(OTHERS), (7, 5))
        other, saved = make(name, clip, classes=OTHERS), method.state_dict()
        other.make_room(saved)
        other.load_state_dict(saved)  # some keep what they made of the classes that were trained on
        assert torch.equal(scores(method), scores(other))
    else:
        with pytest.raises(DearError, match="cannot score classes other than"):
            method.set_classes(OTHERS, TEMPLATE)
        assert method.classnames == tuple(CLASSES)
    method.set_classes(CLASSES, TEMPLATE)
    assert torch.equal(scores(method), before)


@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_features_have_unit_norm_and_the_declared_shape(name: str, clip: Clip) -> None:
    method = make(name, clip)
    image, text = method.image_features(method.image_trunk(images())), method.text_features()
    assert image.shape == (len(method.features), 7, 17)
    assert text.shape == method.frozen_text.shape == (3, 17)
    for features in (image, text, method.frozen_text):
        torch.testing.assert_close(features.norm(dim=-1), torch.ones(features.shape[:-1]), atol=1e-6, rtol=0)
    assert not torch.equal(image[0, 0], image[0, 1])


@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_fused_scores_lie_within_the_temperature(name: str, clip: Clip) -> None:
    """Each score is a weighted mean of cosines over tau, and the decoupled one the class feature's cosine
    over tau; methods with other scores say so, and their decoupled one is the term of the class feature.
    """
    method = make(name, clip)
    scale = float(getattr(method, "scale", clip.scale))
    if method.cosine_scores:
        assert scores(method).abs().max() <= scale * (1 + 1e-6)
    image, text = method.image_features(method.image_trunk(images())), method.text_features()
    if not method.cosine_scores and len(method.features) > 1:
        of_class = method.evidence(image, text)[0]
        torch.testing.assert_close(scores(method, decoupled=True), of_class, rtol=0, atol=1e-5)
    elif method.text_depends_on_image or not method.cosine_scores:
        assert torch.equal(scores(method, decoupled=True), scores(method))
    else:
        torch.testing.assert_close(scores(method, decoupled=True), scale * image[0] @ text.T)
    if len(method.features) == 1:
        assert torch.equal(scores(method, decoupled=True), scores(method))
    assert torch.equal(method(images()), scores(method))


@pytest.mark.parametrize("name", TRAINED)
def test_training_in_other_precisions_is_near(name: str, clip: Clip) -> None:
    """In bfloat16 under autocast; with weights and trained parameters in float16, as the code of CoOp to
    PromptSRC runs on a GPU.
    """
    few = Noise([label % len(CLASSES) for label in range(7)])
    one = TrainSettings(epochs=2, batch=7, optimizer="sgd", lr=1e-2, warmup_epochs=0)
    rough = make(name, half(clip))
    exact, mixed, cast = (
        [epoch["loss"] for epoch in loop.train(method, few, replace(one, precision=precision), seed=1)]
        for method, precision in (
            (make(name, clip), "32-true"), (make(name, clip), "bf16-mixed"), (rough, "16-true"),
        )
    )  # fmt: skip
    assert mixed == pytest.approx(exact, rel=0.05)
    assert cast == pytest.approx(exact, rel=0.02)
    assert not rough.takes_steps or exact not in (mixed, cast)
    kinds = {one.dtype for name, one in rough.named_parameters() if "ln_" not in name}  # CLIP's LayerNorms
    assert kinds == {torch.float16}
    assert all(torch.isfinite(parameter).all() for parameter in rough.trainable)


@pytest.mark.parametrize("name", METHODS)
def test_results_do_not_depend_on_the_rest_of_the_batch(name: str, make_small_clip: MakeClip) -> None:
    method = make(name, make_small_clip(dtype=torch.float64))
    with torch.no_grad():
        trunk = method.image_trunk(images(torch.float64))
        whole = method.image_features(trunk)
        torch.testing.assert_close(method.image_features(trunk[3:5]), whole[:, 3:5], rtol=0, atol=1e-12)
    assert whole.dtype == torch.float64


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_that_was_cut_off_goes_on(name: str, clip: Clip, tmp_path: Path) -> None:
    """As if nothing had happened, also with what a method keeps beside its parameters."""
    few = Noise([label % len(CLASSES) for label in range(7)])
    settings = TrainSettings(epochs=2, batch=7, optimizer="sgd", lr=1e-2, warmup_epochs=0)
    whole, cut, resumed = (make(name, clip) for _ in range(3))
    history = loop.train(whole, few, settings, seed=1)

    class Stop(Exception):
        pass

    def stop(step: TrainingStep) -> None:
        if step.ends_epoch:
            raise Stop

    with suppress(Stop):  # some take no steps
        loop.train(cut, few, settings, seed=1, checkpoint=tmp_path / "run.pt", progress=stop)
    again = loop.train(resumed, few, settings, seed=1, checkpoint=tmp_path / "run.pt")
    assert [epoch["loss"] for epoch in again] == [epoch["loss"] for epoch in history]
    assert tensors_hash(resumed.state_dict()) == tensors_hash(whole.state_dict())


@pytest.mark.parametrize("name", TRAINED)
def test_prompts_in_chunks_give_the_same_gradients(name: str, make_small_clip: MakeClip) -> None:
    method = make(name, make_small_clip(dtype=torch.float64)).train()
    trunk, given, found = method.image_trunk(images(torch.float64)), target(method), []
    for chunk in (0, 1, 2):
        method.text_chunk = chunk
        method.zero_grad()
        parts = method.loss(trunk, LABELS, *given)
        method.backward(parts, small.unscaled)
        found.append((parts["loss"].detach(), [parameter.grad for parameter in method.trainable]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_says_what_it_ran_with(name: str, clip: Clip) -> None:
    """Two epochs of it on noise, with the settings that it is published with."""
    setup = MethodSetup(name, vars(SETTINGS[name]) if name in SETTINGS else {})
    session, options = Session(), {"roles": table(clip), "train": {"epochs": 2}}
    run = session.resolve(clip, FewShot(), [noise_dataset()], setup, seed=1, shots=2, **options)
    record, method = run_one(session, run), make(name, clip)
    declared = METHODS[name].settings.training
    assert record["settings"]["train"]["optimizer"] == declared.get("optimizer", "adamw")
    assert record["settings"]["train"]["epochs"] == 2
    assert len(record["train"]["epochs"]) == 2 * (method.takes_steps and bool(method.trainable))
