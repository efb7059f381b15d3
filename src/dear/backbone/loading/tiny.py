"""The embedded tiny CLIP: an open_clip architecture, its word tokenizer and its weights, in the package."""

import json
import re
import string
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypedDict

import torch
from jaxtyping import Int
from torch import Tensor, nn

from dear.backbone import openclip as open_clip
from dear.backbone.clip import Clip
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.open_clip_format import initial_weights_from
from dear.backbone.loading.skeleton import Skeleton
from dear.backbone.loading.weights import fill_weights, read_weights
from dear.backbone.preprocess import Preprocess
from dear.errors import DataError
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import Range, typed

NAME = "tiny"
MEAN = STD = (0.5, 0.5, 0.5)
WEIGHTS, VOCABULARY, CONFIG = "model.safetensors", "vocabulary.json", "config.json"
FOLDER = Path(str(files("dear.backbone").joinpath("tiny")))

_PIECE = re.compile(r"[a-z]+|[0-9]|[^\sa-z0-9]")
_SPELLING = string.ascii_lowercase + string.digits + string.punctuation


class Vocabulary(TypedDict):
    """The content of a vocabulary file; the context has room for start, end and a word."""

    words: list[str]
    context_length: Annotated[int, Range(3)]


class WordTokenizer:
    """Text to ids in CLIP's layout: start, words, end, padding 0. The end has the highest id.

    A word of the vocabulary is one token. Any other word becomes one ``##c`` token per character (``##?``
    outside ASCII). A prompt longer than the context is truncated but keeps its end token, as in CLIP.
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
        """Ids of texts. ``spell`` selects words of the vocabulary to spell out all the same, so that letters
        can be learned from words whose meaning is learned too.
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
        return cls(saved["words"], saved["context_length"])


def config() -> dict[str, Any]:
    """open_clip's configuration of the architecture; the vocabulary size comes from the tokenizer."""
    return dict(json.loads((FOLDER / CONFIG).read_text(encoding="utf-8")))


def build(tokenizer: WordTokenizer, seed: int = 0) -> nn.Module:
    """The architecture in open_clip's own class, trainable, its initial weights drawn from ``seed``."""
    with initial_weights_from(seed):
        model: nn.Module = open_clip.CLIP(**_sized_config(tokenizer))
    return model


def _sized_config(tokenizer: WordTokenizer) -> dict[str, Any]:
    sized = config()
    sized["text_cfg"] |= {"vocab_size": tokenizer.vocab_size, "context_length": tokenizer.context_length}
    return sized


def preprocess(model: Any) -> Preprocess:
    """The preprocessing of the tiny CLIP, which was trained on pictures of its own size."""
    return Preprocess(model.visual.image_size[0], MEAN, STD)


def load(folder: Path = FOLDER) -> Clip:
    """The tiny CLIP from a folder written by ``tools/pretrain.py``; the embedded one by default."""
    tokenizer = WordTokenizer.load(folder / VOCABULARY)
    model = Skeleton(**_sized_config(tokenizer))
    fill_weights(model, read_weights(folder / WEIGHTS), folder / WEIGHTS)
    same_words = folder == FOLDER or tokenizer.to_json() == WordTokenizer.load(FOLDER / VOCABULARY).to_json()
    return to_clip(
        model,
        tokenizer,
        name=NAME,
        pretrained="world" if folder == FOLDER else folder.name,
        preprocess=preprocess(model),
        configuration={} if same_words else {"vocabulary": tokenizer.words},
    )
