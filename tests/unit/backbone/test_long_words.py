"""Long words of CLIP's tokenizer."""

import random
from itertools import pairwise
from typing import Any

import pytest
import torch

from dear.backbone import openclip as open_clip
from dear.backbone.long_words import END, merged, with_long_words


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
    tokenizer: Any = with_long_words(open_clip.SimpleTokenizer(context_length=400))
    other: Any = open_clip.SimpleTokenizer(context_length=400)
    assert torch.equal(tokenizer(texts), other(texts))
    assert merged([*"cats"[:-1], "s" + END], tokenizer.bpe_ranks) == other.bpe("cats").split(" ")
