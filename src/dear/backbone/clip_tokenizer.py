"""CLIP's tokenizer within bounds: the same tokens as open_clip's, whose time grows with the square of a
word's length and with the repairs that a text needs.
"""

import heapq
import html
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dear.backbone import openclip
from dear.backbone.tokenizer_parts import CLIPS_PATTERNS, specials, tokenizer_parts
from dear.limits import at_most
from dear.reading.files import line_ends, require_few_marks
from dear.reading.typed import typed

SPECIAL = {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
"""transformers' names of the special words, in their order around a text; open_clip has others."""
MODEL = {
    "dropout": None, "unk_token": "<|endoftext|>", "continuing_subword_prefix": "",
    "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
}  # fmt: skip
NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Lowercase"},
    ],
}  # fmt: skip
SPLIT = {"type": "Split", "behavior": "Removed", "invert": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
"""The parts of CLIP's tokenizer as transformers writes it."""
SHORT = 32
"""Letters of a word up to which open_clip's own code is used, which keeps what it splits."""
LONG_WORDS = 1000
"""Longer ones whose parts are kept, for each template has the same names: the first ones."""
END = "</w>"


def bounded(tokenizer: Any) -> Any:
    """An open_clip.SimpleTokenizer that splits words of n letters in a time that grows with n log n, and no
    words beyond its context, and refuses texts as `cleaning` does.
    """
    tokenizer.bpe = partial(_split, tokenizer, tokenizer.bpe, {})
    tokenizer.clean_fn = cleaning(tokenizer.clean_fn)
    tokenizer.encode = partial(_encode, tokenizer)
    return tokenizer


def is_clips(content: Any, where: Path) -> bool:
    """True for a `tokenizer.json` with CLIP's words, merges and steps, in one of the forms of transformers.
    Raises ReadingError, LimitError for one that no model may have.
    """
    parts = tokenizer_parts(content, where)
    model, steps = parts["model"], parts["pre_tokenizer"]
    split, letters = steps["pretokenizers"] if _is_pair(steps) else ({}, {})
    has_clips_steps = (
        parts["normalizer"] == NORMALIZER
        and split.get("pattern", {}).get("Regex") in CLIPS_PATTERNS
        and {key: split[key] for key in split.keys() - {"pattern"}} == SPLIT
        and BYTES | letters == BYTES | {"trim_offsets": letters.get("trim_offsets", True)}
        and specials(parts["post_processor"], where) == tuple((number,) for number in SPECIAL.values())
    )
    tokens = {token["content"]: token["id"] for token in parts["added_tokens"]}
    has_usual_rest = {**MODEL, **model} == {**model, **MODEL}
    has_clips_form = has_usual_rest and model.get("end_of_word_suffix") == END and tokens == SPECIAL
    if not (model["type"] == "BPE" and has_clips_steps and has_clips_form):
        return False
    pairs = typed(model["merges"], list[str | list[str]], where, "model.merges")
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in pairs]
    return has_clips_words(model["vocab"]) and merges == [*openclip.SimpleTokenizer().bpe_ranks]


def has_clips_merges(text: str) -> bool:
    """True for the lines of a `merges.txt`, below that of its version."""
    pairs = [tuple(line.split(" ")) for line in text.split("\n") if line and not line.startswith("#version")]
    return pairs == [*openclip.SimpleTokenizer().bpe_ranks]


def _is_pair(steps: Any) -> bool:
    return isinstance(steps, dict) and len(steps.get("pretokenizers", ())) == 2


def has_clips_words(words: Mapping[str, Any]) -> bool:
    """True for CLIP's words with their ids, as transformers calls them."""
    encoder = openclip.SimpleTokenizer().encoder
    usual = {word: number for word, number in encoder.items() if number not in SPECIAL.values()}
    return words == usual | SPECIAL


def _encode(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text without the special ones, until they fill the context."""
    ids = list[int]()
    for word in tokenizer.pat.findall(tokenizer.clean_fn(text)):
        characters = "".join(tokenizer.byte_encoder[byte] for byte in word.encode())
        ids += [tokenizer.encoder[part] for part in tokenizer.bpe(characters).split(" ")]
        if len(ids) >= tokenizer.context_length:
            break
    return ids


def _split(tokenizer: Any, split: Any, long_words: dict[str, str], word: str) -> str:
    if len(word) <= SHORT:
        return str(split(word))
    parts = long_words.get(word)
    if parts is None:
        parts = " ".join(merged([*word[:-1], word[-1] + END], tokenizer.bpe_ranks))
        if len(long_words) < LONG_WORDS:
            long_words[word] = parts
    return parts


class ClipReader:
    """CLIP's tokenizer without a model, as a `dear.backbone.prompts.PromptReader`."""

    def __init__(self) -> None:
        self.tokenizer = bounded(openclip.SimpleTokenizer())
        self.room = int(self.tokenizer.context_length) - 2  # the start and the end

    def tokenize(self, texts: Sequence[str]) -> Int[Tensor, "text token"]:
        """Ids, cut to the context."""
        ids: Tensor = self.tokenizer(list(texts))
        return ids

    def words_in(self, texts: Sequence[str]) -> Int[Tensor, "text"]:
        """The number of tokens of each text that are read: the end has the highest id."""
        return self.tokenize(texts).argmax(dim=-1) - 1


def cleaning(clean: Callable[[str], str]) -> Callable[[str], str]:
    """One of open_clip's functions that clean a text, for texts that its library ftfy repairs quickly."""
    return partial(_cleaned, clean)


def _cleaned(clean: Callable[[str], str], text: str) -> str:
    if not text.isascii() or not text.isprintable() or "&" in text:
        _require_few_repairs(text)
    return clean(text)


def _require_few_repairs(text: str) -> None:
    """Raise LimitError for a text that ftfy would repair again and again, each time as a whole: letters in a
    wrong encoding, HTML's signs within each other, and many lines, each of which is repaired by itself; or
    that has too many combining marks in a row.
    """
    import ftfy
    from ftfy.badness import badness

    where = f"the text {text[:40]!r}"
    repaired, before, rounds = text, None, 0
    while repaired != before:
        at_most("repairs", rounds, where)
        before, rounds = repaired, rounds + 1
        repaired = html.unescape(repaired)
        at_most("prompt_lines", line_ends(repaired), where)
        require_few_marks(repaired, where)
        at_most("mojibake", len(repaired) * badness(repaired), where)
        repaired = ftfy.fix_text(repaired, unescape_html=False)


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
