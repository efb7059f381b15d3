"""A training step never waits for its device and takes nothing from the CPU: traced on torch's meta device,
which computes shapes only, as if it were a GPU. What a loss compares is in float32, whatever the precision of
the layers: in bfloat16 scores between 16 and 32 would be 0.125 apart.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dear.methods.base import Method
from dear.methods.optional import step_hooks
from dear.methods.registry import METHODS
from tests.helpers.methods import LABELS, TRAINED, MakeClip, images, make, target

# Skip Tuning chooses classes by the images of each batch: how many, it must ask its device.
STEPPED = [name for name in TRAINED if METHODS[name].trains == "in steps" and name != "skip"]


class NothingFromTheCpu(TorchDispatchMode):
    """Raises for an operation that a tensor on the CPU takes part in."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves((args, kwargs, found)):
            assert not (isinstance(one, Tensor) and one.device.type == "cpu"), (
                f"{func} has a tensor on the CPU"
            )
        return found


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``there(things)``: a deep copy whose tensors, wherever they are held, are on the meta device."""

    def moved(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if tensor.dtype == torch.uint8:  # the state of a generator
            return tensor
        if id(tensor) not in memo:
            made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = made
        found: Tensor = memo[id(tensor)]
        return found

    monkeypatch.setattr(Tensor, "__deepcopy__", moved)
    monkeypatch.setattr(nn.Parameter, "__deepcopy__", moved)
    return copy.deepcopy


def step(method: Method, trunk: Tensor, labels: Tensor, given: tuple[Tensor, ...]) -> None:
    """The part of a step before its losses are read, and that after the optimizer's."""
    hooks = step_hooks(method)
    method.train()
    parts = method.loss(trunk, labels, *given)
    hooks.backward(parts, lambda loss: loss)
    assert any(parameter.grad is not None for parameter in method.trainable)
    hooks.after_step(0.5)


@pytest.mark.parametrize("name", STEPPED)
def test_a_step_stays_on_its_device(name: str, make_small_clip: MakeClip, there: Callable[..., Any]) -> None:
    method = make(name, make_small_clip())
    with torch.no_grad():
        trunk, given = method.image_trunk(images()), target(method)
        method.loss(trunk, LABELS, *given)  # what is computed once a run
    moved = there((method, trunk, LABELS, given))
    with NothingFromTheCpu():
        step(*moved)


class Compared(TorchFunctionMode):
    """Keeps the scores that go into a cross-entropy or a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func in (cross_entropy, log_softmax):
            self.scores.append(args[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*STEPPED, "skip"])
def test_a_loss_takes_unrounded_scores(name: str, make_small_clip: MakeClip) -> None:
    method = make(name, make_small_clip()).train()
    with torch.autocast("cpu", torch.bfloat16):
        trunk = method.image_trunk(images())
        targets = target(method)
        with Compared() as compared:
            method.loss(trunk, LABELS, *targets)
    assert compared.scores
    for scores in compared.scores:
        assert scores.dtype == torch.float32
        assert not torch.equal(scores, scores.bfloat16().float())


def test_features_under_autocast_are_not_rounded(make_small_clip: MakeClip) -> None:
    tower = make_small_clip().image
    token = torch.rand(5, tower.width)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tower.finish(token), tower.projected(tower.ln_final(token), tower.projection))
        embedded = tower.projected(token, tower.projection)
    assert torch.equal(embedded, token @ tower.projection)
