"""The work of a training step of DeAR, counted and not timed, stays at the least that is counted by hand.

A multiply-add counts as two, as in torch's counter. Matrix products and attention are counted; softmax,
LayerNorm, activations and sums are not. The gradient of attention counts five products, as in a fused kernel
(scores recomputed, then four). Neither frozen weights nor tokens before the learned ones enter have a
gradient.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dear.backbone import text_trunk
from dear.backbone.clip import Clip
from dear.methods.dear.method import Dear
from tests.unit.training.world import small_dear

MATRIX, ATTENTION = ("mm", "addmm", "bmm", "baddbmm"), "_scaled_dot_product_flash_attention_for_cpu"
PROMPTS = (11, 7, 8)  # "a photo of a" and 5, 1 or 2 words, with start and end


@dataclass(frozen=True)
class Tower:
    """Sizes of a tower. ``span`` is its number of layers from J to the last, at least two."""

    width: int
    layers: int
    span: int
    embed: int


@dataclass(frozen=True)
class Step:
    """A training step of DeAR.

    Attributes:
        lengths: The length of each class's prompt, start and end tokens included.
        shared: First tokens that are the same in all prompts, the start included.
        patch: Numbers in a patch: 3 x its side squared.
        attributes: Core attributes, with ``each`` tokens per attribute.
        text_tokens: Learned tokens of the text.
    """

    image: Tower
    text: Tower
    batch: int
    tokens: int
    patch: int
    lengths: Sequence[int]
    attributes: int
    each: int = 1
    text_tokens: int = 5
    shared: int = 1


def attention(batch: int, queries: int, keys: int, width: int) -> int:
    return 4 * batch * queries * keys * width


def whole_layers(number: int, batch: int, tokens: int, width: int) -> int:
    """Whole layers: queries, keys, values (3), the output (1) and the MLP (8 squares of the width)."""
    return number * (24 * batch * tokens * width**2 + attention(batch, tokens, tokens, width))


def span(tower: Tower, batch: int, tokens: int, *, added: int = 0, read: int = 1) -> tuple[int, int]:
    """Operations of the forward pass of the layers from J: matrix products, attention. Learned tokens, the
    same for all rows, are projected once; the last layer computes keys and values of all tokens and the rest
    only for the tokens that are read.
    """
    width, grown = tower.width, tokens + added
    first = 6 * (batch * tokens + added) + 18 * batch * grown
    between = 24 * batch * grown * (tower.span - 2)
    last = 4 * batch * grown + 20 * batch * read
    attending = (tower.span - 1) * attention(batch, grown, grown, width) + attention(
        batch, read, grown, width
    )
    return (first + between + last) * width**2, attending


def span_gradient(tower: Tower, batch: int, tokens: int, *, added: int, read: int = 1) -> tuple[int, int]:
    """Operations of its gradient with respect to the learned tokens: as many as forward, except for the
    tokens that were there before; attention takes five products instead of two.
    """
    forward, attending = span(tower, batch, tokens, added=added, read=read)
    return forward - 6 * batch * tokens * tower.width**2, attending * 5 // 2


def trunk(step: Step) -> int:
    tower, patches = step.image, step.batch * (step.tokens - 1)
    embedding = 2 * patches * step.patch * tower.width
    return embedding + whole_layers(tower.layers - tower.span, step.batch, step.tokens, tower.width)


def teacher(step: Step) -> int:
    """The frozen CLIP's image features, from the trunk."""
    tower = step.image
    return sum(span(tower, step.batch, step.tokens)) + 2 * step.batch * tower.width * tower.embed


def prompts_attention(step: Step) -> int:
    """Operations of attention in the text span, forward: in each layer but the last, of the shared tokens
    among themselves, once, and of each prompt's own to all before them; in the last of its end alone.
    """
    width, shared, total = step.text.width, step.shared + step.text_tokens, 0
    for length in step.lengths:
        own = length - step.shared
        total += (step.text.span - 1) * attention(1, own, shared + own, width)
        total += attention(1, 1, shared + own, width)
    return total + (step.text.span - 1) * attention(1, shared, shared, width)


def student(step: Step) -> int:
    """Forward and gradient of DeAR's own spans and scores."""
    image, text, classes = step.image, step.text, len(step.lengths)
    added = step.attributes * step.each
    attending = prompts_attention(step)
    total = attending + attending * 5 // 2
    for part in (span, span_gradient):
        total += sum(part(image, step.batch, step.tokens, added=added, read=1 + added))
        tokens = step.shared + sum(step.lengths) - classes * step.shared
        total += part(text, 1, tokens, added=step.text_tokens, read=classes)[0]
    project = 2 * image.embed * (step.batch * image.width * (1 + step.attributes) + classes * text.width)
    shared = 2 * step.batch * step.attributes * image.width * image.embed  # its weight's gradient
    fusion = 2 * step.batch * (1 + step.attributes) * image.embed
    scores = 2 * step.batch * classes * image.embed
    return total + 2 * project + shared + 3 * (fusion + scores)


def training_step(step: Step) -> dict[str, int]:
    """Operations of a step: "all", and "cached" with trunk and teacher taken from a view cache."""
    own = student(step)
    return {"all": trunk(step) + teacher(step) + own, "cached": own}


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


def counted(work: Callable[[], None]) -> tuple[int, Counter[str]]:
    with Calls() as calls, FlopCounterMode(display=False) as flops:
        work()
    return flops.get_total_flops(), calls.names


def step_of(lengths: Sequence[int]) -> Step:
    """The small CLIP: DeAR has layers 4 and 5 of the image tower, 3 and 4 of the text tower."""
    return Step(Tower(21, 5, 2, 17), Tower(22, 4, 2, 17), 2, 26, 3 * 4 * 4, lengths, attributes=2, shared=5)


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
    monkeypatch.setattr(text_trunk, "GROUP_WORTH", 0 if apart else text_trunk.GROUP_WORTH)
    method = small_dear(small_clip)
    groups, step = (3, step_of(PROMPTS)) if apart else (1, step_of([11] * 3))
    flops, calls = counted(a_step(method))
    assert flops == training_step(step)["all"]
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


def test_a_step_from_the_view_cache_has_no_trunk_and_no_teacher(small_clip: Clip) -> None:
    flops, calls = counted(a_step(small_dear(small_clip), cached=True))
    assert flops == training_step(step_of([11] * 3))["cached"]
    assert (calls[ATTENTION], calls["convolution"]) == (2 + 3, 0)
