"""The matrix products and attentions of a training step of DeAR are no more than those counted by hand."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dear.backbone import text as text_tower
from dear.backbone.clip import Clip
from dear.methods.dear.method import Dear
from tests.helpers.methods import small_dear

MATRIX, ATTENTION = ("mm", "addmm", "bmm", "baddbmm"), "_scaled_dot_product_flash_attention_for_cpu"


class Calls(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counted(work: Callable[[], None]) -> Counter[str]:
    with Calls() as calls:
        work()
    return calls.names


def a_step(method: Dear, *, cached: bool = False) -> Callable[[], None]:
    images = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    held = method.image_trunk(images)
    frozen = method.frozen_image(held)

    def work() -> None:
        if cached:
            loss = method.loss(held, torch.tensor([2, 0]), frozen)["loss"]
        else:
            loss = method.loss(method.image_trunk(images), torch.tensor([2, 0]))["loss"]
        loss.backward()

    return work


@pytest.mark.parametrize("apart", [False, True])
def test_a_training_step_is_at_the_least(
    apart: bool, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of each length apart, and all of them together, as is the rule for so small a tower."""
    monkeypatch.setattr(text_tower, "GROUP_WORTH", 0 if apart else text_tower.GROUP_WORTH)
    method = small_dear(small_clip)
    groups = 3 if apart else 1  # of 11, 7 and 8 tokens
    calls = counted(a_step(method))
    # Trunk: 4 a layer. Spans: 4 and 5 for the teacher, 5 and 5 with learned tokens; then the projections
    # (1 for the teacher, 2 for the student, 1 for the prompts), the fusion and the scores. The products of
    # all prompts are one, whatever their lengths.
    forward = 3 * 4 + (9 + 1) + (10 + 2) + (10 + 1) + 2
    # The first layer's queries, keys and values have a gradient in the learned tokens only; the shared
    # projection has one of its weight; fusion and scores have two each.
    backward = (4 + 5 + 2 + 1) + (4 + 5 + 1) + 2 + 2
    assert sum(calls[name] for name in MATRIX) == forward + backward
    # Of prompts: the beginning, which all share, and each length; in the last layer only their ends.
    assert calls[ATTENTION] == 3 + 2 + 2 + (1 + groups) + groups
    assert calls[f"{ATTENTION}_backward"] == 2 + (1 + groups) + groups
    assert calls["convolution"] == 1


def test_a_step_from_cached_trunk_outputs_has_no_trunk_and_no_teacher(small_clip: Clip) -> None:
    calls = counted(a_step(small_dear(small_clip), cached=True))
    assert (calls[ATTENTION], calls["convolution"]) == (2 + 3, 0)
