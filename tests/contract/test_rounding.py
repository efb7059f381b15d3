"""What a loss compares is in float32, whatever the precision of the layers: in bfloat16 scores between 16 and
32 would be 0.125 apart.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax
from torch.overrides import TorchFunctionMode

from dear.methods.registry import method_class
from tests.contract.test_methods import LABELS, TRAINED, MakeClip, images, make, target

STEPPED = [name for name in TRAINED if method_class(name).takes_steps]


class Compared(TorchFunctionMode):
    """Keeps the scores that go into a cross-entropy or a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func in (cross_entropy, log_softmax):
            self.scores.append(args[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", STEPPED)
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
