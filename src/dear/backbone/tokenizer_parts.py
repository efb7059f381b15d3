"""The parts of a `tokenizer.json` that are used: each of a known kind, and none that hangs on a text or
multiplies it.
"""

import base64
import binascii
from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from dear.limits import at_most
from dear.reading.files import ReadingError
from dear.reading.typed import Count, Range, shown, typed

MAX_PARTS = 8  # in a sequence: of normalizers, say
MAX_VALUES = 1000  # of everything but the vocabulary
CLIPS_PATTERNS = (
    r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+""",
    r"""<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+""",
)
PATTERNS = (r" {2,}", r"\s+", *CLIPS_PATTERNS)
"""Regular expressions that the tokenizers of CLIPs have. Others may take forever on a text."""
MAX_EXPANSION = 64  # bytes that one character may become; NFKC's longest are 33
MAX_REPLACED = 2  # letters that are replaced as one; tokens beside the vocabulary part a text before that
MAX_TOKEN = 200  # letters of one beside the vocabulary
MAX_PIECE = 32  # letters of one in that of a Unigram: each letter of a text is compared with as many
MAX_WORD = 100  # letters that WordPiece splits, which tries all its parts; BERT's own
AFFIXES = {"unk_token": 32, "continuing_subword_prefix": 4, "end_of_word_suffix": 4}
"""Most letters of the texts that a model puts beside parts of a word, of which it tries many."""
MAX_WORD_GROWTH = 5  # as MAX_GROWTH, of a text that WordPiece splits; BERT's: 3
MAX_GROWTH = 600  # times the bytes of a text, after all normalizers and pre-tokenizers; SigLIP's: 384
GROWTH = {
    "NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 1.5, "BertNormalizer": 3, "ByteLevel": 2,
    "Metaspace": 4,
}  # fmt: skip
"""Bytes that one byte of a text may become in a step, over all characters of Unicode; others: one."""


class Added(TypedDict):
    """A token beside the vocabulary."""

    id: Count
    content: str
    single_word: NotRequired[bool]
    lstrip: NotRequired[bool]
    rstrip: NotRequired[bool]
    normalized: NotRequired[bool]
    special: NotRequired[bool]


class SpecialIds(TypedDict):
    """A special token of a template: its ids, mostly one."""

    ids: list[Count]


class WordPiece(TypedDict):
    """BERT's model. The library itself checks the entries of vocabularies and merges."""

    type: Literal["WordPiece"]
    vocab: dict[str, Any]
    unk_token: str
    continuing_subword_prefix: NotRequired[str]
    max_input_chars_per_word: NotRequired[Annotated[int, Range(1, MAX_WORD)]]


class Unigram(TypedDict):
    """SentencePiece's model, of T5, SigLIP and XLM-RoBERTa."""

    type: Literal["Unigram"]
    vocab: list[Any]
    unk_id: Count | None
    byte_fallback: NotRequired[bool]


class BPE(TypedDict):
    """The model of CLIP and Gemma."""

    type: Literal["BPE"]
    vocab: dict[str, Any]
    merges: list[Any]
    dropout: NotRequired[None]
    unk_token: NotRequired[str | None]
    continuing_subword_prefix: NotRequired[str | None]
    end_of_word_suffix: NotRequired[str | None]
    fuse_unk: NotRequired[bool]
    byte_fallback: NotRequired[bool]
    ignore_merges: NotRequired[bool]


MODELS: Mapping[str, Any] = {"WordPiece": WordPiece, "Unigram": Unigram, "BPE": BPE}
STEPS = {
    "normalizer": (
        "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Prepend", "Replace",
        "Sequence", "Strip", "StripAccents",
    ),
    "pre_tokenizer": (
        "BertPreTokenizer", "ByteLevel", "Metaspace", "Punctuation", "Sequence", "Split", "Whitespace",
        "WhitespaceSplit",
    ),
    "post_processor": ("BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"),
}  # fmt: skip
"""The kinds of each step that a file may name."""
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
"""The key of the parts of a Sequence, by step."""


def tokenizer_parts(content: Any, where: object) -> dict[str, Any]:
    """The parts of a `tokenizer.json` that are used, each of a known kind and size. Raises ReadingError,
    LimitError.
    """
    parts = typed(content, dict[str, Any], where)
    model = typed(parts.get("model"), dict[str, Any], where, "model")
    # The file of an early version does not say that its model is BPE or WordPiece.
    kind = model.get("type", "BPE" if "merges" in model else "WordPiece")
    if not isinstance(kind, str) or kind not in MODELS:
        raise ReadingError(where, f"its model is {shown(kind)}: it must be one of {', '.join(MODELS)}")
    model = typed(model | {"type": kind}, MODELS[kind], where, "model")
    if unknown := sorted(model.keys() - MODELS[kind].__annotations__.keys()):
        raise ReadingError(where, f"its model has the unknown key {shown(unknown[0])}")
    for key, maximum in AFFIXES.items():
        if len(str(model.get(key) or "")) > maximum:
            raise ReadingError(where, f"its model has a {key} of more than {maximum} characters")
    added = typed(parts.get("added_tokens") or [], list[Added], where, "added_tokens")
    at_most("vocabulary", len(model["vocab"]) + len(added), where)
    at_most("added_tokens", len(added), where)
    if kind == "Unigram" and any(len(str(_first(token))) > MAX_PIECE for token in model["vocab"]):
        raise ReadingError(where, f"its model has a token of more than {MAX_PIECE} characters")
    if not all(0 < len(token["content"]) <= MAX_TOKEN for token in added):
        raise ReadingError(where, f"one of its added_tokens is empty, or longer than {MAX_TOKEN} characters")
    steps = {name: parts.get(name) for name in STEPS}
    if _values(steps) > MAX_VALUES:
        raise ReadingError(where, f"it has more than {MAX_VALUES:,} values beside its vocabulary")
    cut = typed(parts.get("truncation") or {}, dict[str, Any], where, "truncation")
    if cut.get("direction", "Right") != "Right":
        raise ReadingError(where, "it cuts texts on the left, which is not done here")
    for name, step in steps.items():
        _require_step(step, name, where)
    maximum = MAX_WORD_GROWTH if kind == "WordPiece" else MAX_GROWTH
    if (growth := _growth(steps["normalizer"]) * _growth(steps["pre_tokenizer"])) > maximum:
        raise ReadingError(
            where, f"its steps may make a text {growth:,.0f} times as long: at most {maximum} times"
        )
    return {
        "version": "1.0", "truncation": None, "padding": None, "decoder": None, "added_tokens": added,
        "model": model, **steps,
    }  # fmt: skip


def _require_step(step: Any, name: str, where: object) -> None:
    """Raise ReadingError for a step of an unknown kind, or one that may take forever or grow a text."""
    if step is None:
        return
    step = typed(step, dict[str, Any], where, name)
    kind = step.get("type")
    if kind not in STEPS[name]:
        raise ReadingError(where, f"its {name} is {shown(kind)}: it must be one of {', '.join(STEPS[name])}")
    if kind == "Sequence":
        if step.keys() != {"type", LISTS[name]}:
            raise ReadingError(where, f"its {name} must have the keys type and {LISTS[name]}")
        inner: list[Any] = typed(step[LISTS[name]], list, where, name)
        if len(inner) > MAX_PARTS:
            raise ReadingError(where, f"its {name} has {len(inner)} parts: it must have at most {MAX_PARTS}")
        kinds = [part.get("type") for part in inner if isinstance(part, dict)]
        if kinds.count("ByteLevel") > 1:
            raise ReadingError(where, f"its {name} has ByteLevel twice")
        for part in inner:
            if isinstance(part, dict) and part.get("type") == "Sequence":
                raise ReadingError(where, f"its {name} has a Sequence within a Sequence")
            _require_step(part, name, where)
    elif kind in ("Replace", "Split"):
        _require_pattern(step, name, where)
    elif kind == "Prepend" and len(typed(step.get("prepend"), str, where, f"{name}.prepend")) > 1:
        raise ReadingError(where, f"its {name}.prepend is longer than one character")
    elif kind == "Precompiled":
        _require_charsmap(step.get("precompiled_charsmap"), name, where)


def specials(step: Any, where: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of the special tokens that a checked post-processor puts before and after a text.

    Raises ReadingError for one that has the text several times or not at all, or more than `MAX_PARTS`
    tokens.
    """
    before, after = list[int](), list[int]()
    for part in step["processors"] if (step or {}).get("type") == "Sequence" else [step or {}]:
        first, last = list[int](), list[int]()
        if part.get("type") in ("BertProcessing", "RobertaProcessing"):
            first, last = [_named(part, "cls", where)], [_named(part, "sep", where)]
        elif part.get("type") == "TemplateProcessing":
            first, last = _template(part, where)
        before, after = first + before, after + last
        if len(before) + len(after) > MAX_PARTS:
            raise ReadingError(where, f"its post_processor adds more than {MAX_PARTS} tokens")
    return tuple(before), tuple(after)


def _named(part: dict[str, Any], key: str, where: object) -> int:
    """The id in a pair of a token and its id."""
    _, number = typed(part.get(key), tuple[str, Count], where, f"post_processor.{key}")
    return number


def _template(part: dict[str, Any], where: object) -> tuple[list[int], list[int]]:
    pieces = typed(part.get("single"), list[dict[str, dict[str, Any]]], where, "post_processor.single")
    tokens = typed(
        part.get("special_tokens") or {}, dict[str, SpecialIds], where, "post_processor.special_tokens"
    )
    sides: tuple[list[int], ...] = ([],)
    for piece in pieces:
        if piece.keys() == {"Sequence"} and piece["Sequence"].get("id") == "A":
            sides = (*sides, [])
        elif piece.keys() == {"SpecialToken"} and (name := str(piece["SpecialToken"].get("id"))) in tokens:
            sides[-1].extend(tokens[name]["ids"])
        else:
            raise ReadingError(where, f"its post_processor.single has the part {shown(piece)}")
    if len(sides) != 2:
        raise ReadingError(where, "its post_processor.single must have the text once")
    return sides[0], sides[1]


def _growth(step: Any) -> float:
    """How many times as long, in bytes, a checked step may make a text."""
    match step:
        case None:
            return 1
        case {"type": "Sequence"}:
            (inner,) = (value for key, value in step.items() if key != "type")
            return prod(_growth(part) for part in inner)
        case {"type": "Precompiled"}:
            return MAX_EXPANSION
        case {"type": "Replace", "pattern": {"String": literal}}:
            return max(1, len(step["content"].encode()) / len(literal.encode()))
        case {"type": "Replace"}:
            return max(1, len(step["content"].encode()))  # a match has a byte at least
        case _:
            return GROWTH.get(step["type"], 1)


def _require_pattern(step: dict[str, Any], name: str, where: object) -> None:
    pattern = typed(step.get("pattern"), dict[str, str], where, f"{name}.pattern")
    literal, expression = pattern.get("String"), pattern.get("Regex")
    if len(pattern) != 1 or (expression not in PATTERNS if literal is None else not literal):
        raise ReadingError(
            where, f"its {name}.pattern is {shown(pattern)}: neither a text nor one of the known expressions"
        )
    default = "" if step["type"] == "Split" else None  # which has none
    content = typed(step.get("content", default), str, where, f"{name}.content")
    if step["type"] == "Replace" and len(literal or "") > MAX_REPLACED:
        raise ReadingError(where, f"its {name}.pattern has more than {MAX_REPLACED} letters")
    if len(content) > len(literal or " "):
        raise ReadingError(where, f"its {name}.content is longer than what it replaces")


def _require_charsmap(charsmap: Any, name: str, where: object) -> None:
    """Of SentencePiece: the size of a trie, the trie, what its characters become, each ended by 0."""
    text = typed(charsmap, str, where, f"{name}.precompiled_charsmap")
    try:
        content = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise ReadingError(where, f"its {name}.precompiled_charsmap is not in base64") from error
    trie = int.from_bytes(content[:4], "little")
    if len(content) < 4 or trie % 4 or trie > len(content) - 4:
        raise ReadingError(where, f"its {name}.precompiled_charsmap is truncated")
    if max(map(len, content[4 + trie :].split(b"\0"))) > MAX_EXPANSION:
        raise ReadingError(
            where, f"its {name}.precompiled_charsmap makes one character longer than {MAX_EXPANSION}"
        )


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))
