"""CLIP's tokenizer for long words: the same tokens as open_clip's, whose time grows with the square of a
word's length.
"""

import heapq
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

SHORT = 32
"""Letters of a word up to which open_clip's own code is used, which keeps what it splits."""
END = "</w>"


def with_long_words(tokenizer: Any) -> Any:
    """An open_clip.SimpleTokenizer that splits words of n letters in a time that grows with n log n."""
    tokenizer.bpe = partial(_split, tokenizer, tokenizer.bpe)
    return tokenizer


def _split(tokenizer: Any, split: Any, word: str) -> str:
    if len(word) <= SHORT:
        return str(split(word))
    return " ".join(merged([*word[:-1], word[-1] + END], tokenizer.bpe_ranks))


def merged(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Symbols after byte-pair encoding: of the pairs of neighbours the one of the lowest rank is merged, all
    its occurrences from left to right, until none has a rank.
    """
    symbols, count = [*symbols], len(symbols)
    before, after = [*range(-1, count - 1)], [*range(1, count + 1)]

    def rank(at: int) -> int | None:
        """The rank of the pair that begins at a symbol; None if it has none, or the symbol is merged."""
        return ranks.get((symbols[at], symbols[after[at]])) if at >= 0 and after[at] < count else None

    pairs = [(priority, at) for at in range(count) if (priority := rank(at)) is not None]
    heapq.heapify(pairs)
    while pairs:
        lowest, changed = pairs[0][0], list[int]()
        while pairs and pairs[0][0] == lowest:
            _, at = heapq.heappop(pairs)
            if rank(at) != lowest:
                continue
            second = after[at]
            symbols[at] += symbols[second]
            symbols[second] = ""  # no pair with it has a rank
            after[at] = after[second]
            if after[at] < count:
                before[after[at]] = at
            changed += [before[at], at]
        for at in changed:
            if (priority := rank(at)) is not None:
                heapq.heappush(pairs, (priority, at))
    return [symbol for symbol in symbols if symbol]
