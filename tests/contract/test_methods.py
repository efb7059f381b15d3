"""What every method keeps to, whatever it does: parametrised over the registry."""

import copy
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dear.backbone.clip import Clip, tensors_hash
from dear.backbone.device import half
from dear.errors import DearError, RoleTableError
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.methods.base import TokenLayout
from dear.methods.coop import CoOpSettings
from dear.methods.declaration import MethodSettings
from dear.methods.optional import ResizesTensors, image_block, step_hooks, token_layout
from dear.methods.registry import METHODS, build_method
from dear.progress import TrainingStep
from dear.training import loop
from dear.training.settings import TrainSettings
from tests.helpers.data import CLASSES, Noise, noise_dataset
from tests.helpers.methods import (
    DECLARED,
    LABELS,
    OTHERS,
    OURS,
    SETTINGS,
    TEMPLATE,
    TRAINED,
    MakeClip,
    images,
    make,
    role_table,
    scores,
    seeded,
    state,
    target,
    train,
)
from tests.helpers.runs import resolve_run
from tools.parity import small

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clip(make_small_clip: MakeClip) -> Clip:
    return make_small_clip()


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
    assert method.declaration is declared
    assert type(method).__name__ == declared.implementation
    assert type(method).__module__ == f"dear.methods.{declared.folder}.method"
    assert type(method.settings) is declared.settings
    assert bool(method.trainable) == (declared.trains is not None)
    assert method.open_vocabulary == declared.open_vocabulary
    trained = {small.of_any_layer(n) for n, p in method.named_parameters() if p.requires_grad}
    assert trained == DECLARED[name]
    buffers = dict(method.named_buffers()).keys()
    assert {small.of_any_layer(n) for n in method.state_dict().keys() - buffers} == DECLARED[name]
    assert not any(p.requires_grad for p in clip.parameters())
    without = partial(build_method, name, clip, torch.Generator())
    if declared.roles == "required":
        with pytest.raises(RoleTableError, match="--roles FILE"):
            without()
    else:
        without()


@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_the_layout_says_where_the_patches_are(name: str, clip: Clip) -> None:
    """In the first layer that has learned tokens, keys of the patches are those of the untouched image."""
    method, tower = make(name, clip), clip.image
    layout = token_layout(method)
    if method.image_from > tower.depth:
        assert layout == TokenLayout()
        return
    block = image_block(method, method.image_from)
    trunk, seen, attend = method.image_trunk(images()), list[Tensor](), block.attend

    def watched(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(key)
        return attend(query, key, value, bias)

    block.attend = watched
    method.image_features(method.read_out(trunk))
    learned = seen[0].shape[2] - 26
    first = 1 + learned * layout.before_patches
    torch.testing.assert_close(
        seen[0][:, :, first : first + 25], block.query_key_value(trunk)[1][:, :, 1:], rtol=1e-5, atol=1e-5
    )
    assert 0 <= sum(layout.tokens_by_name.values()) <= learned
    assert {*layout.tokens_by_name} <= {*method.features}


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
        if isinstance(other, ResizesTensors):
            other.resize_to(saved)
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
    image, text = method.image_features(method.read_out(method.image_trunk(images()))), method.text_features()
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
    if method.declaration.cosine_scores:
        assert scores(method).abs().max() <= scale * (1 + 1e-6)
    image, text = method.image_features(method.read_out(method.image_trunk(images()))), method.text_features()
    if not method.declaration.cosine_scores and len(method.features) > 1:
        of_class = method.evidence(image, text)[0]
        torch.testing.assert_close(scores(method, decoupled=True), of_class, rtol=0, atol=1e-5)
    elif method.declaration.text_depends_on_image or not method.declaration.cosine_scores:
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
    assert not rough.declaration.takes_steps(rough.settings) or exact not in (mixed, cast)
    kinds = {one.dtype for name, one in rough.named_parameters() if "ln_" not in name}  # CLIP's LayerNorms
    assert kinds == {torch.float16}
    assert all(torch.isfinite(parameter).all() for parameter in rough.trainable)


@pytest.mark.parametrize("name", METHODS)
def test_results_do_not_depend_on_the_rest_of_the_batch(name: str, make_small_clip: MakeClip) -> None:
    method = make(name, make_small_clip(dtype=torch.float64))
    with torch.no_grad():
        trunk = method.image_trunk(images(torch.float64))
        whole, part = (method.image_features(method.read_out(tokens)) for tokens in (trunk, trunk[3:5]))
        torch.testing.assert_close(part, whole[:, 3:5], rtol=0, atol=1e-12)
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
        step_hooks(method).backward(parts, small.unscaled)
        found.append((parts["loss"].detach(), [parameter.grad for parameter in method.trainable]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_says_what_it_ran_with(name: str, clip: Clip) -> None:
    """Two epochs of it on noise, with the settings that it is published with."""
    setup = MethodSetup(name, vars(SETTINGS[name]) if name in SETTINGS else {})
    session, options = Session(), {"roles": role_table(clip), "train": {"epochs": 2}}
    run = resolve_run(session, clip, FewShot(), [noise_dataset()], setup, seed=1, shots=2, **options)
    record, method = run_one(session, run), make(name, clip)
    used, declared = record["settings"]["train"], METHODS[name].settings.training
    if method.declaration.takes_steps(method.settings):
        assert (used["optimizer"], used["epochs"]) == (declared.get("optimizer", "adamw"), 2)
    else:
        assert {"optimizer", "epochs"}.isdisjoint(used)
    assert len(record["train"]["epochs"]) == 2 * (
        method.declaration.takes_steps(method.settings) and bool(method.trainable)
    )
