"""Methods on the small CLIP, and the images, classes and targets that they are tried on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone.block import Block
from dear.backbone.clip import Clip, tensors_hash
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import check_methods
from dear.evaluation.session import Session
from dear.methods.atprompt import AtPromptSettings
from dear.methods.base import Method, TrainingImages
from dear.methods.clap import ClapSettings
from dear.methods.cocoop import CoCoOpSettings
from dear.methods.coop import CoOpSettings
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear
from dear.methods.dear_plus import DearPlusSettings
from dear.methods.declaration import MethodSettings
from dear.methods.optional import ComputesTargets, HasTeacher, UsesAllImages, step_hooks
from dear.methods.prograd import ProGradSettings
from dear.methods.prolip import ProLipSettings
from dear.methods.promptsrc import PromptSrcSettings
from dear.methods.registry import METHODS, build_method
from dear.methods.tac import TacSettings
from dear.methods.tip_adapter import TipAdapterSettings
from dear.progress import TrainingStep
from dear.roles.table import HeadRole, RoleTable
from dear.training import loop
from tests.helpers.data import CLASSES, few, noise_dataset
from tests.helpers.runs import resolve_run
from tools.parity import small

OTHERS = ["blue square", "a tree", "red house", "sea", "green circle"]


TEMPLATE = ["a photo of a {}"]


OURS: dict[str, tuple[set[str], str]] = {
    "zero-shot": (set(), "tests/contract/test_zero_shot.py"),
    "linear-probe": ({"weight", "bias"}, "tests/parity/test_linear_probe.py"),
    "gda": ({"weight", "bias"}, "tests/parity/test_gda.py"),
    "lp++": ({"weight", "bias", "text_weights"}, "tools/parity/make_probes.py"),
    "ensemble": ({"weight", "bias"}, "tests/unit/methods/test_ensemble.py"),
    "clap": ({"class_vectors"}, "tools/parity/make_probes.py"),
    "prolip": ({"projection"}, "tools/parity/make_probes.py"),
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
    "clap": ClapSettings(epochs=20, views=3),  # hundreds of steps take seconds
    "prolip": ProLipSettings(epochs=5, views=3, lr=1e-3),
}


TRAINED = sorted(name for name, declared in DECLARED.items() if declared)


MakeClip = Callable[..., Clip]


KINDS: list[Any] = [
    ("core", "color"), ("mixed", None), ("generalization", None), ("core", "object"), ("other-specialized",
    None), ("mixed", None),
]  # fmt: skip


def role_table(clip: Clip) -> RoleTable:
    heads = tuple(HeadRole(4 + i // 3, i % 3, role, attribute) for i, (role, attribute) in enumerate(KINDS))
    return RoleTable("by hand", clip.identity, ("color", "object"), heads)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(
    name: str, clip: Clip, seed: int | torch.Generator = 1, classes: list[str] = CLASSES,
    settings: MethodSettings | None = None,
) -> Method:  # fmt: skip
    generator = seeded(seed) if isinstance(seed, int) else seed
    settings = settings or SETTINGS.get(name)
    method = build_method(name, clip, generator, roles=role_table(clip), settings=settings)
    if isinstance(method, HasTeacher):
        method.set_teacher(make(METHODS[name].teacher or "", clip, seed))
    method.set_classes(classes, TEMPLATE)
    # else it is taken untrained: steps would find nothing left to learn
    if method.declaration.takes_steps(method.settings) and isinstance(method, UsesAllImages):
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
    if not isinstance(method, ComputesTargets):
        return ()
    return (method.target_features(images(method.clip.image.projection.dtype)),)


LABELS = torch.tensor([0, 1, 2, 0, 2, 1, 1])


@torch.no_grad()
def scores(method: Method, decoupled: bool = False) -> Tensor:
    features = method.image_features(method.read_out(method.image_trunk(images())))
    return method.logits(features, method.text_features(), decoupled=decoupled)


def state(clip: Clip) -> str:
    """Hash over all parameters and buffers."""
    return tensors_hash(dict(clip.named_parameters()) | dict(clip.named_buffers()))


def train(method: Method, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(method.trainable, lr=1e-2)
    trunk, losses, hooks = method.image_trunk(images()), [], step_hooks(method)
    method.train()
    for step in range(steps):
        optimizer.zero_grad()
        parts = method.loss(trunk, LABELS, *target(method))
        hooks.backward(parts, small.unscaled)
        optimizer.step()
        hooks.after_step((step + 1) / steps)
        hooks.after_epoch(step + 1, steps)
        losses.append(float(parts["loss"].detach()))
    method.eval()
    return losses


def build(
    name: str, clip: Clip, classes: Sequence[str] = CLASSES, template: str = TEMPLATE[0], **options: Any
) -> Any:
    """A method with these settings and classes, untrained."""
    method = build_method(name, clip, seeded(1), settings=METHODS[name].settings(**options))
    method.set_classes(classes, [template])
    return method


def pixels(count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, 3, 20, 20, generator=seeded(3)).to(dtype)


def check_before_runs(clip: Clip, name: str, settings: Any, protocol: Protocol | None = None) -> None:
    """What is told before the first run on the data sets "first" and "second"."""
    session, setup = Session(), MethodSetup(name, vars(settings))
    datasets = [noise_dataset("first"), noise_dataset("second")]
    runs = [resolve_run(session, clip, protocol or BaseToNovel(), [data], setup, seed=1) for data in datasets]
    assert not check_methods(session, runs)


def small_dear(clip: Clip, seed: int = 1, **options: Any) -> Dear:
    settings = DearSettings(**{"first": 8} | options)
    method = Dear(clip, seeded(seed), settings, roles=role_table(clip))
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


ORIGINAL = 26
"""Image tokens of the small CLIP: the class token and 25 patches."""


def dear(clip: Clip, roles: RoleTable | None = None, **options: Any) -> Dear:
    settings = DearSettings(**{"first": 8, "token_std": 0.5} | options)
    method = Dear(clip, seeded(1), settings, roles=roles or role_table(clip))
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


def two_images(seed: int = 3) -> Tensor:
    return torch.rand(2, 3, 20, 20, generator=seeded(seed), dtype=torch.float64)


def block_of(method: Dear, layer: int) -> Block:
    block = method.clip.image.blocks[layer - 1]
    assert isinstance(block, Block)
    return block


def without_seconds(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The epochs of a training without what the clock tells."""
    return [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in history]


def stop_after(epoch: int) -> Callable[[TrainingStep], None]:
    """Progress that interrupts a training once the state of an epoch is saved."""

    def stop(step: TrainingStep) -> None:
        if step.ends_epoch and step.epoch == epoch:
            raise KeyboardInterrupt

    return stop


def train_until(epoch: int, method: Any, checkpoint: Path, settings: Any, **options: Any) -> None:
    """A training of seven pictures that is interrupted after an epoch."""
    with pytest.raises(KeyboardInterrupt):
        loop.train(
            method, few(), settings, seed=1, checkpoint=checkpoint, progress=stop_after(epoch), **options
        )
