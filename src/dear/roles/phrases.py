"""Phrase pools (the package's own, the Attribute World's, or a user's file, with concepts or without), and
sentence embeddings of phrases.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.loading.lite import SentenceEncoder
from dear.errors import DataError, SettingsError, WeightsError, installation
from dear.reading.files import ReadingError, expanded, read_lines
from dear.reading.plain import read_csv
from dear.world.factors import FACTORS, STYLES
from dear.world.names import packaged_json
from dear.world.render import GLYPHS

GENERAL, WORLD = "general", "world"
PHRASES_AT_ONCE = 128
"""Texts that are embedded together."""
STORED = Path(str(files("dear.roles").joinpath("pool_embeddings.safetensors")))


@dataclass(frozen=True)
class Pool:
    """Distinct phrases.

    Attributes:
        name: "general", "world" or the file.
        phrases: The phrases, in order.
        concepts: The concept of each phrase; empty for a user's file without concepts.
    """

    name: str
    phrases: tuple[str, ...]
    concepts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.phrases)


def load_pool(name_or_path: str) -> Pool:
    """A pool by its name ("general", "world") or file. Raises DataError for an invalid file."""
    if name_or_path in (GENERAL, WORLD):
        return general_pool() if name_or_path == GENERAL else world_pool()
    try:
        return read_pool(expanded(name_or_path))
    except ReadingError as error:
        raise ReadingError(f"phrases {name_or_path}", error.reason, missing=error.missing) from error


@cache
def general_pool() -> Pool:
    """The package's pool: word lists of everyday concepts, each word in each template of its list."""
    rows = json.loads(files("dear.roles").joinpath("pool.json").read_text(encoding="utf-8"))["categories"]
    return _pool(GENERAL, ((row["concept"], row["words"], row["templates"]) for row in rows))


@cache
def world_pool() -> Pool:
    """Every word of the Attribute World's factors, styles, counts and letters, in its captions' templates."""
    return _pool(WORLD, _world_rows())


def _world_rows() -> Iterable[tuple[str, Sequence[str], Sequence[str]]]:
    grammar: dict[str, Any] = packaged_json("grammar")
    style = STYLES.words[0][0]
    for factor, patterns in grammar["single"].items():
        words = [word for words in FACTORS[factor].words for word in words]
        templates = [
            pattern.replace("{style}", style).replace("{noun}", noun)
            for pattern in [grammar["plain_prompts"][factor], *patterns]
            for noun in grammar["nouns"][: 2 if "{noun}" in pattern else 1]
        ]
        yield factor, words, list(dict.fromkeys(templates))
    manners = [word for words in STYLES.words for word in words]
    yield "style", manners, ["a {}", "a {} of a thing", "this is a {}", "a {} showing something"]
    counts = list(grammar["counts"].values())
    yield "number", counts, ["{} of them", "with {} copies", "{}", "something with {} copies"]
    for kind, glyphs in (("letter", GLYPHS[:26]), ("digit", GLYPHS[26:])):
        yield (
            "text",
            list(glyphs),
            [f"the {kind} {{}}", f"with the {kind} {{}}", f"a thing and the {kind} {{}}"],
        )


def _pool(name: str, rows: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> Pool:
    """Words filled into templates; a duplicate phrase keeps its first concept."""
    concepts: dict[str, str] = {}  # by phrase
    for concept, words, templates in rows:
        for word in words:
            for template in templates:
                concepts.setdefault(with_articles(template.format(word)), concept)
    return Pool(name, tuple(concepts), tuple(concepts.values()))


def read_pool(path: Path) -> Pool:
    """A user's phrases: a text file in UTF-8 with one phrase per line, or a CSV file with the columns phrase
    and concept; surrounding spaces are removed.

    Blank lines and repeats are left out. Raises DataError for a file that is missing, without a phrase or in
    another encoding, and for a CSV file that lacks a column or a concept, or has fewer than two concepts.
    """
    if has_concepts := path.suffix.lower() == ".csv":
        lines = read_csv(path)
        header = [name.strip() for name in next(lines, (0, []))[1]]
        table = [dict(zip_longest(header, cells[: len(header)], fillvalue="")) for _, cells in lines]
        if not {"phrase", "concept"} <= {*header}:
            raise DataError(f"{path} has no columns phrase and concept: name them in its first line.")
        rows = [(row["phrase"].strip(), row["concept"].strip()) for row in table]
    else:
        rows = [(line.strip(), "") for line in read_lines(path)]
    concepts = dict(row for row in reversed(rows) if row[0])  # the first of repeats
    if not concepts:
        raise DataError(f"{path} contains no phrase: write one per line.")
    phrases = tuple(dict.fromkeys(phrase for phrase, _ in rows if phrase))
    if has_concepts and (lacking := [phrase for phrase in phrases if not concepts[phrase]]):
        raise DataError(f"{path} has no concept for the phrase {lacking[0]!r}.")
    if has_concepts and len({*concepts.values()}) < 2:
        raise DataError(f"{path} has one concept, {concepts[phrases[0]]!r}: clusters need at least two.")
    return Pool(str(path), phrases, tuple(concepts[p] for p in phrases) if has_concepts else ())


def with_articles(text: str) -> str:
    """Replace `a` by `an` before a vowel."""
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def embed_phrases(phrases: Sequence[str]) -> Float[Tensor, "phrase width"]:
    """Unit sentence embeddings in float32.

    Embeddings of the package's pools are stored in the package (float16) and need no model. Raises the errors
    of `embed_sentences` for others.
    """
    embeddings = stored_embeddings()
    if new := [phrase for phrase in dict.fromkeys(phrases) if phrase not in embeddings]:
        embeddings = {**embeddings, **dict(zip(new, embed_sentences(new), strict=True))}
    return torch.stack([embeddings[phrase] for phrase in phrases])


@cache
def stored_embeddings() -> dict[str, Float[Tensor, "width"]]:
    """The embeddings in the package, except those of a pool that has changed since they were computed
    (`python -m tools.rebuild_assets pools` computes them anew).
    """
    embeddings: dict[str, Tensor] = {}
    if not STORED.is_file():
        return embeddings
    with safe_open(STORED, framework="pt") as stored:
        hashes = json.loads((stored.metadata() or {})["phrases"])
        for pool in (general_pool(), world_pool()):
            if hashes.get(pool.name) == pool_hash(pool):
                rows = normalize(stored.get_tensor(pool.name).float(), dim=-1)
                embeddings |= dict(zip(pool.phrases, rows, strict=True))
    return embeddings


def pool_hash(pool: Pool) -> str:
    """Hash of a pool's phrases in their order, for which its stored embeddings are valid."""
    return hashlib.sha256("\n".join(pool.phrases).encode()).hexdigest()


@torch.no_grad()
def embed_sentences(texts: Sequence[str]) -> Float[Tensor, "text width"]:
    """Unit embeddings of texts by `SentenceEncoder`. Raises SettingsError if it is not installed."""
    try:
        encoder = SentenceEncoder().eval()
    except WeightsError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        raise SettingsError(
            f"embedding phrases needs a sentence encoder: {installation('roles')}."
        ) from error
    ids = encoder.tokenizer([*texts])
    return torch.cat([encoder.sentences(part) for part in ids.split(PHRASES_AT_ONCE)])
