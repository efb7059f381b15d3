"""CLIP's tokenizer: long words, and texts that are repaired again and again."""

import random
from itertools import pairwise
from typing import Any

import pytest
import torch

from dear.backbone import clip_tokenizer
from dear.backbone import openclip as open_clip
from dear.backbone.clip_tokenizer import END, ClipReader, bounded, cleaning, merged
from dear.backbone.prompts import describe_cut_prompts
from dear.limits import LimitError


def slowly_merged(symbols: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """By its definition: in each round all occurrences of the best pair, from left to right."""
    while True:
        pairs = [pair for pair in pairwise(symbols) if pair in ranks]
        if not pairs:
            return symbols
        best, result, at = min(pairs, key=ranks.__getitem__), list[str](), 0
        while at < len(symbols):
            if tuple(symbols[at : at + 2]) == best:
                result.append("".join(best))
                at += 2
            else:
                result.append(symbols[at])
                at += 1
        symbols = result


@pytest.mark.parametrize("seed", range(30))
def test_any_ranks(seed: int) -> None:
    """Also such that merging makes a pair of a lower rank, which learned ones do not have."""
    rng = random.Random(seed)
    parts = ["a", "b", "aa", "ab", "ba", "bb", "aab", "aba", "abab", "aaaa"]
    pairs = [(first, second) for first in parts for second in parts]
    rng.shuffle(pairs)
    ranks = {pair: number for number, pair in enumerate(pairs[: rng.randint(1, len(pairs))])}
    for length in (1, 2, 3, 5, 17, 60):
        symbols = [rng.choice("ab") for _ in range(length)]
        assert merged(symbols, ranks) == slowly_merged(symbols, ranks)


def test_the_same_ids_as_open_clips() -> None:
    rng = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    texts = ["".join(rng.choices(letters, k=length)) for length in (31, 32, 33, 64, 200, 700)]
    texts += ["a" * 300, "the" * 90, "\u00fc" * 150, "\u732b" * 80, "thequickbrownfox" * 9 + "!" * 200]
    tokenizer: Any = bounded(open_clip.SimpleTokenizer(context_length=400))
    other: Any = open_clip.SimpleTokenizer(context_length=400)
    assert torch.equal(tokenizer(texts), other(texts))
    assert merged([*"cats"[:-1], "s" + END], tokenizer.bpe_ranks) == other.bpe("cats").split(" ")


def test_a_long_word_is_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 names of 980 emoji with 100 templates kept a fit busy for a minute."""
    calls, merge = list[int](), clip_tokenizer.merged
    monkeypatch.setattr(clip_tokenizer, "merged", lambda *args: calls.append(1) or merge(*args))
    monkeypatch.setattr(clip_tokenizer, "LONG_WORDS", 2)
    tokenizer: Any = bounded(open_clip.SimpleTokenizer())
    names = ["\u732b" * 40, "\u72ac" * 40, "\u9ce5" * 40]
    first = tokenizer([f"a {name}" for name in names])
    assert len(calls) == 3
    assert torch.equal(tokenizer([f"a {name}" for name in names]), first)
    assert len(calls) == 4  # the first two are kept


@pytest.mark.parametrize("context", range(2, 12))
def test_words_beyond_the_context_are_not_split(context: int) -> None:
    tokenizer: Any = bounded(open_clip.SimpleTokenizer(context_length=context))
    split, words = tokenizer.bpe, list[str]()
    tokenizer.bpe = lambda word: words.append(word) or split(word)
    text = "two cats, unphotographable dogs"
    assert torch.equal(tokenizer(text), open_clip.SimpleTokenizer(context_length=context)(text))
    assert len(words) < context + 1
    words.clear()
    tokenizer("a cat " * 300)
    assert len(words) == context


CLEANINGS = ("lower", "whitespace", "canonicalize")
CYCLE = (
    "\u00c3\u0153\u00c3\u0192\u0153\u00c3\u0153\u00c3\u0192\u0153\u00c3\u0153\u00c3\u0192\u0153\u00c3\u0192"
    "\u0153\u00c3\u0153\u00c3\u0192\u0153\u00c3\u0153\u00c3\u0192\u0153\u00c3\u0153\u00c3\u0192\u0153\u00c3"
)
"""Letters in a wrong encoding, within each other: ftfy repairs one layer after the other, 980 in 52 ms."""


@pytest.mark.parametrize("name", CLEANINGS)
def test_what_is_repaired_quickly_is_cleaned_as_by_open_clip(name: str) -> None:
    """Also a name in a wrong encoding, entities within each other, controls, wide letters."""
    clean = open_clip.get_clean_fn(name)
    for text in [
        "a cat", "caf\u00e9", "Caf\u00c3\u00a9 au lait", "a &amp;amp; b", "a\x00b\x1b[1m", "\uff21\uff22",
        "\u6c34\u306e\u5199\u771f " * 60, "\u00e9" * 900, "two\nlines", "s\u00c3\u00b3 \u00c3\u00a9",
    ]:  # fmt: skip
        assert cleaning(clean)(text) == clean(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CYCLE * 25, "characters of a prompt times those in a wrong encoding"),
        ("\u00e9" * 900 + CYCLE[:4], "characters of a prompt times those in a wrong encoding"),
        ("&Atilde;&oelig;&Atilde;&fnof;" * 30, "characters of a prompt times those in a wrong encoding"),
        ("&" + "amp;" * 240, "3 repairs of a prompt"),
        ("\u00e9&" + "amp;" * 240, "3 repairs of a prompt"),
        ("e" + "\u0315\u0300" * 400, "800 combining marks in a row"),
        ("e" + "&#769;" * 150, "150 combining marks in a row"),
        ("\r\n" * 400, "400 line ends in a prompt"),
        ("a\u2028" * 400, "400 line ends in a prompt"),  # ftfy makes \n of it, and repairs 400 lines then
        ("a&#10;" * 150, "150 line ends in a prompt"),
        ("a&amp;amp;#10;" * 70, "70 line ends in a prompt"),
    ],
)
def test_what_is_repaired_again_and_again_is_refused(text: str, why: str) -> None:
    """25,000 prompts of such a text, of a bundle of 130 kB, took minutes."""
    with pytest.raises(LimitError, match=why):
        cleaning(open_clip.get_clean_fn("lower"))(text)
    with pytest.raises(LimitError, match=why):
        bounded(open_clip.SimpleTokenizer())([text])


def test_a_prompt_is_cut_where_a_longer_context_has_more_tokens() -> None:
    longer, rng, cut = open_clip.SimpleTokenizer(context_length=400), random.Random(0), 0
    words = ["maple", "tree,", "antidisestablishmentarianism", "of", "1997", "x's", "crêpe", "東京", "ok."]
    for _ in range(100):
        prompt = " ".join(rng.choices(words, k=rng.randint(8, 40)))
        is_longer = int(longer([prompt]).argmax()) - 1 > 75
        assert bool(describe_cut_prompts(ClipReader(), ["name"], [[prompt]])) == is_longer
        cut += is_longer
    assert 10 < cut < 90
