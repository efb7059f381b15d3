"""The tokenizer of a model: CLIP's own, or one in files beside its weights, in its folder or of the hub."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dear.backbone import hub
from dear.backbone import openclip as open_clip
from dear.backbone.clip import Tokenizer
from dear.backbone.tokenizer_file import FILE, SETTINGS, file_tokenizer
from dear.errors import DearError, WeightsError, first_line
from dear.reading.typed import shown

OTHERS = (SETTINGS, "spiece.model", "vocab.json")  # that transformers writes beside or instead of it
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


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
    return weights.parent if any((weights.parent / file).is_file() for file in (FILE, *OTHERS)) else None


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
