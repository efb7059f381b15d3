"""Captions: what they name, what they never name, and the words they are made of."""

import torch

from dear.data.world.factors import FACTOR_NAMES, FACTORS
from dear.data.world.scene import draw_scenes
from tools.captions import describe, plain_prompts, words_of, world_words

INDEX = torch.arange(1009)
SCENE = draw_scenes(5, INDEX)
CAPTIONS = describe(SCENE, 5, INDEX)


def mentions(text: str, factor: str, value: int) -> bool:
    """Whether a text contains a word (or phrase) of a value, as whole words."""
    padded = f" {' '.join(words_of(text))} "
    return any(f" {' '.join(words_of(word))} " in padded for word in FACTORS[factor].words[value])


def test_named_factors_are_mentioned_with_the_right_value():
    for text, named, values in zip(
        CAPTIONS.texts, CAPTIONS.named.tolist(), SCENE.factors.tolist(), strict=True
    ):
        for factor, flag, value in zip(FACTOR_NAMES, named, values, strict=True):
            assert not flag or mentions(text, factor, value), (text, factor)


def test_factors_that_are_not_named_are_not_mentioned():
    for text, named in zip(CAPTIONS.texts, CAPTIONS.named.tolist(), strict=True):
        for factor, flag in zip(FACTOR_NAMES, named, strict=True):
            found = [value for value in range(len(FACTORS[factor])) if mentions(text, factor, value)]
            assert flag or not found, (text, factor)


def test_plain_prompts():
    assert plain_prompts("color")[1] == "a photo of a orange thing."
    assert plain_prompts("place")[0] == "a photo taken at the beach."
    assert plain_prompts("texture")[2] == "a photo of something dotted."
    known = set(world_words())
    for factor in FACTOR_NAMES:
        prompts = plain_prompts(factor)
        assert len(set(prompts)) == len(FACTORS[factor])
        assert all(set(words_of(prompt)) <= known for prompt in prompts)
