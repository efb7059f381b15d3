"""The tokenizer of a model: CLIP's own, or one in JSON files beside its weights, in its folder or on the hub.

The files (`tokenizer.json` and the settings of its padding) are read as data. The library `tokenizers` gets
only parts of the kinds listed here. transformers is not used: its loader imports code that the files name,
and takes paths from them.
"""

import hashlib
import json
import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, TypedDict, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from dear.backbone import hub
from dear.backbone import openclip as open_clip
from dear.backbone.clip import Tokenizer
from dear.backbone.clip_tokenizer import bounded, cleaning
from dear.backbone.tokenizer_parts import specials, tokenizer_parts
from dear.errors import DearError, WeightsError, first_line
from dear.reading.files import ReadingError, require_inside
from dear.reading.isolated import isolated
from dear.reading.plain import read_json
from dear.reading.typed import shown, typed

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
WORDS, MERGES = "vocab.json", "merges.txt"  # of older models
OTHER_FILES = (SETTINGS, "spiece.model", WORDS)  # that transformers writes too
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
PADDING = {"WordPiece": ["[PAD]"], "Unigram": ["<pad>"], "BPE": ["<pad>", "<|endoftext|>"]}
"""The padding token where the settings name none: the first that is a word. The second is CLIP's."""
SIDES = {"GemmaTokenizer": "left", "Siglip2Tokenizer": "left"}
"""The side of the padding where the settings name none, by transformers' class; others pad on the right."""


SECONDS, BYTES_A_SECOND = 2, 2_000_000
"""Seconds of the processor for building a tokenizer, and bytes for each further one: 16 MB take 0.7."""
MEMORY, BYTES_A_BYTE, MOST_MEMORY = 2**28, 32, 2**30
"""Bytes of memory that it may take, further ones for each byte of it (it takes 8), and of any."""
MAX_BYTES = 8000
"""Bytes of a text after each step of its normalisation; a prompt has 2,000 letters at most."""
SHORT_BYTES, BYTES_A_LETTER = 500, 10
"""Bytes of a short text likewise, and those for each of its letters; one of Hangul becomes 9."""

ADDED = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""The keys of an added token that the library reads."""
WITHOUT_WORDS: dict[str, Any] = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}

Result = TypeVar("Result")
STDERR = 2
PANIC = "PanicException"
"""pyo3's class of a panic, which no module offers."""
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
    added_tokens_decoder: dict[str, Special]
    additional_special_tokens: list[str | Special] | None
    extra_special_tokens: list[str | Special] | dict[str, str | Special] | None


def find_tokenizer(
    name: str, text: Mapping[str, Any], folder: Path | None, commit: str | None = None
) -> Tokenizer:
    """The tokenizer of a text configuration: CLIP's own, or the named one, read from ``folder`` if there is
    one, else from the hub, by default from the latest commit. Raises WeightsError with what to download.
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
        return bounded(tokenizer)  # type: ignore[no-any-return]
    try:
        file, settings_file = _beside(folder) if folder is not None else _of_hub(str(repository), commit)
        return file_tokenizer(
            file, settings_file, context=context, words=words, clean=settings.get("clean", "whitespace"),
            strip_sep_token=settings.get("strip_sep_token", False),
        )  # fmt: skip
    except (DearError, ImportError, OSError) as error:
        reason = str(error) if isinstance(error, DearError) else f"{first_line(error)}."
        download = (
            f" and `hf download {shlex.quote(str(repository)[:200])}`. Without a network, copy {FILE} and "
            f"{SETTINGS} beside the weights file, and give its path with --pretrained"
        )
        raise WeightsError(
            f"the tokenizer of {name} ({folder or shown(repository)}) cannot be loaded: {reason} It "
            f"needs `pip install tokenizers`{download}."
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
    settings = require_inside(folder / SETTINGS) if os.path.lexists(folder / SETTINGS) else None
    return require_inside(folder / FILE), settings


def _of_hub(repository: str, commit: str | None) -> tuple[Path, Path | None]:
    if not HUB_NAME.fullmatch(repository):
        raise WeightsError(f"{shown(repository)} is not the name of a repository of the hub.")
    if hub.find_cached(repository, (FILE,), commit) is None:
        hub.announce("the tokenizer", repository)
    file = hub.fetch(repository, (FILE,), revision=commit)
    try:
        return file, hub.fetch(repository, (SETTINGS,), revision=hub.commit_of(file))
    except hub.MissingError:
        return file, None


@dataclass(frozen=True)
class FileTokenizer:
    """Texts to ids, padded and cut to the context.

    Attributes:
        rust: the `tokenizers.Tokenizer`, which neither cuts nor pads, nor adds special tokens: its own code
            for that keeps what is cut off, combined in many ways.
        normalizers: the steps by which it normalises a text.
        clean: applied to a text first.
        words: number of ids of the text tower.
        context: most ids of a text.
        before, after: ids of the special tokens around a text.
        pad: id that fills up the context.
        left: whether it does so before the text.
        stripped: id that is replaced by 0 (CLIPA's separator), or None.
        sha256: hash of what was read of its files.
    """

    rust: Any
    normalizers: Sequence[Any]
    clean: Callable[[str], str]
    words: int
    context: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pad: int = 0
    left: bool = False
    stripped: int | None = None
    sha256: str = ""

    def __call__(self, texts: str | Sequence[str]) -> Int[Tensor, "text token"]:
        """Ids of texts. Raises WeightsError if the tokenizer fails, or gives an id that the tower lacks."""
        texts = [texts] if isinstance(texts, str) else texts
        room = self.context - len(self.before) - len(self.after)
        encode = self.rust.encode
        rows = _guarded(
            lambda: [encode(self._short(text), add_special_tokens=False).ids[:room] for text in texts]
        )
        ids = torch.full((len(rows), self.context), self.pad, dtype=torch.long)
        for row, text_ids in zip(ids, rows, strict=True):
            filled = torch.tensor([*self.before, *text_ids, *self.after], dtype=torch.long)
            (row[self.context - len(filled) :] if self.left else row[: len(filled)]).copy_(filled)
        if ids.numel() and int(ids.max()) >= self.words:
            raise WeightsError(
                f"the tokenizer does not fit: it gives the id {int(ids.max())}, the text tower has "
                f"{self.words} words."
            )
        return ids if self.stripped is None else ids.masked_fill(ids == self.stripped, 0)

    def _short(self, text: str) -> str:
        """A cleaned text. Raises WeightsError if the tokenizer would make a much longer one of it."""
        text = normalized = self.clean(text)
        maximum = min(MAX_BYTES, SHORT_BYTES + BYTES_A_LETTER * len(text))
        for step in self.normalizers:
            normalized = step.normalize_str(normalized)
            if (size := len(normalized.encode())) > maximum:
                raise WeightsError(
                    f"the tokenizer makes {size:,} bytes of {len(text):,} letters: at most {maximum:,}."
                )
        return text


def file_tokenizer(
    file: Path, settings_file: Path | None, *, context: int, words: int, clean: str, strip_sep_token: bool
) -> FileTokenizer:
    """The tokenizer of a `tokenizer.json` and, if there is one, its `tokenizer_config.json`.

    Raises ReadingError for a file that is malformed or has a part of another kind, LimitError for one that is
    too large, ImportError without the package `tokenizers`, WeightsError if that cannot use it.
    """
    parts = tokenizer_parts(read_json(file, "tokenizer_values", links=True), file)
    settings: Settings = {}
    if settings_file is not None:
        settings = read_settings(settings_file)

    import tokenizers

    content = json.dumps(parts | {"post_processor": None}, ensure_ascii=False)
    size = len(content.encode())
    normalizer = parts["normalizer"] or {"normalizers": []}
    alone = parts | {key: None for key in ("pre_tokenizer", "post_processor")} | WITHOUT_WORDS
    steps = [json.dumps(alone | {"normalizer": step}) for step in normalizer.get("normalizers", [normalizer])]

    def build() -> tuple[Any, list[Any]]:
        from_str = tokenizers.Tokenizer.from_str
        return _guarded(lambda: (from_str(content), [from_str(step).normalizer for step in steps]))

    isolated(
        lambda: build() and None, file, seconds=SECONDS + size // BYTES_A_SECOND,
        memory=min(MEMORY + BYTES_A_BYTE * size, MOST_MEMORY),
    )  # fmt: skip
    rust, normalizers = build()
    if missing := added_tokens(settings) - {token["content"] for token in parts["added_tokens"]}:
        raise ReadingError(file, f"{SETTINGS} beside it adds the token {shown(min(missing))}, which it lacks")
    pad_token = _content(settings.get("pad_token"))
    names = PADDING[parts["model"]["type"]] if pad_token is None else [pad_token]
    if (pad := next(filter(_is_id, map(rust.token_to_id, names)), None)) is None:
        raise ReadingError(file, f"it lacks the padding token {shown(names[0])}")
    kind = settings.get("tokenizer_class", "").removesuffix("Fast")
    side = settings.get("padding_side", SIDES.get(kind, "right"))
    before, after = specials(parts["post_processor"], file)
    if len(before) + len(after) > context:
        raise ReadingError(file, f"it adds more special tokens than the {context} ids of a text")
    separator = rust.token_to_id(_content(settings.get("sep_token")) or "[SEP]") if strip_sep_token else None
    clean_text = cleaning(open_clip.get_clean_fn(clean))
    # Of what is used: files may have keys that are not read, or spell out what is usual.
    tokens = [{key: token.get(key) for key in ADDED} for token in parts["added_tokens"]]
    used = {**parts, "added_tokens": tokens, "post_processor": [before, after, pad, side, separator]}
    digest = hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()
    return FileTokenizer(
        rust, normalizers, clean_text, words, context, before, after, pad, side == "left", separator, digest
    )


def read_settings(file: Path) -> Settings:
    """The settings of a tokenizer. Raises ReadingError."""
    return typed(read_json(file, "config_values", links=True), Settings, file)


def added_tokens(settings: Settings) -> set[str]:
    """The tokens that settings add, which `tokenizer.json` has too where transformers wrote it."""
    extra = settings.get("extra_special_tokens") or ()
    tokens: list[str | Special] = [*settings.get("added_tokens_decoder", {}).values()]
    tokens += settings.get("additional_special_tokens") or ()
    tokens += extra.values() if isinstance(extra, dict) else extra
    return {str(_content(token)) for token in tokens}


def _is_id(number: int | None) -> bool:
    return number is not None


def _content(token: str | Special | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def _guarded(work: Callable[[], Result]) -> Result:
    """The result of the library's Rust code. A panic in it is no Exception: a WeightsError, as the rest.
    Other exceptions of that kind, such as of a signal, are not of the library.
    """
    try:
        with _without_panics():
            return work()
    except MemoryError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or _is_panic(error)):
            raise
        raise WeightsError(f"the library tokenizers cannot use it ({first_line(error)}).") from error


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == PANIC


@contextmanager
def _without_panics() -> Iterator[None]:
    """Drop what Rust prints of a panic, with its stack, before Python learns of it.

    Rust writes to the descriptor of stderr: what others write there meanwhile is passed on, unless there is a
    panic.
    """
    with _stderr_lock, ExitStack() as stack:
        try:
            captured = stack.enter_context(TemporaryFile())
            stderr = os.dup(STDERR)
        except OSError:  # no room, or no stderr
            yield
            return
        stack.callback(os.close, stderr)
        os.dup2(captured.fileno(), STDERR)
        panic = False
        try:
            yield
        except BaseException as error:
            panic = _is_panic(error)
            raise
        finally:
            os.dup2(stderr, STDERR)
            captured.seek(0)
            if not panic and (text := captured.read()):
                os.write(STDERR, text)
