"""Captions: what they name, what they never name, and the words they are made of."""

import torch

from dear.data.world.factors import FACTOR_NAMES, FACTORS, STYLES
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


def test_hand_checked_scenes():
    values = torch.tensor([[0, 3, 1, 2, 1], [11, 8, 6, 7, 8]])
    scene = draw_scenes(5, torch.arange(2)).with_(
        factors=values, style=torch.zeros(2, dtype=torch.int64), glyph=torch.full((2,), -1)
    )
    first = ({"red", "crimson", "scarlet"}, {"star"}, {"striped", "stripy"}, {"fish"}, {"forest", "woods"})
    second = ({"grey", "gray", "silver"}, {"ring", "donut"}, {"wavy", "rippled"}, {"cup", "mug"}, {"space"})
    for draw in range(61):
        captions = describe(scene, 5, torch.arange(2), draw)
        for row, groups in enumerate((first, second)):
            words = set(words_of(captions.texts[row]))
            assert [bool(words & group) for group in groups] == captions.named[row].tolist(), captions.texts[
                row
            ]


def test_a_sketch_never_names_the_colour():
    sketch = SCENE.with_(style=torch.full_like(SCENE.style, STYLES.values.index("sketch")))
    captions = describe(sketch, 5, INDEX)
    assert not captions.named[:, 0].any()
    assert captions.named.any(dim=1).all()
    for text in captions.texts:
        assert not any(mentions(text, "color", value) for value in range(12)), text


def test_some_factor_is_always_named_and_single_ones_are_frequent():
    count = CAPTIONS.named.sum(dim=1)
    assert count.min() >= 1
    assert 0.3 < (count == 1).double().mean() < 0.42
    assert (count == 5).any()
    assert CAPTIONS.named.double().mean(dim=0).min() > 0.38


def test_captions_are_pure_and_draws_differ():
    alone = describe(SCENE[17:18], 5, INDEX[17:18])
    assert alone.texts == CAPTIONS.texts[17:18]
    second = describe(SCENE, 5, INDEX, draw=1)
    same = sum(one == two for one, two in zip(CAPTIONS.texts, second.texts, strict=True))
    assert same < 0.1 * len(INDEX)


def test_captions_are_short_and_made_of_known_words():
    known = set(world_words())
    for draw in range(3):
        for text in describe(SCENE, 5, INDEX, draw).texts:
            assert len(words_of(text)) <= 21, text  # 20 words and a full stop
            assert len(text.rstrip(".").split()) <= 20, text
            assert set(words_of(text)) <= known, text


def test_articles_before_vowels():
    for text in CAPTIONS.texts:
        if not text.endswith("."):  # plain prompts keep their "a", as CLIP's templates do
            assert not any(f" a {vowel}" in f" {text}" for vowel in "aeiou"), text


def test_plain_prompts():
    assert plain_prompts("color")[1] == "a photo of a orange thing."
    assert plain_prompts("place")[0] == "a photo taken at the beach."
    assert plain_prompts("texture")[2] == "a photo of something dotted."
    known = set(world_words())
    for factor in FACTOR_NAMES:
        prompts = plain_prompts(factor)
        assert len(set(prompts)) == len(FACTORS[factor])
        assert all(set(words_of(prompt)) <= known for prompt in prompts)


def test_world_words_are_sorted_and_unique():
    words = world_words()
    assert words == sorted(set(words))
    assert {".", "red", "forest", "k", "5"} <= set(words)
