"""A word-level tokenizer for the tiny CLIP: known words are one token, any other word is spelled out."""

import json
import re
import string
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

import torch
from jaxtyping import Int
from torch import Tensor

from dear.errors import DataError
from dear.limits import at_most
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import Range, typed

_PIECE = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")
_SPELLING = string.ascii_lowercase + string.digits + string.punctuation


class Vocabulary(TypedDict):
    """The content of a vocabulary file; the context has room for start, end and a word."""

    words: list[str]
    context_length: Annotated[int, Range(3)]


class WordTokenizer:
    """Text to ids in CLIP's layout: start, words, end, padding 0; the end has the highest id.

    A word outside the vocabulary becomes one ``##c`` token per character (``##?`` outside ASCII). A prompt
    longer than the context is truncated but keeps its end token, as in CLIP's own tokenizer.
    """

    def __init__(self, words: Iterable[str], context_length: int) -> None:
        self.words = sorted(set(words))
        self.context_length = context_length
        tokens = ["<pad>", *self.words, *(f"##{c}" for c in _SPELLING), "<start>", "<end>"]
        self._id = {token: i for i, token in enumerate(tokens)}
        self.vocab_size = len(tokens)

    def __call__(
        self, texts: str | Sequence[str], *, spell: Callable[[str], bool] = lambda _: False
    ) -> Int[Tensor, "text token"]:
        """Ids of texts. ``spell`` selects known words to spell out anyway, so that letters can be learned
        from words whose meaning is known.
        """
        texts = [texts] if isinstance(texts, str) else texts
        ids = torch.zeros(len(texts), self.context_length, dtype=torch.long)
        for row, text in enumerate(texts):
            pieces = self._pieces(text, spell)[: self.context_length - 2]
            tokens = [self._id["<start>"], *pieces, self._id["<end>"]]
            ids[row, : len(tokens)] = torch.tensor(tokens)
        return ids

    def _pieces(self, text: str, spell: Callable[[str], bool]) -> list[int]:
        ids = []
        for piece in _PIECE.findall(text.lower()):
            if piece in self._id and not spell(piece):
                ids.append(self._id[piece])
            else:
                ids += [self._id.get(f"##{c}", self._id["##?"]) for c in piece]
        return ids

    def to_json(self) -> str:
        """The text that ``load`` reads."""
        return json.dumps({"context_length": self.context_length, "words": self.words}, indent=0) + "\n"

    @classmethod
    def load(cls, path: Path) -> "WordTokenizer":
        try:
            saved = typed(read_json(path), Vocabulary, path)
        except ReadingError as error:
            raise DataError(f"cannot read the vocabulary {path}: {error.reason}.") from error
        at_most("vocabulary", len(saved["words"]), path)
        at_most("context", saved["context_length"], path)
        return cls(saved["words"], saved["context_length"])
