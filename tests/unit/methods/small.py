"""Methods on the small CLIP, and pictures for them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dear.backbone.block import Block
from dear.backbone.clip import Clip
from dear.evaluation.experiment import Experiment
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import check_methods
from dear.evaluation.session import Session
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear
from dear.methods.registry import METHODS, build_method
from dear.roles.table import RoleTable
from tests.unit.training.world import CLASSES as WORLD_CLASSES
from tests.unit.training.world import noise_dataset
from tests.unit.training.world import role_table as table

CLASSES = ["red circle on the sea", "house", "green tree"]
TEMPLATE = "a photo of a {}"


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(
    name: str, clip: Clip, classes: Sequence[str] = CLASSES, template: str = TEMPLATE, **options: Any
) -> Any:
    """A method with these settings and classes, untrained."""
    method = build_method(name, clip, seeded(1), settings=METHODS[name].settings(**options))
    method.set_classes(classes, [template])
    return method


def pixels(count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, 3, 20, 20, generator=seeded(3)).to(dtype)


def check_before_runs(clip: Clip, name: str, settings: Any, protocol: Protocol | None = None) -> None:
    """What is told before the first run on the data sets "first" and "second"."""
    setups = (MethodSetup(name, vars(settings)),)
    experiment = Experiment(protocol=protocol or BaseToNovel(), data=("first", "second"), methods=setups)
    datasets = [noise_dataset("first"), noise_dataset("second")]
    check_methods(Session(), experiment, clip, datasets, datasets)


ORIGINAL = 26


def dear(clip: Clip, roles: RoleTable | None = None, **options: Any) -> Dear:
    settings = DearSettings(**{"first": 8, "token_std": 0.5} | options)
    method = Dear(clip, roles or table(clip), torch.Generator().manual_seed(1), settings)
    method.set_classes(WORLD_CLASSES, ["a photo of a {}"])
    return method


def images(seed: int = 3) -> Tensor:
    return torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def block_of(method: Dear, layer: int) -> Block:
    block = method.clip.image.blocks[layer - 1]
    assert isinstance(block, Block)
    return block
