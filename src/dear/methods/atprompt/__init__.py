"""Settings and declaration of ATPrompt."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from dear.errors import SettingsError, listing
from dear.methods.declaration import AT_LEAST_0, LAYER, Declaration, MethodSettings
from dear.reading.files import expanded
from dear.reading.plain import read_json
from dear.reading.typed import typed

FALLBACK = "ImageNet"
TOKENS = {"coop": 2, "maple": 4}


@dataclass(frozen=True)
class AtPromptSettings(MethodSettings):
    """Settings of ATPrompt; the defaults are those of its base-to-novel runs on CoOp, and with base "maple"
    of those on MaPLe.

    Attributes:
        base: The method that it extends: attributes in the prompts of CoOp, or of MaPLe.
        words: A file (JSON) with the attribute words of data sets: a list of words by the name of each. It
            replaces the authors' words, and must have words for each data set that is trained on.
        attributes: The attribute words themselves, with commas between, for any data set. If empty, they are
            those of the file or of the authors; color and shape where the authors have none.
        tokens: Learned tokens before each attribute word and before the class name; none uses what the
            authors set for the data set, and on other data 2 with base coop, 4 with base maple.
        by_position: Allow words of several tokens, with positions as in the authors' code, which counts one
            token per word: what follows is then out of place. False refuses such words. None only allows
            them where the authors have them, on OxfordPets.
        depth: With base maple, number of layers with their own prompts, of 12: the first ones of both towers.
        share: Scale layers of 12 to towers of other depths [ours]; if not, use their numbers as they are.
        token_std: Standard deviation of the initial values of all tokens but those before attribute words.
        attribute_std: The same for the tokens before attribute words.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 100, "batch": 32})
    paths = ("words",)
    bounds = MappingProxyType(
        {
            "words": ("the name of a file, or none", lambda value: value is None or bool(value)),
            "attributes": ("words with commas between", lambda value: not value or all(_split(value))),
            "tokens": ("at least 1, or none", lambda value: value is None or value >= 1),
            "depth": LAYER,
            "token_std": AT_LEAST_0,
            "attribute_std": AT_LEAST_0,
        }
    )

    base: Literal["coop", "maple"] = "coop"
    words: str | None = None
    attributes: str = ""
    tokens: int | None = None
    by_position: bool | None = None
    depth: int = 9
    share: bool = True
    token_std: float = 0.02
    attribute_std: float = 0.01

    def __post_init__(self) -> None:
        """Raise SettingsError for a value out of its bounds, and for words that are set in two ways."""
        super().__post_init__()
        if self.words is not None and self.attributes:
            raise SettingsError("atprompt.words is a file, and atprompt.attributes is given too: give one.")

    @property
    def attribute_words(self) -> tuple[str, ...]:
        """The attribute words, in order; none before a data set is known."""
        return tuple(_split(self.attributes)) if self.attributes else ()

    def for_data(self, dataset: str) -> Self:
        """The settings with the words and the number of tokens of the data set, instead of the file's name.
        Raises SettingsError for a file that lacks the data set, ReadingError for one that cannot be read.
        """
        published = json.loads(files(__package__).joinpath("attributes.json").read_text(encoding="utf-8"))
        tokens = published["tokens"][self.base].get(dataset, TOKENS[self.base])
        changes: dict[str, Any] = {"tokens": self.tokens or tokens}
        if self.words is not None:
            changes |= {"words": None, "attributes": ", ".join(_words_of(dataset, Path(self.words)))}
        elif not self.attributes:
            words: Mapping[str, list[str]] = published["words"]
            changes["attributes"] = ", ".join(words.get(dataset, words[FALLBACK]))
            if self.by_position is None:
                changes["by_position"] = dataset in published["by_position"]
        return replace(self, **changes)


def _split(attributes: str) -> list[str]:
    return [word.strip() for word in attributes.split(",")]


def _words_of(dataset: str, file: Path) -> list[str]:
    """The words of a data set in a file."""
    by_dataset: Mapping[str, list[str]] = typed(read_json(expanded(file)), dict[str, list[str]], file)
    words = by_dataset.get(dataset)
    if words is None:
        raise SettingsError(
            f"{file} has no attribute words for the data set {dataset!r}, only for "
            f"{listing([*by_dataset], 12)}: add a list of them under that name."
        )
    if not words or any("," in word or not word.strip() for word in words):
        raise SettingsError(
            f"{file} has {words!r} for the data set {dataset!r}: it must be a list of one word or more, "
            "without commas."
        )
    return words


METHOD = Declaration("atprompt", "2412.09442", "ATPrompt", AtPromptSettings, image="features", text="layers")
