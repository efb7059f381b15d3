"""The tokenizer of a model: CLIP's own, or one in JSON files beside its weights, in its folder or on the hub.

The files (`tokenizer.json` and the settings of its padding) are read by the library tokenizers, which runs no
code of a file. transformers is not used: its loader imports code that the files name.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import torch
from jaxtyping import Int
from torch import Tensor

from dear.backbone import openclip as open_clip
from dear.backbone.clip import Tokenizer
from dear.backbone.loading import hub
from dear.errors import DearError, WeightsError, first_line
from dear.reading.files import ReadingError, expanded
from dear.reading.plain import read_json
from dear.reading.typed import shown, typed

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
WORDS = "vocab.json"  # of older models
OLDER_FILES = ("spiece.model", "vocab.txt")
OTHER_FILES = (SETTINGS, OLDER_FILES[0], WORDS)  # that transformers writes too
PADDING = {"WordPiece": ["[PAD]"], "Unigram": ["<pad>"], "BPE": ["<pad>", "<|endoftext|>"]}
"""The padding token if the settings name none: the first in the vocabulary. BPE's second is CLIP's."""
SIDES = {"GemmaTokenizer": "left", "Siglip2Tokenizer": "left"}
"""The side of the padding if the settings name none, by transformers' class; others pad on the right."""
ADDED = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""The keys of an added token that the library reads."""
STEPS = ("normalizer", "pre_tokenizer", "post_processor")
UNUSED = {"version": "1.0", "truncation": None, "padding": None, "decoder": None}
PROBES = ("a", "A", "1", ".")
"""Texts: every tokenizer knows at least one of them."""
CLIPS_SPECIAL = {"<|startoftext|>": 49406, "<|endoftext|>": 49407}
"""transformers' names of CLIP's special words; open_clip has others."""
CLIPS_PROBES = ("A photo of two  Cats'\n3 CAFÉS!!", "don't 日本 🐈 12ab cafe\u0301")
"""Texts that a tokenizer with other steps than CLIP's splits differently."""


class Content(TypedDict):
    """The keys of `tokenizer.json` that are read here; the library checks the rest."""

    model: dict[str, Any]
    added_tokens: NotRequired[list[dict[str, Any]] | None]


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


@dataclass(frozen=True)
class FileTokenizer:
    """Texts to ids, padded and cut to the context.

    Attributes:
        rust: the `tokenizers.Tokenizer`, which adds special tokens, cuts and pads.
        clean: applied to a text first.
        words: number of ids of the text tower.
        context: number of ids of a text.
        pad: id that fills up the context.
        left: True if the padding comes before the text.
        stripped: id that is replaced by 0 (CLIPA's separator), or None.
        sha256: hash of the parts of its files that ids depend on.
    """

    rust: Any
    clean: Callable[[str], str]
    words: int
    context: int
    pad: int = 0
    left: bool = False
    stripped: int | None = None
    sha256: str = ""

    def __call__(self, texts: str | Sequence[str]) -> Int[Tensor, "text token"]:
        """Ids of texts. Raises WeightsError if the tokenizer fails, or gives an id that the tower lacks."""
        rows = list[list[int]]()
        for text in [texts] if isinstance(texts, str) else texts:
            with _one_line_errors("this text"):
                rows.append(self.rust.encode(self.clean(text)).ids)
        ids = torch.tensor(rows, dtype=torch.long).view(len(rows), self.context)
        if ids.numel() and int(ids.max()) >= self.words:
            raise WeightsError(
                f"the tokenizer does not fit: it gives the id {int(ids.max())}, the text tower has "
                f"{self.words} words."
            )
        return ids if self.stripped is None else ids.masked_fill(ids == self.stripped, 0)


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
        return tokenizer  # type: ignore[no-any-return]
    try:
        file, settings_file = _find_files(str(repository), folder, commit)
        return read_tokenizer(
            file, settings_file, context=context, words=words, clean=settings.get("clean", "whitespace"),
            strip_sep_token=settings.get("strip_sep_token", False),
        )  # fmt: skip
    except DearError as error:
        if folder is None and os.path.isdir(expanded(name)):  # of a model that names its tokenizer
            raise WeightsError(
                f"{name} has no {FILE}, and that of {shown(repository)} cannot be loaded: copy {FILE} and "
                f"{SETTINGS} of that model into {name}."
            ) from error
        remedy = (
            f"Without a network, copy {FILE} and {SETTINGS} beside the weights file, and give its path with "
            "--pretrained."
        )
        if folder is not None:
            remedy = f"Copy {FILE} and {SETTINGS} of the model into that folder."
            if older := next((of for of in OLDER_FILES if (folder / of).is_file()), None):
                remedy = (
                    f'If you trust the source of its {older}, let transformers write {FILE}: python -c "from '
                    f"transformers import AutoTokenizer as A; A.from_pretrained({str(folder)!r})"
                    f'.save_pretrained({str(folder)!r})"'
                )
        raise WeightsError(
            f"the tokenizer of {name} ({folder or shown(repository)}) cannot be loaded: {error} {remedy}"
        ) from error


def tokenizer_beside(weights: Path) -> Path | None:
    """The folder of a weights file, if it also holds the files of a tokenizer."""
    return weights.parent if any((weights.parent / file).is_file() for file in (FILE, *OTHER_FILES)) else None


def _find_files(repository: str, folder: Path | None, commit: str | None) -> tuple[Path, Path | None]:
    """The file of a tokenizer and, if there is one, that of its settings."""
    if folder is not None:
        if not (folder / FILE).is_file():
            raise WeightsError(f"{folder} has no {FILE}.")
        return folder / FILE, folder / SETTINGS if (folder / SETTINGS).exists() else None
    file = hub.fetch(repository, (FILE,), title="the tokenizer", revision=commit)
    try:
        return file, hub.fetch(repository, (SETTINGS,), revision=hub.commit_of(file))
    except hub.MissingError:
        return file, None


def read_tokenizer(
    file: Path, settings_file: Path | None, *, context: int, words: int, clean: str, strip_sep_token: bool
) -> FileTokenizer:
    """The tokenizer of a `tokenizer.json` and, if there is one, its `tokenizer_config.json`.

    Raises ReadingError for a malformed file, LimitError for one that is too large, WeightsError if the
    library cannot use it.
    """
    content, rust = _read(file)
    settings = _read_settings(settings_file)
    model, added = content["model"], content["added_tokens"]
    if missing := _list_added(settings) - {token.get("content") for token in added}:
        raise ReadingError(file, f"{SETTINGS} beside it adds the token {shown(min(missing))}, which it lacks")
    pad_token = _content(settings.get("pad_token"))
    names_of_pad = PADDING.get(model["type"], []) if pad_token is None else [pad_token]
    pads = [number for token in names_of_pad if (number := rust.token_to_id(token)) is not None]
    if not pads:
        raise ReadingError(file, f"it lacks the padding token {shown(next(iter(names_of_pad), None))}")
    kind = settings.get("tokenizer_class", "").removesuffix("Fast")
    side = settings.get("padding_side", SIDES.get(kind, "right"))
    before, after = _special_ids(rust, file)
    if len(before) + len(after) > context:
        raise ReadingError(file, f"it adds more special tokens than the {context} ids of a text")
    separator = rust.token_to_id(_content(settings.get("sep_token")) or "[SEP]") if strip_sep_token else None
    rust.enable_truncation(context)
    rust.enable_padding(direction=side, pad_id=pads[0], length=context)
    # The hash covers what ids depend on: files may have other keys, or spell out defaults.
    used = {
        **UNUSED,
        **{step: content.get(step) for step in STEPS},
        "model": model,
        "added_tokens": [{key: token.get(key) for key in ADDED} for token in added],
        "post_processor": [before, after, pads[0], side, separator],
    }
    digest = hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()
    clean_text = open_clip.get_clean_fn(clean)
    return FileTokenizer(rust, clean_text, words, context, pads[0], side == "left", separator, digest)


def _read(file: Path) -> tuple[dict[str, Any], Any]:
    """The content of a `tokenizer.json`, with the kind of its model, and the library's tokenizer, which
    neither cuts nor pads. Raises ReadingError, WeightsError.
    """
    content: dict[str, Any] = {**typed(read_json(file), Content, file)}
    model, added = content["model"], content.get("added_tokens") or []
    # The file of an early version does not say that its model is BPE or WordPiece.
    kind = {"type": "BPE" if "merges" in model else "WordPiece"}
    from tokenizers import Tokenizer as RustTokenizer

    with _one_line_errors(file):
        rust = RustTokenizer.from_file(str(file))
    if (rust.truncation or {}).get("direction") == "left":
        raise ReadingError(file, "it cuts texts on the left, which is not done here")
    rust.no_truncation()
    rust.no_padding()
    return content | {"model": kind | model, "added_tokens": added}, rust


def _read_settings(file: Path | None) -> Settings:
    return {} if file is None else typed(read_json(file), Settings, file)


def _list_added(settings: Settings) -> set[str]:
    """The tokens that settings add; `tokenizer.json` has them too if transformers wrote it."""
    extra = settings.get("extra_special_tokens") or ()
    tokens: list[str | Special] = [*settings.get("added_tokens_decoder", {}).values()]
    tokens += settings.get("additional_special_tokens") or ()
    tokens += extra.values() if isinstance(extra, dict) else extra
    return {str(_content(token)) for token in tokens}


def _special_ids(rust: Any, file: Path) -> tuple[list[int], list[int]]:
    """The ids of the special tokens that are put before and after a text. Raises ReadingError."""
    with _one_line_errors(file):
        for probe in PROBES:
            whole, inner = rust.encode(probe).ids, rust.encode(probe, add_special_tokens=False).ids
            for start in range(len(whole) - len(inner) + 1) if inner else ():
                if whole[start : start + len(inner)] == inner:
                    return whole[:start], whole[start + len(inner) :]
    raise ReadingError(file, "its post_processor must contain the text exactly once")


@contextmanager
def _one_line_errors(what: object) -> Iterator[None]:
    """Context in which errors of the library become WeightsErrors, and panics, which are not Exceptions."""
    try:
        yield
    except (DearError, MemoryError):
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise WeightsError(f"the library tokenizers cannot use {what} ({first_line(error)}).") from error
        raise


def _content(token: str | Special | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def is_clip_tokenizer(file: Path, settings_file: Path | None = None) -> bool:
    """True if a `tokenizer.json`, or the `vocab.json` of older models, gives the ids of CLIP's own tokenizer,
    and its settings add no token. Raises ReadingError.
    """
    if _list_added(_read_settings(settings_file)) - CLIPS_SPECIAL.keys():
        return False
    clips = open_clip.SimpleTokenizer()
    words = {word: number for word, number in clips.encoder.items() if number not in CLIPS_SPECIAL.values()}
    words |= CLIPS_SPECIAL
    if file.name != FILE:
        return bool(read_json(file) == words)
    start, end = CLIPS_SPECIAL.values()
    content, rust = _read(file)
    added = {token.get("content"): token.get("id") for token in content["added_tokens"]}
    return (rust.get_vocab(), added) == (words, CLIPS_SPECIAL) and all(
        rust.encode(text).ids == [start, *clips.encode(text), end] for text in CLIPS_PROBES
    )
