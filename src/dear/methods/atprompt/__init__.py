"""Settings and declaration of ATPrompt."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from dear.methods.declaration import Declaration, Layer, MethodSettings, Tokens
from dear.reading.typed import Form, NonNegativeFloat


def split_words(text: str) -> list[str]:
    """The words between the commas of a text."""
    return [word.strip() for word in text.split(",")]


Words = Annotated[str, Form("of words with commas between", lambda text: all(split_words(text)))]


@dataclass(frozen=True)
class AtPromptSettings(MethodSettings):
    """Settings of ATPrompt; the defaults are those of its base-to-novel runs on CoOp, and with base "maple"
    of those on MaPLe.

    Attributes:
        base: The method that it extends: attributes in the prompts of CoOp, or of MaPLe.
        attributes: The attribute words, separated by commas.
        tokens: Learned tokens before each attribute word and before the class name.
        by_position: Allow attribute words that are several tokens long. Learned tokens after such a word are
            then put at wrong positions, as in the authors' code, which counts one token for each word.
        depth: With base maple, the number of first layers of both towers, of 12, that have their own prompts.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of the initial values of all tokens, except the tokens before attribute
            words.
        attribute_std: Standard deviation of the initial values of the tokens before attribute words.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 100, "batch": 32})

    base: Literal["coop", "maple"] = "coop"
    attributes: Words = "color, shape"
    tokens: Tokens = 2
    by_position: bool = False
    depth: Layer = 9
    share: bool = True
    token_std: NonNegativeFloat = 0.02
    attribute_std: NonNegativeFloat = 0.01

    @property
    def attribute_words(self) -> tuple[str, ...]:
        """The attribute words, in order."""
        return tuple(split_words(self.attributes))


METHOD = Declaration("atprompt", "2412.09442", "ATPrompt", AtPromptSettings, image="features", text="layers")
