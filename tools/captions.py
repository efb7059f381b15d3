"""Captions: a small grammar that names a random subset of a scene's factors, in varied words and order."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dear.roles.phrases import with_articles
from dear.world.factors import FACTOR_NAMES, FACTORS, STYLES
from dear.world.hashing import Stream
from dear.world.names import packaged_json
from dear.world.render import GLYPHS
from dear.world.scene import Scene

GRAMMAR = packaged_json("grammar")
PLAIN_PROMPTS: Mapping[str, str] = MappingProxyType(GRAMMAR["plain_prompts"])
MAX_WORDS = 20

_SINGLE_SHARE, _PLAIN_SHARE, _SYNONYM_SHARE, _TAIL_SHARE = 0.31, 0.4, 0.3, 0.25
_SKETCH = STYLES.values.index("sketch")
_COLOR = FACTOR_NAMES.index("color")


@dataclass(frozen=True)
class Captions:
    """One caption per image, and which of the five factors it names."""

    texts: list[str]
    named: Bool[Tensor, "batch factor"]


def plain_prompts(factor: str) -> tuple[str, ...]:
    """The plain prompt of each value of a factor, for zero-shot measurement."""
    words = FACTORS[factor].words if factor == "place" else tuple((name,) for name in FACTORS[factor].values)
    return tuple(PLAIN_PROMPTS[factor].format(usual[0]) for usual in words)


def describe(
    scene: Scene, seed: int, index: Int[Tensor, "batch"], draw: int = 0, *, only: str | None = None
) -> Captions:
    """A caption for each scene, a pure function of (scene, seed, index, draw); other draws, other captions.

    A caption of a sketch never names the color. No caption has more than 20 words. With
    `only`, every caption names just that factor, even the color of a sketch.
    """
    stream = Stream(seed, index.cpu())
    if only is None:
        named = _named(stream, draw, scene.style.cpu() == _SKETCH)
    else:
        named = torch.tensor([name == only for name in FACTOR_NAMES]).repeat(len(scene), 1)
    numbers = stream.uniforms(f"caption {draw}", 24).tolist()
    facts = torch.stack([scene.style, scene.count, scene.glyph], dim=1).tolist()
    texts = [
        _Writer(iter(row), values, fact).write(
            [name for name, on in zip(FACTOR_NAMES, flags, strict=True) if on]
        )
        for row, values, fact, flags in zip(
            numbers, scene.factors.tolist(), facts, named.tolist(), strict=True
        )
    ]
    return Captions(texts, named)


def _named(stream: Stream, draw: int, is_sketch: Bool[Tensor, "batch"]) -> Bool[Tensor, "batch factor"]:
    """Which factors to name: one (36%), or each with probability one half; never the color of a sketch."""
    columns = len(FACTOR_NAMES)
    first = _COLOR + 1 + stream.integer(f"first of sketch {draw}", columns - 1)
    first = torch.where(is_sketch, first, stream.integer(f"first {draw}", columns))
    one = torch.nn.functional.one_hot(first, columns).bool()
    several = (stream.uniforms(f"named {draw}", columns) < 0.5) | one
    named = torch.where(stream.chance(f"single {draw}", _SINGLE_SHARE)[:, None], one, several)
    named[:, _COLOR] &= ~is_sketch
    return named


class _Writer:
    """Writes one caption, using the image's own row of random numbers in order."""

    def __init__(self, numbers: Any, values: list[int], facts: list[int]) -> None:
        self.numbers, self.values = numbers, values
        self.style, self.count, self.glyph = facts

    def chance(self, probability: float) -> bool:
        return bool(next(self.numbers) < probability)

    def pick(self, options: list[str] | tuple[str, ...]) -> str:
        return options[int(next(self.numbers) * len(options))]

    def word(self, factor: str) -> str:
        """A value's usual word, or sometimes a synonym."""
        words = FACTORS[factor].words[self.values[FACTOR_NAMES.index(factor)]]
        synonym = self.chance(_SYNONYM_SHARE)
        other = self.pick(words)
        return other if synonym else words[0]

    def write(self, names: list[str]) -> str:
        style = self.pick(STYLES.words[self.style])
        if len(names) == 1:
            return self.single(names[0], style)
        body = self.phrase(names)
        text = with_articles(self.pick(GRAMMAR["openings"]).format(style=style) + body)
        for tail in self.tails():
            if len(f"{text} {tail}".split()) <= MAX_WORDS and self.chance(_TAIL_SHARE):
                text = f"{text} {tail}"
        return text

    def single(self, name: str, style: str) -> str:
        """A caption of one factor, often the plain prompt."""
        if self.chance(_PLAIN_SHARE):
            words = FACTORS[name].words[self.values[FACTOR_NAMES.index(name)]]
            return PLAIN_PROMPTS[name].replace("a photo", with_articles(f"a {style}")).format(words[0])
        pattern = self.pick(GRAMMAR["single"][name])
        text = pattern.replace("{noun}", self.pick(GRAMMAR["nouns"])).replace("{style}", style)
        text = text.replace("{}", self.word(name))
        return text if text.endswith(".") else with_articles(text)

    def phrase(self, names: list[str]) -> str:
        """The noun phrase, followed by the place."""
        adjectives = [self.word(name) for name in ("color", "texture") if name in names]
        if self.chance(0.4):
            adjectives.reverse()
        bare = " and ".join(adjectives) if self.chance(0.3) else " ".join(adjectives)
        has_plate = "shape" in names or bool(adjectives)
        parts = {"plate": "", "object": ""}
        if "object" in names:
            parts["object"] = f"a {self.word('object')}"
        if "shape" in names:
            noun = self.word("shape")
            if self.chance(0.15):
                noun = f"{noun} {self.pick(GRAMMAR['nouns'])}"
            parts["plate"] = " ".join(["a", *adjectives, noun])
        elif adjectives and "object" in names and self.chance(0.6):
            parts["object"] = " ".join(["a", *adjectives, parts["object"][2:]])
            has_plate = False
        elif adjectives:
            pattern = self.pick(GRAMMAR["adjectives_only"])
            noun = self.pick(GRAMMAR["nouns"])
            thing = pattern.format(adjectives=" ".join(adjectives), bare=bare, noun=noun)
            parts["plate"] = thing if thing.startswith("something") else f"a {thing}"
        if has_plate and "object" in names:
            text = self.pick(GRAMMAR["object_after"]).format(**parts)
        else:
            text = parts["plate"] or parts["object"]
        return with_articles(f"{text} {self.word('place')}" if "place" in names else text)

    def tails(self) -> list[str]:
        """Extra words for a count above one and for a letter or digit."""
        tails = []
        if self.count > 1:
            tails.append(self.pick(GRAMMAR["count_tails"]).format(count=GRAMMAR["counts"][str(self.count)]))
        if self.glyph >= 0:
            kind = "letter" if self.glyph < 26 else "digit"
            tails.append(self.pick(GRAMMAR["glyph_tails"]).format(kind=kind, glyph=GLYPHS[self.glyph]))
        return tails


def words_of(text: str) -> list[str]:
    """Lowercase words, with each punctuation mark on its own."""
    return re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower())


@cache
def world_words() -> list[str]:
    """Every word that captions, task class names and task templates can produce, sorted."""
    texts: list[str] = ["an", *GLYPHS, "letter", "digit", "and"]
    texts += [word for factor in (*FACTORS.values(), STYLES) for words in factor.words for word in words]
    texts += [name for factor in (*FACTORS.values(), STYLES) for name in factor.values]
    texts += [pattern for patterns in GRAMMAR["single"].values() for pattern in patterns]
    texts += [*GRAMMAR["plain_prompts"].values(), *GRAMMAR["nouns"], *GRAMMAR["counts"].values()]
    for key in ("openings", "object_after", "adjectives_only", "count_tails", "glyph_tails"):
        texts += GRAMMAR[key]
    for row in packaged_json("tasks")["tasks"]:
        texts += [row.get("template", ""), row.get("pattern", "")]
    return sorted({word for text in texts for word in words_of(re.sub(r"\{\w*\}", " ", text))})
