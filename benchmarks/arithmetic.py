"""Floating-point operations of DeAR, counted by hand: the minimum that its equations require.

A multiply-add counts as two, as in torch's counter. Matrix products and attention are counted; softmax,
LayerNorm, activations and sums are not. The gradient of attention counts five products, as in a fused kernel
(scores recomputed, then four). Neither frozen weights nor tokens before the learned ones enter have a
gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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


def layers(number: int, batch: int, tokens: int, width: int) -> int:
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
    return embedding + layers(tower.layers - tower.span, step.batch, step.tokens, tower.width)


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


def naive_step(step: Step, context: int = 77) -> int:
    """The usual code: both towers in full for student and teacher, prompts padded to the context, gradients
    of all tokens from J on; the whole last layer.
    """
    total = 0
    sizes = (
        (step.image, step.batch, step.tokens, step.attributes * step.each),
        (step.text, len(step.lengths), context, step.text_tokens),
    )
    for tower, batch, tokens, added in sizes:
        before = layers(tower.layers - tower.span, batch, tokens, tower.width)
        frozen = layers(tower.span, batch, tokens, tower.width)
        own = layers(tower.span, batch, tokens + added, tower.width)
        attending = tower.span * attention(batch, tokens + added, tokens + added, tower.width)
        total += 2 * before + frozen + 2 * own + attending * 3 // 2
    return total + 2 * 2 * step.batch * (step.tokens - 1) * step.patch * step.image.width
