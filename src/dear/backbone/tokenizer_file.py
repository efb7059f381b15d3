"""The tokenizer of a model: CLIP's own, or one in JSON files beside its weights, in its folder or on the hub.

The files (`tokenizer.json` and the settings of its padding) are read as data. The library `tokenizers` gets
only parts of the kinds listed here. transformers is not used: its loader imports code that the files name,
and takes paths from them.
"""

import base64
import binascii
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from dear.backbone import hub
from dear.backbone import openclip as open_clip
from dear.backbone.clip import Tokenizer
from dear.errors import DearError, WeightsError, first_line
from dear.limits import at_most
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import Count, Range, shown, typed

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
OTHER_FILES = (SETTINGS, "spiece.model", "vocab.json")  # that transformers writes too
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
MAX_PARTS = 8  # in a sequence: of normalizers, say
MAX_VALUES = 1000  # of everything but the vocabulary
PATTERNS = (
    r" {2,}", r"\s+",
    r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+""",
)  # fmt: skip
"""Regular expressions that the tokenizers of CLIPs have. Others may take forever on a text."""
MAX_EXPANSION = 64  # bytes that one character may become; NFKC's longest are 33
PADDING = {"WordPiece": "[PAD]", "Unigram": "<pad>", "BPE": "<pad>"}
"""The padding token where the settings name none."""
SIDES = {"GemmaTokenizer": "left"}
"""The side of the padding where the settings name none, by transformers' class; others pad on the right."""


class Added(TypedDict):
    """A token beside the vocabulary."""

    id: Count
    content: str
    single_word: NotRequired[bool]
    lstrip: NotRequired[bool]
    rstrip: NotRequired[bool]
    normalized: NotRequired[bool]
    special: NotRequired[bool]


class WordPiece(TypedDict):
    """BERT's model. The library itself checks the entries of vocabularies and merges."""

    type: Literal["WordPiece"]
    vocab: dict[str, Any]
    unk_token: str
    continuing_subword_prefix: NotRequired[str]
    max_input_chars_per_word: NotRequired[Annotated[int, Range(1, 1000)]]


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
Result = TypeVar("Result")
STDERR = 2
_stderr_lock = threading.Lock()


class Special(TypedDict):
    """A special token with its flags."""

    content: str


class Settings(TypedDict, total=False):
    """The keys of `tokenizer_config.json` that are read."""

    tokenizer_class: str
    pad_token: str | Special | None
    sep_token: str | Special | None
    padding_side: Literal["left", "right"]


def find_tokenizer(name: str, text: Mapping[str, Any], folder: Path | None) -> Tokenizer:
    """The tokenizer of a text configuration: CLIP's own, or the named one, read from ``folder`` if there is
    one. Raises WeightsError with what to download.
    """
    context, words = text.get("context_length", 77), text.get("vocab_size", 49408)
    repository, settings = text.get("hf_tokenizer_name"), text.get("tokenizer_kwargs") or {}
    if not repository:
        tokenizer = open_clip.SimpleTokenizer(context_length=context, clean=settings.get("clean", "lower"))
        if words < tokenizer.vocab_size:
            raise WeightsError(
                f"{name} does not fit: its text tower has {words} words, CLIP's tokenizer "
                f"{tokenizer.vocab_size}."
            )
        return tokenizer  # type: ignore[no-any-return]
    try:
        file, settings_file = _beside(folder) if folder is not None else _of_hub(str(repository))
        return file_tokenizer(
            file, settings_file, context=context, words=words, clean=settings.get("clean", "whitespace"),
            strip_sep_token=settings.get("strip_sep_token", False),
        )  # fmt: skip
    except (DearError, ImportError, OSError) as error:
        reason = str(error) if isinstance(error, DearError) else f"{first_line(error)}."
        raise WeightsError(
            f"the tokenizer of {name} ({folder or shown(repository)}) cannot be loaded: {reason} It "
            f"needs `pip install tokenizers` and `hf download {repository}`. Without a network, copy "
            f"{FILE} and {SETTINGS} beside the weights file, and give its path with --pretrained."
        ) from error


def tokenizer_beside(weights: Path) -> Path | None:
    """The folder of a weights file, if it also holds the files of a tokenizer."""
    return weights.parent if any((weights.parent / file).is_file() for file in (FILE, *OTHER_FILES)) else None


def _beside(folder: Path) -> tuple[Path, Path | None]:
    if not (folder / FILE).is_file():
        raise WeightsError(
            f"{folder} has no {FILE}. transformers writes one: `AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...)` with a name that you trust."
        )
    return folder / FILE, folder / SETTINGS if (folder / SETTINGS).is_file() else None


def _of_hub(repository: str) -> tuple[Path, Path | None]:
    if not HUB_NAME.fullmatch(repository):
        raise WeightsError(f"{shown(repository)} is not the name of a repository of the hub.")
    file = hub.fetch(repository, (FILE,))
    try:
        return file, hub.fetch(repository, (SETTINGS,))
    except WeightsError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return file, None
        raise


@dataclass(frozen=True)
class FileTokenizer:
    """Texts to ids, padded and cut to the context.

    Attributes:
        rust: the `tokenizers.Tokenizer`.
        clean: applied to a text first.
        words: number of ids of the text tower.
        context: most ids of a text.
        stripped: id that is replaced by 0 (CLIPA's separator), or None.
    """

    rust: Any
    clean: Callable[[str], str]
    words: int
    context: int
    stripped: int | None = None

    def __call__(self, texts: str | Sequence[str]) -> Int[Tensor, "text token"]:
        """Ids of texts. Raises WeightsError if the tokenizer fails, gives an id that the tower lacks or more
        ids than its context has.
        """
        texts = [texts] if isinstance(texts, str) else texts
        encodings = _guarded(lambda: self.rust.encode_batch([self.clean(text) for text in texts]))
        ids = torch.tensor([encoding.ids for encoding in encodings], dtype=torch.long)
        if ids.shape[-1] > self.context:  # the parts of a template are not cut
            raise WeightsError(
                f"the tokenizer does not fit: it gives {ids.shape[-1]} ids, the text tower has "
                f"{self.context} places."
            )
        if ids.numel() and int(ids.max()) >= self.words:
            raise WeightsError(
                f"the tokenizer does not fit: it gives the id {int(ids.max())}, the text tower has "
                f"{self.words} words."
            )
        return ids if self.stripped is None else ids.masked_fill(ids == self.stripped, 0)


def file_tokenizer(
    file: Path, settings_file: Path | None, *, context: int, words: int, clean: str, strip_sep_token: bool
) -> FileTokenizer:
    """The tokenizer of a `tokenizer.json` and, if there is one, its `tokenizer_config.json`.

    Raises ReadingError for a file that is malformed or has a part of another kind, LimitError for one that is
    too large, ImportError without the package `tokenizers`, WeightsError if that cannot use it.
    """
    parts = tokenizer_parts(read_json(file), file)
    settings: Settings = (
        {} if settings_file is None else typed(read_json(settings_file), Settings, settings_file)
    )

    import tokenizers

    rust: Any = _guarded(lambda: tokenizers.Tokenizer.from_str(json.dumps(parts)))
    name = _content(settings.get("pad_token")) or PADDING[parts["model"]["type"]]
    if (pad := rust.token_to_id(name)) is None:
        raise ReadingError(file, f"it lacks the padding token {shown(name)}")
    kind = settings.get("tokenizer_class", "").removesuffix("Fast")
    side = settings.get("padding_side", SIDES.get(kind, "right"))
    rust.enable_padding(direction=side, pad_id=pad, pad_token=name, length=context)
    _guarded(lambda: rust.enable_truncation(context))
    separator = rust.token_to_id(_content(settings.get("sep_token")) or "[SEP]") if strip_sep_token else None
    return FileTokenizer(rust, open_clip.get_clean_fn(clean), words, context, separator)


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
    added = typed(parts.get("added_tokens") or [], list[Added], where, "added_tokens")
    at_most("vocabulary", len(model["vocab"]) + len(added), where)
    if not all(token["content"] for token in added):
        raise ReadingError(where, "one of its added_tokens is empty")
    steps = {name: parts.get(name) for name in STEPS}
    if _values(steps) > MAX_VALUES:
        raise ReadingError(where, f"it has more than {MAX_VALUES:,} values beside its vocabulary")
    for name, step in steps.items():
        _require_step(step, name, where)
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
    elif kind == "TemplateProcessing" and len(typed(step.get("single"), list[Any], where, name)) > MAX_PARTS:
        raise ReadingError(where, f"its {name} has more than {MAX_PARTS} parts")


def _require_pattern(step: dict[str, Any], name: str, where: object) -> None:
    pattern = typed(step.get("pattern"), dict[str, str], where, f"{name}.pattern")
    literal, expression = pattern.get("String"), pattern.get("Regex")
    if len(pattern) != 1 or (expression not in PATTERNS if literal is None else not literal):
        raise ReadingError(
            where, f"its {name}.pattern is {shown(pattern)}: neither a text nor one of the known expressions"
        )
    content = typed(step.get("content", ""), str, where, f"{name}.content")
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


def _content(token: str | Special | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def _values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values, inner))


def _guarded(work: Callable[[], Result]) -> Result:
    """The result of the library's Rust code. A panic in it is no Exception: a WeightsError, as the rest."""
    try:
        with _without_panics():
            return work()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise WeightsError(f"the library tokenizers cannot use it ({first_line(error)}).") from error


@contextmanager
def _without_panics() -> Iterator[None]:
    """Drop what Rust prints of a panic, with its stack, before Python learns of it.

    Rust writes to the descriptor of stderr: what others write there meanwhile is passed on, unless there is a
    panic.
    """
    with _stderr_lock, ExitStack() as stack:
        try:
            held = stack.enter_context(TemporaryFile())
            stderr = os.dup(STDERR)
        except OSError:  # no room, or no stderr
            yield
            return
        stack.callback(os.close, stderr)
        os.dup2(held.fileno(), STDERR)
        panic = True
        try:
            yield
            panic = False
        except Exception:
            panic = False
            raise
        finally:
            os.dup2(stderr, STDERR)
            held.seek(0)
            if not panic and (text := held.read()):
                os.write(STDERR, text)
